#!/bin/sh
# Checks the loom models of the shared-memory protocols. hook/abi/models/README.md lists their claims.
set -eu

usage() {
    cat <<'END'
usage: scripts/models.sh [TEST-FILTER...]      arguments as cargo test takes them; --nocapture shows each weaker ordering

environment:
  LOOM_MAX_PREEMPTIONS   maximum number of preemptions in one execution (2)
  CARGO_TARGET_DIR       cargo's build directory (<repository>/target)
END
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac

cd "$(dirname "$0")/.."
# A separate build directory, because the flag differs.
RUSTFLAGS="${RUSTFLAGS-} --cfg loom"
export RUSTFLAGS
cargo test --locked --profile models --package gcgroup-models --lib --target-dir "${CARGO_TARGET_DIR:-target}/loom" -- "$@"
