#!/bin/sh
# Everything that is checked, cheapest first; the same for a contributor and for CI.
# Sets a Debian machine up first. What a machine lacks even so is named and left out, but for the tests: those fail
# without what they need.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/test.sh [--quick] [TEST-FILTER...]

  --quick    the tests alone, without lints, documentation, release build, fuzzing and soak
  TEST-FILTER  as cargo test takes them

environment:
  MINUTES    what it may take, all in all, where nobody sits in front of it (50)
EOF
}

quick=no
case ${1-} in
    -h | --help) usage; exit 0 ;;
    --quick) quick=yes; shift ;;
esac

cd "$(dirname "$0")/.."

end=$(($(date +%s) + ${MINUTES:-50} * 60))

step() {
    began=$(date +%s)
    printf '\n=== %s\n' "$*"
    status=0
    if [ -t 1 ]; then
        "$@" || status=$?
    else
        # At least a second: none would be no limit.
        left=$((end > began ? end - began : 1))
        timeout --kill-after=30 "$left" "$@" || status=$?
    fi
    case $status in
        124 | 137) echo "=== ended: there were $left s left of ${MINUTES:-50} minutes" ;;
    esac
    echo "=== $(($(date +%s) - began)) s"
    return "$status"
}

# have PROGRAM WHAT: whether it is there, with a note if not.
have() {
    command -v "$1" > /dev/null && return
    echo "=== left out, no $1 here: $2"
    return 1
}

if [ "$quick" = no ]; then
    if have apt-get "packages and Python clients, which the tests expect to be there"; then
        step scripts/setup-debian.sh
    fi
    step cargo fmt --all --check
    if have shellcheck "the scripts' lints"; then
        step shellcheck scripts/*.sh scripts/gc-* .ci/run
    fi
    if have python3 "wording and layout of comments and documents"; then
        step scripts/check-text.py
    fi
    if have cargo-deny "licences and advisories of dependencies"; then
        step cargo deny --locked --log-level error check bans licenses sources
        if git ls-remote -q https://github.com/RustSec/advisory-db HEAD > /dev/null 2>&1; then
            step cargo deny --locked check advisories
        else
            echo "=== left out, the advisory database is out of reach: advisories of dependencies"
        fi
    fi
    step cargo clippy --locked --workspace --all-targets -- -D warnings
    step env RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --quiet
    # The sizes and the self-sufficiency of the libraries that are preloaded.
    step scripts/build.sh
fi
if [ "$quick" = no ]; then
    step scripts/models.sh
    if scripts/miri.sh --has; then
        step scripts/miri.sh
    else
        echo "=== left out, no nightly Rust with Miri here: undefined behaviour in unit tests"
    fi
fi
# Without the preload library, which has no allocator or unwinder and so no test of its own kind.
# With signals as at a prompt: what was started in the background would ignore an interrupt, and so would its programs.
step env --default-signal cargo test --locked --workspace --exclude gcgroup-preload -- "$@"
if [ "$quick" = no ]; then
    if have c++ "what fuzzers find in a minute"; then
        if cargo fetch --quiet --manifest-path gcgroupfs/fuzz/Cargo.toml; then
            step scripts/fuzz.sh 60
        else
            echo "=== left out, its dependencies are out of reach: what fuzzers find in a minute"
        fi
    fi
    step scripts/soak.sh 3
fi
