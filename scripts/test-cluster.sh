#!/bin/sh
# Tests the integration with a cluster engine, with the real engine on this machine and simulated GPUs. Sets
# everything up, and removes it in every case. A row for each engine: scripts/cluster/ENGINE.sh.
set -eu

directory=$(cd "$(dirname "$0")/cluster" && pwd -P)

usage() {
    echo "usage: scripts/test-cluster.sh ENGINE [ARGUMENT...]"
    echo
    for script in "$directory"/*.sh; do
        # The first sentence of the script's comment.
        printf '  %-12s' "$(basename "$script" .sh)"
        sed -n '2s/^# //p' "$script"
    done
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
    '' | *[!a-z]*) usage >&2; exit 2 ;;
esac
engine=$1
shift
[ -x "$directory/$engine.sh" ] || { usage >&2; exit 2; }
exec "$directory/$engine.sh" "$@"
