#!/bin/sh
# Runs the end-to-end test of one cluster engine: scripts/cluster/ENGINE.sh.
set -eu

cd "$(dirname "$0")/cluster"

usage() {
    echo "usage: scripts/test-cluster.sh ENGINE [ARGUMENT...]"
    printf 'engines:'
    for engine in slurm kubernetes ray scale; do
        [ ! -x "$engine.sh" ] || printf ' %s' "$engine"
    done
    echo
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
    slurm | kubernetes | ray | scale) [ -x "$1.sh" ] || { usage >&2; exit 2; } ;;
    *) usage >&2; exit 2 ;;
esac
engine=$1
shift
exec "./$engine.sh" "$@"
