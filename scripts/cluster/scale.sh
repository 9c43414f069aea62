#!/bin/sh
# Measures one node with 16 GPUs and 512 jobs that start and end at 50 per second, then many nodes.
#
# Asserts that every job runs with its limits and leaves nothing behind. Times are printed, not asserted.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/test-cluster.sh scale [--small]

  --small   64 jobs at 10 per second and 10 nodes: a test of half a minute

environment:
  GCGROUP_DIST   a built tree (target/dist, which is built in the release profile if it has no gcgroupfs)
  RATE           jobs that start, and end, per second (50); a busy machine carries fewer
  NODES          number of simulated nodes (100)
  SECONDS_LIMIT  limit for each of the two parts (240)
EOF
}

jobs="--jobs 512 --rate ${RATE:-50} --seconds 30"
nodes="--nodes ${NODES:-100} --jobs 1 --seconds 20"
case ${1-} in
    '') ;;
    --small)
        jobs="--jobs 64 --rate 10 --seconds 10"
        nodes="--nodes ${NODES:-10} --jobs 1 --seconds 2"
        ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

repo=$(cd "$(dirname "$0")/../.." && pwd -P)
[ "$(id -u)" = 0 ] || { echo "scale.sh: needs root: it makes namespaces" >&2; exit 1; }
unset LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH PYTHONHOME
dist=${GCGROUP_DIST:-$repo/target/dist}
[ -x "$dist/bin/gcgroupfs" ] || DIST=$dist "$repo/scripts/build.sh" > /dev/null

# shellcheck source=scripts/contained.sh
. "$repo/scripts/contained.sh"
export GCGROUP_DIST="$dist" TMPDIR=/dev/shm PYTHONDONTWRITEBYTECODE=1

# part SCRIPT ARGUMENT...
part() {
    script=$1
    shift
    contained "${SECONDS_LIMIT:-240}" python3 "$repo/tests/scale/$script.py" "$@"
}

# The lists are words.
# shellcheck disable=SC2086
part jobs $jobs
# shellcheck disable=SC2086
part nodes $nodes
echo "CPUs: $(nproc); load average: $(cut -d ' ' -f 1-3 /proc/loadavg)"
