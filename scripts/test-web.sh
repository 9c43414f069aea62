#!/bin/sh
# Tests the exporter's page in headless Chromium (scripts/web/page.py): with a daemon on simulated GPUs, and
# governed processes and groups of which some have hostile names. Everything is in namespaces, which end with
# the script. Takes a minute. Run as root.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/test-web.sh

environment:
  GCGROUP_DIST   a built tree (target/dist, which is built if it has no exporter)
EOF
}

case ${1-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

repo=$(cd "$(dirname "$0")/.." && pwd -P)
dist=${GCGROUP_DIST:-$repo/target/dist}
[ -x "$dist/bin/gcgroup-exporter" ] || DIST=$dist "$repo/scripts/build.sh" --debug > /dev/null
command -v chromium > /dev/null || {
    echo "test-web.sh: needs chromium: scripts/setup-debian.sh" >&2
    exit 1
}

if [ -z "${INSIDE-}" ]; then
    # shellcheck source=scripts/contained.sh
    . "$repo/scripts/contained.sh"
    INSIDE=yes contained 500 --net "$0"
    exit
fi
busybox ip link set lo up
mkdir /dev/shm/home
export HOME=/dev/shm/home TMPDIR=/dev/shm
unset LD_PRELOAD LD_LIBRARY_PATH

# A kernel or container in which the browser itself does not run is no fault of the page.
timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --dump-dom 'data:text/html,<p>fine' \
    2> /dev/shm/try.log | grep -q fine || {
    echo "test-web.sh: left out, chromium does not run here"
    exit 0
}
PYTHONDONTWRITEBYTECODE=1 exec python3 "$repo/scripts/web/page.py" "$dist"
