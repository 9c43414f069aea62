#!/bin/sh
# Tests the libraries for AArch64 on any Debian machine: builds them with Debian's cross compiler, and runs
# under qemu-user the unit tests of hook and interface, and governed programs on the simulated driver. The
# daemon is that of this machine: both sides agree on the layout of the shared blocks.
#
# The emulator orders memory accesses as this machine does, so weak ordering is not tested here: the models
# are (scripts/models.sh).
set -eu

usage() {
    cat <<'EOT'
usage: scripts/test-aarch64.sh [--has] [TEST-FILTER...]

  --has        only tells by its exit status whether compiler, emulator and Rust's target are there
  TEST-FILTER  integration tests to run with programs for AArch64

environment:
  GCGROUP_DIST   built tree of this machine (one is built if unset)
EOT
}

triple=aarch64-unknown-linux-gnu
has() {
    command -v aarch64-linux-gnu-gcc > /dev/null && command -v qemu-aarch64 > /dev/null &&
        [ -d "$(rustc --print sysroot)/lib/rustlib/$triple" ]
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
    --has)
        if has; then exit 0; else exit 1; fi
        ;;
    -*) usage >&2; exit 2 ;;
esac

repo=$(cd "$(dirname "$0")/.." && pwd -P)
cd "$repo"
has || {
    echo "test-aarch64.sh: run scripts/setup-debian.sh and rustup target add $triple" >&2
    exit 1
}
target=${CARGO_TARGET_DIR:-$repo/target}
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"

# The whole tree, of which scripts/test-packages.sh makes packages.
DIST=$target/dist-aarch64 scripts/build.sh --debug --target "$triple"

# The emulator accepts madvise(2) for children without effect, and does not map shared memory again by
# mremap(2).
cargo test --locked --target "$triple" -p gcgroup-abi -p gcgroup-hook --lib -- \
    --skip closed_usage_file_is_replaced_without_lost_counts --skip refile_drops_unused_grants \
    --skip child_finds_zeroes --skip child_without_fork_handler_is_detected

[ $# -gt 0 ] || set -- end_to_end:: \
    built::hook_exports built::preload_library_exports \
    freeze::no_kernel_starts_after_frozen_1_until_thaw \
    odd_times::only_the_thread_cancelled_at_a_frozen_gate_ends \
    odd_times::only_the_cancelled_thread_with_refused_allocation_ends
GCGROUP_TEST_EMULATED=$target/dist-aarch64 cargo test --locked -p gcgroup-tests --test it -- "$@"
