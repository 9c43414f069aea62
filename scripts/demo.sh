#!/bin/sh
# Demonstrates gcgroupfs: builds it, mounts it in a temporary directory, starts a CUDA program and controls
# it with cat and echo. Uses the simulated GPU, or with --gpu the real one. Removes everything at the end.
set -eu

usage() {
    echo "usage: scripts/demo.sh [--gpu]      --gpu: the real driver instead of the simulated one"
}

gpu=simulated
for arg; do
    case $arg in
        --gpu) gpu=real ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done

repo=$(cd "$(dirname "$0")/.." && pwd -P)
# GCGROUP_BUILT: a tree that was built before.
dist=${GCGROUP_BUILT:-${DIST:-$repo/target/dist-demo}}
# has_driver: whether programs find the driver's library, in LD_LIBRARY_PATH or the loader's cache.
has_driver() {
    echo "${LD_LIBRARY_PATH-}:" | tr ':' '\n' | while read -r directory; do
        [ ! -e "${directory:-.}/libcuda.so.1" ] || echo found
    done | grep -q found || ldconfig -p | grep -q 'libcuda\.so\.1'
}

if [ "$gpu" = real ] && ! has_driver; then
    echo "demo.sh: no libcuda.so.1 here; without --gpu it runs on the simulated GPU" >&2
    exit 1
fi
if [ -z "${GCGROUP_BUILT-}" ]; then
    echo "Building what this runs (once; about two minutes) ..."
    DIST=$dist "$repo/scripts/build.sh" --demo > /dev/null
fi

tmp=$(mktemp -d)
daemon=''
batch=''
client=''
finish() {
    status=$?
    trap - EXIT HUP INT TERM
    exec 8>&- || :
    # shellcheck disable=SC2086  # none, one or two pids
    [ -z "$batch$client" ] || kill $batch $client 2>/dev/null || :
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || :
    wait
    [ "$status" = 0 ] || cat "$tmp/daemon.log" >&2 2>/dev/null || :
    rm -rf "$tmp"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' HUP INT TERM
mkdir "$tmp/gcgroup" "$tmp/run" "$tmp/gpu"
PATH=$dist/bin:$PATH
export GCGROUP_SOCKET="$tmp/gcgroup.sock"
if [ "$gpu" = simulated ]; then
    export LD_LIBRARY_PATH="$dist/simgpu" SIMGPU_DIR="$tmp/gpu"
fi

say() {
    printf '\n\033[1m# %s\033[0m\n' "$*"
}
# run COMMAND…: prints the command line and executes it in the directory of the mount.
run() {
    printf '$ %s\n' "$*"
    (cd "$tmp/gcgroup" && eval "$*")
}
# until_true COMMAND…: waits at most one minute until the command succeeds.
until_true() {
    tries=0
    until (cd "$tmp/gcgroup" && eval "$*") > /dev/null 2>&1; do
        tries=$((tries + 1))
        # A zombie until it is waited for.
        grep -q '^State:[[:space:]]*[DRSTt]' "/proc/$daemon/status" || { echo "demo.sh: the daemon has ended" >&2; exit 1; }
        [ "$tries" -lt 600 ] || { echo "demo.sh: timed out: $*" >&2; exit 1; }
        sleep 0.1
    done
}
# tell LINE: sends a line to the interactive client and prints its answer.
tell() {
    printf 'client> %s\n' "$1"
    echo "$1" >&8
    answered=$((answered + 1))
    until_true "[ \$(wc -l < '$tmp/client') -ge $answered ]"
    printf '        %s\n' "$(sed -n "${answered}p" "$tmp/client")"
}

say "The daemon, in the foreground of another terminal (here in a temporary directory)"
printf '$ gcgroupfs mount /gcgroup\n'
gcgroupfs mount "$tmp/gcgroup" --socket "$GCGROUP_SOCKET" --state-dir "$tmp/run" 2> "$tmp/daemon.log" &
daemon=$!
until_true 'cat gcgroup.procs && gcgroupfs ls'
run cat devices

say "A batch job on the GPU: it knows nothing of gcgroupfs"
printf '$ gcgroupfs run -- gcgroup-load throughput &\n'
gcgroupfs run -- gcgroup-load throughput --duration 3600 > "$tmp/batch" &
batch=$!
until_true "grep -q ready '$tmp/batch'"
run ls "$batch"
run cat "$batch/gcgroup.stat"
run sleep 1
run cat "$batch/gcgroup.stat"

say "Freeze it: no further launch is submitted, what was queued drains"
run "echo 1 > $batch/compute.freeze"
run gcgroupfs wait "$batch/gcgroup.events" frozen=1
run cat "$batch/gcgroup.events"
run cat "$batch/gcgroup.stat"
run sleep 1
run cat "$batch/gcgroup.stat"
before=$(sed -n 's/nr_submitted_kernels: //p' "$tmp/gcgroup/$batch/gcgroup.stat")

say "Thaw it, and it goes on"
run "echo 0 > $batch/compute.freeze"
run sleep 1
run grep nr_submitted "$batch/gcgroup.stat"
after=$(sed -n 's/nr_submitted_kernels: //p' "$tmp/gcgroup/$batch/gcgroup.stat")
[ "$after" -gt "$before" ] || { echo "demo.sh: the batch job did not continue" >&2; exit 1; }

say "A second program, driven by hand"
mkfifo "$tmp/stdin"
printf '$ gcgroupfs run -- gcgroup-load obey\n'
gcgroupfs run -- gcgroup-load obey < "$tmp/stdin" > "$tmp/client" &
client=$!
exec 8> "$tmp/stdin"
until_true "grep -q ready '$tmp/client'"
answered=$(wc -l < "$tmp/client")
run gcgroupfs ls
tell "alloc linear 256M"
run cat "$client/memory.current"

say "Cap its memory at 512 MiB more: the cap is what it sees, and where it is refused"
limit=$(($(cat "$tmp/gcgroup/$client/memory.current") + 536870912))
run "echo $limit > $client/memory.limit"
tell meminfo
tell "alloc linear 512M"
tell "alloc linear 1"
run cat "$client/memory.events"
grep -q '^refused CUDA_ERROR_OUT_OF_MEMORY' "$tmp/client" || { echo "demo.sh: the allocation was not refused" >&2; exit 1; }

say "It exits: its directory is gone, its memory free"
tell "free all"
echo quit >&8
exec 8>&-
wait "$client"
client=''
until_true "[ \$(wc -l < gcgroup.procs) = 1 ]"
run ls
run cat exited

say "That is all. Nothing is left behind."
