#!/bin/sh
# Tells whether gcgroupfs works on this machine's GPU, and how well: a line for each part, and JSON. Needs a built
# tree, sh and python3. Takes a few GB of device memory, changes no setting of the device, leaves nothing behind.
set -u

usage() {
    echo "usage: scripts/gpu-check.sh [--sim] [OUTDIR]      --sim: on the simulated driver; environment: DIST"
}

sim=
case ${1-} in
    -h | --help) usage; exit 0 ;;
    --sim) sim=--sim; shift ;;
    -*) usage >&2; exit 2 ;;
esac
repo=$(cd "$(dirname "$0")/.." && pwd -P)
DIST=${DIST:-$repo/target/dist}
export DIST
[ -x "$DIST/bin/gcgroupfs" ] || { echo "gpu-check.sh: nothing built in $DIST" >&2; exit 2; }
out=${1:-gpu-check}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd -P)
tmp=$(mktemp -d) || exit 2
finish() {
    status=$?
    trap - EXIT HUP INT TERM
    [ ! -s "$tmp/daemon.pid" ] || kill "$(cat "$tmp/daemon.pid")" 2>/dev/null || :
    wait
    umount -l "$tmp/gcgroup" 2>/dev/null || :
    { echo '--- daemon'; tail -n 200 "$tmp/daemon.log"; } >> "$out/log.txt" 2>/dev/null || :
    rm -rf "$tmp"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' HUP INT TERM
mkdir "$tmp/gcgroup" "$tmp/state" "$tmp/gpu" "$tmp/parts"
export GPU_CHECK_WORK="$tmp" GCGROUP_SOCKET="$tmp/gcgroup.sock" PYTHONDONTWRITEBYTECODE=1
# What compilers of kernels would leave in a home directory.
export CUDA_CACHE_PATH="$tmp/cuda" CUPY_CACHE_DIR="$tmp/cupy" TRITON_CACHE_DIR="$tmp/triton"
if [ -n "$sim" ]; then
    export LD_LIBRARY_PATH="$DIST/simgpu" SIMGPU_DIR="$tmp/gpu"
fi
: > "$out/log.txt"

# daemon MODE...: starts it; whether it answers.
daemon() {
    "$DIST/bin/gcgroupfs" mount "$@" --state-dir "$tmp/state" >> "$tmp/daemon.log" 2>&1 &
    echo $! > "$tmp/daemon.pid"
    tries=0
    until "$DIST/bin/gcgroupfs" ls > /dev/null 2>&1 &&
        { [ "$1" = --no-fuse ] || cat "$1/gcgroup.procs" > /dev/null 2>&1; }; do
        tries=$((tries + 1))
        if [ "$tries" -ge 100 ] || ! kill -0 "$(cat "$tmp/daemon.pid")" 2>/dev/null; then
            kill -9 "$(cat "$tmp/daemon.pid")" 2>/dev/null || :
            return 1
        fi
        sleep 0.1
    done
}
GCGROUP=
if [ -e /dev/fuse ] && daemon "$tmp/gcgroup"; then
    GCGROUP=$tmp/gcgroup
elif ! daemon --no-fuse; then
    echo "FAIL daemon: does not start"
    cat "$tmp/daemon.log" >&2
    exit 1
fi
export GCGROUP
python3 "$repo/tests/gpu/check/machine.py" "$out/machine.json" $sim

# part SECONDS FILE part|probe: runs one, with everything it starts in a process group of its own.
part() {
    name=$(basename "$2" .py)
    began=$(date +%s)
    if [ "$1" -gt 0 ]; then
        timeout -k 5 "$1" python3 "$2" --json "$tmp/parts/$name.json" $sim \
            > "$tmp/parts/$name.out" 2> "$tmp/parts/$name.err" < /dev/null
    else
        echo "left out: the eight minutes are over" > "$tmp/parts/$name.out"
        false
    fi
    echo "$? $(($(date +%s) - began))" > "$tmp/parts/$name.rc"
    python3 "$repo/tests/gpu/check/verdict.py" "$tmp/parts/$name" "$out/results.json" "$3" | tee -a "$out/log.txt"
}
rm -f "$out/results.json"
# Eight minutes in all: what would begin later is left out, and said to fail.
until=$(($(date +%s) + 430))
for file in "$repo"/tests/gpu/check/parts/*.py "$repo"/tests/gpu/probe/*.py; do
    [ -e "$file" ] || continue
    left=$((until - $(date +%s)))
    [ "$left" -le 60 ] || left=60
    [ "$left" -ge 1 ] || left=0
    kind=part
    case $file in
        */probe/*)
            kind=probe
            [ "$left" -le 40 ] || left=40
            ;;
    esac
    part "$left" "$file" "$kind"
done
python3 "$repo/tests/gpu/check/verdict.py" --all "$out/results.json"
