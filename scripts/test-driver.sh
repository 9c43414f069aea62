#!/bin/sh
# Compares NVIDIA's own driver libraries with and without the preloaded library: every look-up, the error of
# cuInit and the output of nvidia-smi without a device. Unpacks Debian's packages into a temporary directory
# and installs nothing. Takes half a minute.
set -eu

usage() {
    cat <<'EOT'
usage: scripts/test-driver.sh [--has]

  --has   only fetches the packages: fails if they are out of reach

environment:
  GCGROUP_DIST      a built tree (target/dist)
  GCGROUP_DRIVERS   directory that keeps the packages (target/drivers)
EOT
}

only=no
case ${1-} in
    '') ;;
    --has) only=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

fail() {
    echo "test-driver.sh: $*" >&2
    exit 1
}

repo=$(cd "$(dirname "$0")/.." && pwd -P)
dist=${GCGROUP_DIST:-$repo/target/dist}
kept=${GCGROUP_DRIVERS:-$repo/target/drivers}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' HUP INT TERM

# fetch: downloads the packages from the non-free part of the archives that the machine has.
fetch() {
    mkdir -p "$tmp/sources" "$tmp/lists/partial" "$tmp/cache/archives/partial"
    sed 's/^Components:.*/Components: non-free/' /etc/apt/sources.list.d/debian.sources > "$tmp/sources/new.sources" || :
    sed -n 's/^\(deb .*debian[^ ]* [^ ]*\) main.*/\1 non-free/p' /etc/apt/sources.list > "$tmp/sources/old.list" || :
    options="-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$tmp/sources"
    options="$options -o Dir::State::lists=$tmp/lists -o Dir::Cache=$tmp/cache -o APT::Sandbox::User=root"
    mkdir -p "$kept"
    # shellcheck disable=SC2086  # a list of options
    apt-get $options update && (cd "$kept" && apt-get $options download libcuda1 libnvidia-ml1 nvidia-smi)
}

found=$(find "$kept" -name 'libcuda1_*.deb' 2> /dev/null || :)
[ -n "$found" ] || fetch > "$tmp/log" 2>&1 || { cat "$tmp/log" >&2; fail "Debian's non-free packages are out of reach"; }
[ "$only" = no ] || exit 0
[ -e "$dist/lib/libgcgroup.so" ] || DIST=$dist "$repo/scripts/build.sh" --debug > /dev/null
for package in "$kept"/*.deb; do
    dpkg-deb -x "$package" "$tmp/root"
done
driver=$(dirname "$(find "$tmp/root" -name libcuda.so.1 | head -n 1)")
smi=$(find "$tmp/root" -name nvidia-smi -type f -perm -100 | head -n 1)
cc -O1 -o "$tmp/every_lookup" "$repo/tests/programs/every_lookup.c" -ldl

# Every name that any driver exports, and two that none does.
cat "$repo"/tests/data/libcuda-*.symbols > "$tmp/all"
printf 'cuNoSuchFunction\n\n' >> "$tmp/all"
sort -u "$tmp/all" > "$tmp/names"

# answers WAY [VARIABLE=VALUE]...: stores what the libraries answer in that environment.
answers() {
    way=$1
    shift
    for program in "$tmp/every_lookup" "$smi" "$smi -L"; do
        status=0
        # shellcheck disable=SC2086  # a command with its options
        env "$@" LD_LIBRARY_PATH="$driver" GCGROUP_SOCKET="$tmp/none" timeout 60 $program < "$tmp/names" >> "$tmp/$way" \
            2> "$tmp/errors" || status=$?
        { cat "$tmp/errors"; echo "exit status $status"; } >> "$tmp/$way"
    done
}
answers bare
answers governed LD_PRELOAD="$dist/lib/libgcgroup.so" GCGROUP_TRACE="$tmp/trace"
grep -q 'first call: cuInit' "$tmp/trace" || fail "the hook was not loaded"
grep -q '^cuInit: dlsym 1' "$tmp/bare" || fail "the driver's library was not asked: $(head -n 5 "$tmp/bare")"
diff "$tmp/bare" "$tmp/governed" > "$tmp/difference" || { head -n 20 "$tmp/difference" >&2; fail "answers differ under the hook"; }
echo "$(basename "$(readlink -f "$driver/libcuda.so.1")"): $(wc -l < "$tmp/names") names, $(grep '^cuInit [0-9]' "$tmp/bare" | uniq): the same under the hook"
