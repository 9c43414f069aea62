#!/bin/sh
# Tests gcgroup_ray with Ray: one cluster of several nodes, and a node of a user without privileges.
#
# Everything runs in namespaces that end with this script (contained.sh): Ray is reachable from nowhere.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/test-cluster.sh ray [TEST...]

  TEST   as test_cluster.ClusterTest.test_share_in_placement_group; all by default

environment:
  GCGROUP_DIST   a built tree (target/dist, which is built if it has no gcgroupfs)
  SECONDS_LIMIT  limit for all tests together (420)
EOF
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac

fail() {
    echo "ray.sh: $*" >&2
    exit 1
}

repo=$(cd "$(dirname "$0")/../.." && pwd -P)
[ "$(id -u)" = 0 ] || fail "needs root: it makes namespaces and runs programs as another user"
unset LD_PRELOAD LD_LIBRARY_PATH RAY_ADDRESS PYTHONPATH PYTHONHOME
dist=${GCGROUP_DIST:-$repo/target/dist}
[ -x "$dist/bin/gcgroupfs" ] || DIST=$dist "$repo/scripts/build.sh" --debug > /dev/null

# Python environment with Ray, once for each list of requirements.
wanted=$repo/tests/ray/requirements.txt
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gcgroupfs/ray
venv=$cache/venv
mkdir -p "$cache"
(
    flock 9
    cmp -s "$wanted" "$venv/requirements.txt" && exit
    echo "Installing Ray into $venv (once) ..."
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/requirements.txt"
) 9> "$cache/lock"

cd "$repo/gcgroupfs/integrations/ray"
export PYTHONDONTWRITEBYTECODE=1
"$venv/bin/ruff" check --no-cache --quiet . "$repo/tests/ray"
"$venv/bin/ruff" check --no-cache --quiet --config "$repo/tests/ray/ruff.toml" "$repo/scripts/cluster/common"
"$venv/bin/ruff" format --no-cache --check --quiet . "$repo/tests/ray"
"$venv/bin/ruff" format --no-cache --check --quiet --config "$repo/tests/ray/ruff.toml" \
    "$repo/scripts/cluster/common"
"$venv/bin/mypy" --cache-dir=/dev/null gcgroup_ray
"$venv/bin/python" -m unittest discover -q -s tests

# A short path: Ray makes sockets in it.
tmp=/dev/shm/w
export GCGROUP_DIST="$dist" HOME="$tmp/home" TMPDIR="$tmp" RAY_TMPDIR="$tmp/ray" RAY_USAGE_STATS_ENABLED=0
export PYTHONPATH="$repo/gcgroupfs/integrations/ray:$repo/tests/ray:$repo/scripts/cluster/common" PATH="$venv/bin:$PATH"
[ $# -gt 0 ] || set -- test_cluster test_user
cd "$repo/tests/ray"
# shellcheck source=scripts/contained.sh
. "$repo/scripts/contained.sh"
# shellcheck disable=SC2016  # the inner shell expands it
contained "${SECONDS_LIMIT:-420}" --net sh -c 'mkdir -p -m 755 "$HOME" "$RAY_TMPDIR" && busybox ip link set lo up &&
    exec python -m unittest --verbose "$@"' ray "$@"
