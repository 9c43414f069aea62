#!/bin/sh
# Soak test (tests/it/soak.rs): two hundred programs start, use simulated GPUs and end, others move memory
# and compare it, while control files are written at random and faults are injected: programs and daemons
# are stopped and killed, among others. A third of the time each: under a supervisor, with daemons started
# by hand, and without a daemon. Afterwards no process, file or charge may be left over. Prints the number
# of faults, the bytes verified and the losses.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/soak.sh [MINUTES]      3 by default

environment:
  DIST   output directory of scripts/build.sh (<repository>/target/dist)
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
# Release programs: two hundred debug ones are too slow for a small machine.
DIST=$GCGROUP_DIST scripts/build.sh >&2
cargo test --locked -p gcgroup-tests --test it --no-run
# The test limits itself; this limit is for a test that cannot.
exec timeout --foreground --kill-after=30 $((minutes + 12))m \
    cargo test --locked -p gcgroup-tests --test it -- --ignored --test-threads 1 --nocapture soak::
