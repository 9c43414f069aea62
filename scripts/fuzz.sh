#!/bin/sh
# Fuzzes the daemon's untrusted input: messages, writes, usage blocks, configuration and the state file.
# Needs Rust and a C++ compiler for libFuzzer, but no nightly toolchain and no cargo-fuzz, which can also
# run the targets. Failing inputs are stored in gcgroupfs/fuzz/artifacts; add each to the seeds once it is
# fixed.
set -eu

usage() {
    cat <<'END'
usage: scripts/fuzz.sh [SECONDS [TARGET...]]      60 seconds each, and every target, by default

environment:
  JOBS               targets that run in parallel (number of processors)
  CARGO_TARGET_DIR   cargo's build directory and the corpora (<repository>/target)
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

# The compiler flags of cargo-fuzz without the sanitizer, which needs nightly. Naming the target platform
# keeps the flags from build scripts and procedural macros.
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
    # The program ends by itself and stops each input after 10 s.
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
