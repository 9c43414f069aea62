#!/bin/sh
# Measures priorities, freezes and quotas on a contended GPU against their budgets. Run it on an idle
# machine. Writes JSON to stdout and a table to stderr; fails if a budget is not met. Uses the built tree if
# there is one.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/bench-contention.sh [--sim|--gpu] [--repetitions N] [--scale X] [ARM...]

  --sim          the simulated GPU (default)
  --gpu          this machine's GPU
  --repetitions  runs of each arm (5)
  --scale        factor of each run's duration (1); 0.1 gives a quick estimate
  ARM            bursts, single, long, gaps, shares, tenants, unread, paced, brief, cost, idle, freeze, quota,
                 debts, unequal, crowd (all)

environment:
  DIST           the built tree (<repository>/target/dist); built if missing
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
