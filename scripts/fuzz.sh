#!/bin/sh
# Fuzzes what strangers can send to the daemon: messages, writes, their blocks of memory, configuration, the state file.
# Needs what Rust needs, and a C++ compiler for libFuzzer; no nightly toolchain and no cargo-fuzz, which can run the
# targets too. What is found stays in gcgroupfs/fuzz/artifacts: mended, it becomes a seed.
set -eu

usage() {
    cat <<'END'
usage: scripts/fuzz.sh [SECONDS [TARGET...]]      60 seconds each, and every target, by default

environment:
  JOBS               targets at a time (as many as there are processors)
  CARGO_TARGET_DIR   where cargo works, and where what has been learnt stays (<repository>/target)
END
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac
seconds=${1:-60}
[ $# = 0 ] || shift
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}

cd "$(dirname "$0")/../gcgroupfs/fuzz"
[ $# -gt 0 ] || for program in targets/*.rs; do
    set -- "$@" "$(basename "$program" .rs)"
done

# What cargo-fuzz has the compiler do but for the sanitizer, which is not stable. That a platform is named keeps it
# from what the compiler itself runs.
RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1 -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
target=${CARGO_TARGET_DIR:-$(cd ../.. && pwd -P)/target}/fuzz
platform=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS
cargo build --release --target-dir "$target" --target "$platform"

# fuzz PROGRAMS SECONDS TARGET-DIRECTORY NAME
# shellcheck disable=SC2016  # for the shells that xargs starts
fuzz='
    # New inputs go to the first directory; the seeds are read.
    corpus=$3/corpus/$4
    log=$3/$4.log
    mkdir -p "$corpus"
    # It ends by itself, and each input of its own is stopped after 10 s.
    if timeout --foreground --kill-after=30 $(($2 + 300)) \
        "$1/$4" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="artifacts/$4-" "$corpus" "seeds/$4" > "$log" 2>&1
    then
        echo "$4: $(sed -n "s/^stat::number_of_executed_units: *//p" "$log") runs, nothing found"
    else
        tail -n 40 "$log"
        echo "$4: failed"
        exit 1
    fi'
mkdir -p artifacts
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c "$fuzz" fuzz "$target/$platform/release" "$seconds" "$target"
