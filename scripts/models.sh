#!/bin/sh
# Checks the models of the protocols in shared memory with loom. hook/abi/models/README.md says what they claim.
set -eu

usage() {
    cat <<'END'
usage: scripts/models.sh [TEST-FILTER...]      arguments as cargo test takes them; --nocapture shows each weaker ordering

environment:
  LOOM_MAX_PREEMPTIONS   thread changes in one run at places where the thread could go on (2)
  CARGO_TARGET_DIR       where cargo works (<repository>/target)
END
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac

cd "$(dirname "$0")/.."
# Everything is built with another flag, so it is built elsewhere.
RUSTFLAGS="${RUSTFLAGS-} --cfg loom"
export RUSTFLAGS
cargo test --locked --profile models --package gcgroup-models --lib --target-dir "${CARGO_TARGET_DIR:-target}/loom" -- "$@"
