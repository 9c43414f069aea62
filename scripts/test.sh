#!/bin/sh
# Runs all checks, the cheapest first, for contributors and for CI. Sets up a Debian machine first. Checks
# whose tools are missing even then are skipped with a message; tests fail if their tools are missing.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/test.sh [--quick] [TEST-FILTER...]

  --quick    tests only: no lints, documentation, release build, fuzzing, soak or packages
  TEST-FILTER  passed to cargo test

environment:
  MINUTES            limit for the whole run if stdout is not a terminal (80)
  RUST_TEST_THREADS  number of tests at a time (twice the number of processors)
EOF
}

quick=no
case ${1-} in
    -h | --help) usage; exit 0 ;;
    --quick) quick=yes; shift ;;
esac

cd "$(dirname "$0")/.."

integrations=gcgroupfs/integrations/Cargo.toml
end=$(($(date +%s) + ${MINUTES:-80} * 60))

step() {
    began=$(date +%s)
    printf '\n=== %s\n' "$*"
    status=0
    if [ -t 1 ]; then
        "$@" || status=$?
    else
        # At least 1 s: timeout(1) takes 0 as no limit.
        left=$((end > began ? end - began : 1))
        timeout --kill-after=30 "$left" "$@" || status=$?
    fi
    case $status in
        124 | 137) echo "=== ended: there were $left s left of ${MINUTES:-80} minutes" ;;
    esac
    echo "=== $(($(date +%s) - began)) s"
    return "$status"
}

# have PROGRAM WHAT: true if the program exists, else prints what is skipped.
have() {
    command -v "$1" > /dev/null && return
    echo "=== left out, no $1 here: $2"
    return 1
}

if [ "$quick" = no ]; then
    if have apt-get "packages and Python clients, which the tests expect to be there"; then
        step env KUBERNETES=yes scripts/setup-debian.sh
    fi
    step cargo fmt --all --check
    step cargo fmt --all --check --manifest-path "$integrations"
    if have shellcheck "the scripts' lints"; then
        step shellcheck -x scripts/*.sh scripts/cluster/*.sh scripts/cluster/common/*.sh gcgroupfs/integrations/slurm/tests/* \
            gcgroupfs/integrations/slurm/scripts/* scripts/gc-* .ci/run
    fi
    if have python3 "wording and layout of comments and documents"; then
        step scripts/check-text.py
        step scripts/crates.py --check
    fi
    if have cargo-deny "licences and advisories of dependencies"; then
        step cargo deny --locked --log-level error check bans licenses sources
        step cargo deny --manifest-path "$integrations" --locked --log-level error \
            check --config "$PWD/deny.toml" bans licenses sources
        if git ls-remote -q https://github.com/RustSec/advisory-db HEAD > /dev/null 2>&1; then
            step cargo deny --locked check advisories
            step cargo deny --manifest-path "$integrations" --locked check --config "$PWD/deny.toml" advisories
        else
            echo "=== left out, the advisory database is out of reach: advisories of dependencies"
        fi
    fi
    for manifest in Cargo.toml "$integrations"; do
        step cargo clippy --locked --manifest-path "$manifest" --workspace --all-targets -- -D warnings
        step env RUSTDOCFLAGS='-D warnings' cargo doc --locked --manifest-path "$manifest" --workspace --no-deps --quiet
    done
    # Also checks the preloaded libraries' sizes and dependencies.
    step scripts/build.sh
fi
if [ "$quick" = no ]; then
    step scripts/models.sh
    if scripts/miri.sh --has; then
        step scripts/miri.sh
    else
        echo "=== left out, no nightly Rust with Miri here: undefined behaviour in unit tests"
    fi
fi
# Without the preload library, which has no allocator or unwinder and so cannot have unit tests.
# With default signals: a shell's background job would ignore SIGINT, and so would the tests' programs.
# Most of the time an integration test waits for other processes: more threads than processors.
threads=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
step cargo test --locked --manifest-path "$integrations" --workspace -- "$@"
step env --default-signal RUST_TEST_THREADS="$threads" cargo test --locked --workspace \
    --exclude gcgroup-preload -- "$@"
if [ "$quick" = no ]; then
    # The hook's unit tests once more, linked as scripts/build.sh links the library: with its own unwinder.
    # The target keeps these options from build scripts.
    host=$(rustc -vV | sed -n 's/^host: //p')
    options="-L native=$PWD/target/instead-of-libgcc_s -C link-arg=-Wl,@$PWD/hook/imports.options"
    step env RUSTFLAGS="$options" cargo test --locked --target "$host" -p gcgroup-hook --lib --quiet
    if scripts/test-aarch64.sh --has; then
        step timeout --kill-after=10 900 env --default-signal scripts/test-aarch64.sh
    else
        echo "=== left out, no cross compiler, emulator or Rust target here: the libraries for AArch64"
    fi
    if have chromium "the page of the exporter in a browser"; then
        step timeout --kill-after=10 600 scripts/test-web.sh
    fi
    if have systemctl "the service under systemd"; then
        step timeout --kill-after=10 400 scripts/test-systemd.sh
    fi
    if have c++ "what fuzzers find"; then
        if cargo fetch --quiet --manifest-path gcgroupfs/fuzz/Cargo.toml; then
            step scripts/fuzz.sh 20
        else
            echo "=== left out, its dependencies are out of reach: what fuzzers find"
        fi
    fi
    step scripts/soak.sh 3
    if have apt-get "a Slurm cluster" && [ "$(id -u)" = 0 ]; then
        step timeout --kill-after=30 540 scripts/test-cluster.sh slurm
    fi
    if have apt-get "installation, upgrade and purge of the packages" && [ "$(id -u)" = 0 ]; then
        step scripts/test-packages.sh
    fi
    if [ "$(id -u)" = 0 ] && have unshare "the cluster engines"; then
        step timeout --kill-after=30 900 scripts/test-cluster.sh ray
    fi
    if [ "$(id -u)" = 0 ] && have apt-get "the Kubernetes plugin on a real node"; then
        if scripts/cluster/build-kubernetes.sh --fetch; then
            step timeout --kill-after=10 900 scripts/cluster/build-kubernetes.sh
            step timeout --kill-after=10 900 scripts/test-cluster.sh kubernetes
        else
            echo "=== left out, its packages are out of reach: the Kubernetes plugin on a real node"
        fi
    fi
fi
