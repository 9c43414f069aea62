#!/bin/sh
# Tests the exporter's page in headless Chromium: starts a daemon on simulated GPUs, governed processes and
# groups with hostile names, and the exporter, and looks at the document that the page has made. Everything is
# in namespaces, which end with the script. Takes half a minute. Run as root.
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

fail() {
    echo "test-web.sh: $*" >&2
    exit 1
}

repo=$(cd "$(dirname "$0")/.." && pwd -P)
dist=${GCGROUP_DIST:-$repo/target/dist}
[ -x "$dist/bin/gcgroup-exporter" ] || DIST=$dist "$repo/scripts/build.sh" --debug > /dev/null
command -v chromium > /dev/null || fail "needs chromium: scripts/setup-debian.sh"

if [ -z "${INSIDE-}" ]; then
    # shellcheck source=scripts/contained.sh
    . "$repo/scripts/contained.sh"
    INSIDE=yes contained 500 --net "$0"
    exit
fi
tmp=/dev/shm/web
trap '[ "$?" = 0 ] || tail -n 40 "$tmp"/*.log >&2' EXIT
busybox ip link set lo up

# until_true COMMAND...: waits at most one minute until the command succeeds.
until_true() {
    tries=0
    until "$@" > /dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || fail "timed out: $*"
        sleep 0.1
    done
}

mkdir "$tmp" "$tmp/run" "$tmp/gpu" "$tmp/mnt" "$tmp/home"
export GCGROUP_SOCKET="$tmp/gcgroup.sock"
unset LD_PRELOAD LD_LIBRARY_PATH

# simulated COMMAND...: runs a command on two simulated GPUs.
simulated() {
    exec env LD_LIBRARY_PATH="$dist/simgpu" SIMGPU_DIR="$tmp/gpu" SIMGPU_DEVICES=2 "$@"
}

# A kernel or container in which the browser itself does not run is no fault of the page.
HOME=$tmp/home timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --user-data-dir="$tmp/profile-try" \
    --dump-dom 'data:text/html,<p>fine' 2> "$tmp/try.log" | grep -q fine || {
    echo "test-web.sh: left out, chromium does not run here"
    exit 0
}

simulated "$dist/bin/gcgroupfs" mount "$tmp/mnt" --no-fuse --socket "$GCGROUP_SOCKET" --state-dir "$tmp/run" \
    2> "$tmp/daemon.log" &
until_true "$dist/bin/gcgroupfs" get devices

# Names that would change the document if they became HTML. A process name has at most 15 bytes.
comm='<img src=x id=y'
group='<img src=x onerror=document.title="pwned">'
cp "$dist/bin/gcgroup-load" "$tmp/$comm"
"$dist/bin/gcgroupfs" mkdir "$group"
for number in 1 2; do
    simulated "$dist/bin/gcgroupfs" run --group "$group" -- "$tmp/$comm" throughput --duration 3600 \
        > "$tmp/load$number.log" 2>&1 &
    pid=$!
    until_true grep -q ready "$tmp/load$number.log"
done
"$dist/bin/gcgroupfs" set "$pid/compute.freeze" 1

echo 0123456789abcdef0123456789abcdef > "$tmp/token"
chmod 600 "$tmp/token"

# start_exporter NAME ARGUMENT...: sets $url.
start_exporter() {
    name=$1
    shift
    "$dist/bin/gcgroup-exporter" --listen 127.0.0.1:0 "$@" 2> "$tmp/$name.log" &
    until_true grep -q '^gcgroup-exporter: ready: ' "$tmp/$name.log"
    url=$(sed -n 's/^gcgroup-exporter: ready: //p' "$tmp/$name.log")
}

is_shown() {
    curl --silent --noproxy '*' --max-time 20 "${url}state.json" | grep -q "$1"
}

# document NAME: writes the document that a browser makes of $url to $tmp/NAME.html.
document() {
    HOME=$tmp/home timeout 90 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --disable-quic --no-first-run --disable-background-networking --disable-component-update \
        --disable-sync --no-proxy-server --user-data-dir="$tmp/profile-$1" --enable-logging=stderr \
        --window-size=390,844 --virtual-time-budget=5000 --dump-dom "$url" \
        > "$tmp/$1.html" 2> "$tmp/$1.browser" || fail "chromium ended with $?"
}

# has NAME TEXT / has_not NAME TEXT: whether a document contains a text.
has() {
    grep -qF -- "$2" "$tmp/$1.html" || { cat "$tmp/$1.html" >&2; fail "the page has no $2"; }
}
has_not() {
    ! grep -qF -- "$2" "$tmp/$1.html" || { cat "$tmp/$1.html" >&2; fail "the page has $2"; }
}

start_exporter exporter
# A process waits, and the history has three points: a line, even if the first was read before the daemon had
# sampled the GPUs.
until_true is_shown '"reason":"frozen"'
until_true is_shown '"time":[0-9]*},{"gpus".*"time":[0-9]*},{"gpus"'
document page
has page '<title>gcgroupfs</title>'
has page '>updated '
has page 'GPU 1: utilization and memory in the last 30 minutes'
grep -qE 'class="memory" d="M[0-9]+,[0-9.]+L' "$tmp/page.html" || fail "the page draws no line"
has page "$pid (&lt;img src=x id=y): frozen;"
has page '/&lt;img src=x onerror=document.title="pwned"&gt;</td>'
has page '<td>root</td>'
has page '<th>priority</th>'
has_not page '<img'
has_not page 'pwned</title>'
has_not page '<button'
# Errors of scripts and refusals of the policy; [DOM] is advice about passwords.
! grep CONSOLE "$tmp/page.browser" | grep -vF '[DOM]' >&2 || fail "the page has errors"

start_exporter writable --token-file "$tmp/token"
document actions
has actions '<button type="button">thaw</button>'
has actions '<button type="button">freeze</button>'
echo "the page shows GPUs, groups, processes and waits; hostile names stay text"
