#!/bin/sh
# Measures priorities, freezes and quotas on a contended GPU against their budgets, on a machine that does nothing else:
# JSON on stdout, a table on stderr. Fails if a budget is not met. Needs the built tree alone, where there is one.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/bench-contention.sh [--sim|--gpu] [--repetitions N] [--scale X] [ARM...]

  --sim          the simulated GPU (default)
  --gpu          the machine's own
  --repetitions  runs of each arm (5)
  --scale        of the time that each run takes (1): 0.1 for a quick look
  ARM            bursts, single, long, shares, cost, idle, freeze, quota, crowd; everything without any

environment:
  DIST           the built tree (<repository>/target/dist); built if it is not there
EOF
}

repo=$(cd "$(dirname "$0")/.." && pwd -P)
DIST=${DIST:-$repo/target/dist}
export DIST
gpu=
repetitions=5
scale=1
while [ $# -gt 0 ]; do
    case $1 in
        --sim) gpu= ;;
        --gpu) gpu=--gpu ;;
        --repetitions) repetitions=${2?} && shift ;;
        --scale) scale=${2?} && shift ;;
        -h | --help) usage; exit 0 ;;
        -*) usage >&2; exit 2 ;;
        *) break ;;
    esac
    shift
done
[ -x "$DIST/bin/gcgroup-contention" ] || "$repo/scripts/build.sh" >&2
exec "$DIST/bin/gcgroup-contention" --scripts "$repo/scripts" $gpu --repetitions "$repetitions" --scale "$scale" -- "$@"
