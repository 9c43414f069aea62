#!/bin/sh
# Runs all checks, the slow ones last, for contributors and for CI. Sets up a Debian machine first. Announces
# the steps, goes on after a failed one, and names those that failed at the end. Steps whose tools are missing
# even then are left out with a message; tests fail if their tools are missing. For root each step runs in
# namespaces that end with it.
set -u

usage() {
    cat <<'EOF'
usage: scripts/test.sh
       scripts/test.sh --quick [TEST-FILTER...]

  --quick      tests of the core only: no lints, documentation, release build, fuzzing, soak or packages
  TEST-FILTER  passed to cargo test

environment:
  MINUTES            limit for the whole run (80)
  RUST_TEST_THREADS  number of tests at a time (twice the number of processors)
EOF
}

# Most of the time an integration test waits for other processes: more threads than processors.
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
export RUST_TEST_THREADS
cd "$(dirname "$0")/.." || exit
case ${1-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    --quick)
        shift
        exec env --default-signal cargo test --locked --workspace --exclude gcgroup-preload -- "$@"
        ;;
    *) usage >&2; exit 2 ;;
esac

# A step in each line: the seconds that it usually takes on two processors | its limit in seconds | what it
# needs | command. The preload library has no allocator or unwinder and so cannot have unit tests. Those of
# the hook run once more, linked as scripts/build.sh links the library: with its own unwinder. Naming the
# target keeps these options from build scripts.
# shellcheck disable=SC2016  # the step's shell expands it
steps='
60 | 900 | command -v apt-get | KUBERNETES=yes scripts/setup-debian.sh
3 | 60 | | cargo fmt --all --check && cd gcgroupfs/integrations && cargo fmt --all --check
15 | 120 | command -v shellcheck | git ls-files "*.sh" "scripts/gc-*" "*/slurm/scripts/*" "*/slurm/tests/gpu" .ci/run | xargs shellcheck -x
3 | 60 | command -v python3 | scripts/check-text.py
2 | 60 | command -v python3 | scripts/crates.py --check
10 | 300 | command -v cargo-deny | for tree in . gcgroupfs/integrations; do (cd "$tree" && cargo deny --locked --log-level error check --config "$OLDPWD/deny.toml" bans licenses sources) || exit; done
10 | 300 | command -v cargo-deny && git ls-remote -q https://github.com/RustSec/advisory-db HEAD | for tree in . gcgroupfs/integrations; do (cd "$tree" && cargo deny --locked check --config "$OLDPWD/deny.toml" advisories) || exit; done
90 | 900 | | cargo clippy --locked --workspace --all-targets -- -D warnings
40 | 600 | | cd gcgroupfs/integrations && cargo clippy --locked --workspace --all-targets -- -D warnings
60 | 600 | | export RUSTDOCFLAGS="-D warnings"; cargo doc --locked --workspace --no-deps --quiet && cd gcgroupfs/integrations && cargo doc --locked --workspace --no-deps --quiet
60 | 600 | | cd gcgroupfs/integrations && cargo test --locked --workspace --no-fail-fast
480 | 2400 | | cargo test --locked --workspace --exclude gcgroup-preload --no-fail-fast
60 | 600 | | RUSTFLAGS="-L native=$PWD/target/instead-of-libgcc_s -C link-arg=-Wl,@$PWD/hook/imports.options" cargo test --locked --target "$(rustc -vV | sed -n "s/^host: //p")" -p gcgroup-hook --lib --quiet
30 | 300 | | scripts/models.sh
300 | 1800 | | scripts/build.sh
8 | 300 | command -v apt-get && scripts/test-driver.sh --has | scripts/test-driver.sh
40 | 600 | command -v chromium | scripts/test-web.sh
12 | 400 | command -v systemctl | scripts/test-systemd.sh
52 | 540 | command -v apt-get && [ "$(id -u)" = 0 ] | scripts/test-cluster.sh slurm
90 | 900 | command -v debootstrap && [ "$(id -u)" = 0 ] | printf "%s\n" "trixie --database sid" "sid --database trixie" | xargs -P 2 -L 1 scripts/test-cluster.sh slurm --in
70 | 900 | command -v unshare && [ "$(id -u)" = 0 ] | scripts/test-cluster.sh ray
106 | 900 | scripts/miri.sh --has | scripts/miri.sh
112 | 900 | scripts/test-aarch64.sh --has | scripts/test-aarch64.sh
52 | 900 | command -v apt-get && [ "$(id -u)" = 0 ] | scripts/test-packages.sh
120 | 900 | command -v c++ && cargo fetch --quiet --manifest-path gcgroupfs/fuzz/Cargo.toml | scripts/fuzz.sh 20 && git diff --exit-code -- gcgroupfs/fuzz/Cargo.lock
208 | 900 | | scripts/soak.sh 3
300 | 1800 | command -v apt-get && [ "$(id -u)" = 0 ] && scripts/cluster/build-kubernetes.sh --fetch | scripts/cluster/build-kubernetes.sh && scripts/test-cluster.sh kubernetes
'

echo "=== steps, each with the seconds that it usually takes on two processors"
total=0
while IFS='|' read -r usual limit needs command; do
    [ -n "$usual" ] || continue
    printf '%5d %s\n' "$((usual))" "$command"
    total=$((total + usual))
done <<EOF
$steps
EOF
echo "=== together $((total / 60)) minutes"

# shellcheck source=scripts/contained.sh
. scripts/contained.sh
run=contained
has_namespaces || run='timeout --kill-after=10'
end=$(($(date +%s) + ${MINUTES:-80} * 60))
failed=
output=$(mktemp -d)
mkfifo "$output/pipe"
trap 'rm -rf "$output"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
while IFS='|' read -r usual limit needs command <&3; do
    [ -n "$usual" ] || continue
    printf '\n===%s\n' "$command"
    if ! timeout 600 sh -c "$needs" > /dev/null 2>&1; then
        echo "=== left out, it needs:$needs"
        continue
    fi
    began=$(date +%s)
    limit=$((limit < end - began ? limit : end - began))
    status=124
    : > "$output/step"
    if [ "$limit" -gt 0 ]; then
        tee "$output/step" < "$output/pipe" &
        tee=$!
        $run "$limit" sh -c "$command" 3<&- > "$output/pipe" 2>&1
        status=$?
        wait "$tee"
    fi
    # A test's reason can be far from the end of the output.
    [ "$status" = 0 ] || {
        printf '\n=== panics and the end of%s\n' "$command"
        grep -A 4 ' panicked at ' "$output/step" | tail -n 60
        tail -n 60 "$output/step"
    } >> "$output/ends"
    case $status in
        0) ;;
        124 | 137) failed="$failed$command (ended after $limit s)
" ;;
        *) failed="$failed$command (status $status)
" ;;
    esac
    echo "=== $(($(date +%s) - began)) s, status $status"
done 3<<EOF
$steps
EOF

if [ -n "$failed" ]; then
    cat "$output/ends"
    printf '\n=== failed:\n%s' "$failed"
    exit 1
fi
printf '\n=== passed\n'
