#!/bin/sh
# Measures what the library and the daemon cost against their budgets, on an idle machine: JSON on stdout, what it
# is at on stderr. Fails if a budget is exceeded.
set -eu

usage() {
    echo "usage: scripts/bench.sh [calls|apis|instructions|exec|thaw|files|crowd|groups|swap|hierarchy|events|greedy|visitors]..."
    echo "       everything without any"
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac

cd "$(dirname "$0")/.."
GCGROUP_DIST=${DIST:-$PWD/target/dist}
export GCGROUP_DIST
DIST=$GCGROUP_DIST scripts/build.sh >&2
exec cargo bench --locked --quiet -p gcgroup-tests --bench budgets -- "$@"
