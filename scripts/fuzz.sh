#!/bin/sh
# Fuzzes what strangers can send to the daemon: messages, writes, their blocks of memory, the state file.
# Needs rustup's nightly toolchain and cargo-fuzz. What is found stays in gcgroupfs/fuzz/artifacts.
set -eu

usage() {
    echo "usage: scripts/fuzz.sh [SECONDS [TARGET...]]      60 seconds, and every target, by default"
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac
seconds=${1:-60}
[ $# = 0 ] || shift

cd "$(dirname "$0")/../gcgroupfs/fuzz"
[ $# -gt 0 ] || for program in targets/*.rs; do
    set -- "$@" "$(basename "$program" .rs)"
done
target=${CARGO_TARGET_DIR:-$PWD/../../target}/fuzz
cargo +nightly fuzz build --target-dir "$target"
for name; do
    # New inputs go to the first directory; the seeds are read.
    mkdir -p "$target/corpus/$name"
    cargo +nightly fuzz run --target-dir "$target" "$name" "$target/corpus/$name" "seeds/$name" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
done
