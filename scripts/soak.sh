#!/bin/sh
# Two hundred programs come, use simulated GPUs and go, the memory of others moves and is compared, while control files
# are written at random, programs and the daemon are stopped, and the daemon is killed every twenty seconds: under a
# supervisor, started again by hand, and left alone, a third of the time each. In the end nothing may be left over and
# everything must add up (tests/it/soak.rs). Prints how often each fault was injected, what was verified and what was lost.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/soak.sh [MINUTES]      3 by default

environment:
  DIST   the tree that scripts/build.sh leaves there (<repository>/target/dist)
EOF
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac
minutes=${1:-3}
case $minutes in
    '' | *[!0-9]* | 0) usage >&2; exit 2 ;;
esac

cd "$(dirname "$0")/.."
GCGROUP_DIST=${DIST:-$PWD/target/dist}
GCGROUP_SOAK_SECONDS=$((minutes * 60 / 3))
export GCGROUP_DIST GCGROUP_SOAK_SECONDS
# Fast programs: two hundred slow ones are too many for a small machine.
DIST=$GCGROUP_DIST scripts/build.sh >&2
cargo test --locked -p gcgroup-tests --test it --no-run
# It ends by itself, also if it hangs; this is for what cannot.
exec timeout --foreground --kill-after=30 $((minutes + 12))m \
    cargo test --locked -p gcgroup-tests --test it -- --ignored --test-threads 1 --nocapture soak::
