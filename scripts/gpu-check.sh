#!/bin/sh
# Checks that gcgroupfs works on this machine's GPU and measures it: prints a line and writes JSON for each
# part. Needs a built tree, sh and python3. Uses a few GB of device memory, changes no device setting and
# removes everything at the end.
#
#   scripts/gpu-check.sh [--sim] [--list] [--plan PLAN | --parts NAME,...] [OPTION...] [OUTDIR]
#
# environment: DIST, a built tree (target/dist)
set -u

repo=$(cd "$(dirname "$0")/.." && pwd -P)
DIST=${DIST:-$repo/target/dist}
command -v python3 > /dev/null || { echo "gpu-check.sh: no python3" >&2; exit 2; }
case " $* " in
    *' --list '* | *' --help '* | *' -h '*) ;;
    *) [ -x "$DIST/bin/gcgroupfs" ] || { echo "gpu-check.sh: nothing built in $DIST" >&2; exit 2; } ;;
esac
tmp=$(mktemp -d) || exit 2
# shellcheck disable=SC2317  # called by the trap
finish() {
    status=$?
    trap - EXIT
    trap '' HUP INT TERM
    [ -z "$check" ] || { kill "$check"; wait "$check"; }
    # In case the part that cleans up was killed.
    [ ! -s "$tmp/part.pid" ] || kill -9 "-$(cat "$tmp/part.pid")" 2> /dev/null || :
    [ ! -s "$tmp/daemon.pid" ] || kill -9 "$(cat "$tmp/daemon.pid")" 2> /dev/null || :
    umount -l "$tmp/gcgroup" 2> /dev/null || :
    rm -rf "$tmp"
    exit "$status"
}
check=
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
export DIST GPU_CHECK_WORK="$tmp" GCGROUP_SOCKET="$tmp/gcgroup.sock" PYTHONDONTWRITEBYTECODE=1
# Caches that kernel compilers would leave in the home directory.
export CUDA_CACHE_PATH="$tmp/cuda" CUPY_CACHE_DIR="$tmp/cupy" TRITON_CACHE_DIR="$tmp/triton" NUMBA_CACHE_DIR="$tmp/numba"
python3 "$repo/tests/gpu/check/run.py" "$@" &
check=$!
wait "$check"
status=$?
check=
exit "$status"
