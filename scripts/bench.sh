#!/bin/sh
# Measures the cost of the library and the daemon against their budgets. Run it on an idle machine. Writes
# JSON to stdout and progress to stderr; fails if a budget is exceeded.
set -eu

usage() {
    echo "usage: scripts/bench.sh [calls|apis|instructions|exec|thaw|files|crowd|groups|swap|turns|idle|hierarchy|events|greedy|connections]..."
    echo "       all by default"
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac

cd "$(dirname "$0")/.."
GCGROUP_DIST=${DIST:-$PWD/target/dist}
export GCGROUP_DIST
DIST=$GCGROUP_DIST scripts/build.sh >&2
exec cargo bench --locked --quiet -p gcgroup-tests --bench budgets -- "$@"
