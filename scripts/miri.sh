#!/bin/sh
# Runs unit tests under Miri, which reports undefined behaviour: all tests of gcgroup-abi and the modules
# listed below of other crates. The rest maps shared memory, opens sockets, calls a driver, reads the thread
# register or takes minutes.
set -eu

usage() {
    cat <<'END'
usage: scripts/miri.sh [--has]

  --has   install a nightly toolchain with Miri if there is none; fails if that cannot be done

environment:
  CARGO_TARGET_DIR   cargo's build directory (<repository>/target)
END
}

has_miri() {
    cargo +nightly miri --version > /dev/null 2>&1 && return
    # Bounded, because there may be no network.
    timeout 120 rustup component add --toolchain nightly miri rust-src > /dev/null 2>&1 ||
        timeout 300 rustup toolchain install nightly --profile minimal --component miri,rust-src > /dev/null 2>&1
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
    --has) has_miri; exit ;;
esac

cd "$(dirname "$0")/.."

# Modules, as test filters.
hook="
    calls::nvml::list calls::nvml::memory calls::nvml::processes calls::nvml::utilization calls::sparse
    compute::named
    memory::fresh memory::ledger memory::lock
    rows::tests::a_name shared::environment swap::policy
"
model="
    arbiter::division arbiter::member arbiter::quota
    rules::template
"
# Takes the lock 80 000 times.
long="--skip memory::lock::tests::one_thread_at_a_time"

# test_package PACKAGE MODULE...
test_package() {
    package=$1
    shift
    cargo +nightly miri test --locked --package "$package" --lib \
        --target-dir "${CARGO_TARGET_DIR:-target}/miri" -- "$@"
}

test_package gcgroup-abi
# shellcheck disable=SC2086  # lists of names
{
    test_package gcgroup-hook $hook $long
    test_package gcgroupfs-model $model
    test_package gcgroupfs-server socket::rate
    test_package gcgroupfs cli::expression
}
