#!/bin/sh
# Tests the Slurm integration with real munged, slurmctld and three slurmd, each node with a gcgroupfs daemon
# and two simulated GPUs of its own. Everything runs in namespaces of its own: their end takes along all
# processes and mounts. The tests are in gcgroupfs/integrations/slurm/tests/*_cases.sh.
set -eu

usage() {
    cat <<'USAGE'
usage: scripts/test-cluster.sh slurm [TEST...]

environment:
  DIST             built tree (<repository>/target/dist)
  CLUSTER_MINUTES  limit for the whole run (8)
USAGE
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
esac

fail() {
    echo "test-cluster.sh slurm: $*" >&2
    exit 1
}

repo=$(cd "$(dirname "$0")/../.." && pwd -P)
if [ -z "${IN_NAMESPACE-}" ]; then
    [ "$(id -u)" = 0 ] || fail "run as root: namespaces are made"
    for program in gcc ip munged pgrep scontrol slurmctld slurmd srun; do
        command -v "$program" > /dev/null || { "$repo/scripts/setup-debian.sh" --no-python && break; }
    done
    unshare --mount --pid --net --uts --fork --mount-proc true 2> /dev/null || {
        echo "test-cluster.sh slurm: left out, no namespaces can be made here"
        exit 0
    }
    dist=${DIST:-$repo/target/dist}
    [ -f "$dist/lib/libgcgroup_slurm.so" ] || DIST=$dist "$repo/scripts/build.sh"
    # Outside of the home directory of root, so that other users reach it.
    work=$(mktemp -d /tmp/gcgroup-slurm.XXXXXX)
    # shellcheck disable=SC2317  # called by the trap
    tidy() {
        # The last processes may take a moment to leave their cgroups.
        tries=0
        while [ -d "/sys/fs/cgroup/freezer/${work##*/}" ] && [ "$tries" -lt 100 ]; do
            find "/sys/fs/cgroup/freezer/${work##*/}" -depth -type d -exec rmdir {} + 2> /dev/null || sleep 0.1
            tries=$((tries + 1))
        done
        rm -rf --one-file-system "$work"
    }
    trap tidy EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    status=0
    # In the foreground of this script and not of a terminal's job, so that Slurm's programs cannot stop it.
    timeout --kill-after=10 "$((${CLUSTER_MINUTES:-8} * 60))" \
        env IN_NAMESPACE=1 DIST="$dist" WORK="$work" \
        unshare --mount --pid --net --uts --fork --mount-proc --kill-child "$0" "$@" < /dev/null || status=$?
    exit "$status"
fi

# shellcheck source=scripts/cluster/common/slurm-accounting.sh
. "$repo/scripts/cluster/common/slurm-accounting.sh"
# shellcheck source=scripts/cluster/common/slurm-nodes.sh
. "$repo/scripts/cluster/common/slurm-nodes.sh"
# shellcheck source=gcgroupfs/integrations/slurm/tests/support.sh
. "$repo/gcgroupfs/integrations/slurm/tests/support.sh"
# shellcheck source=gcgroupfs/integrations/slurm/tests/plugin_cases.sh
. "$repo/gcgroupfs/integrations/slurm/tests/plugin_cases.sh"
# shellcheck source=gcgroupfs/integrations/slurm/tests/script_cases.sh
. "$repo/gcgroupfs/integrations/slurm/tests/script_cases.sh"
# shellcheck source=gcgroupfs/integrations/slurm/tests/conformance_cases.sh
. "$repo/gcgroupfs/integrations/slurm/tests/conformance_cases.sh"

if [ "${1-}" = --call ]; then
    shift
    "$@"
    exit 0
fi

# run_tests SECONDS NODES TEST...: runs tests one after another, each for so long at most, and prints those
# that fail or are left out.
run_tests() {
    limit=$1
    export NODES="$2"
    shift 2
    output=$WORK/output-${NODES%% *}
    for name; do
        began=$(date +%s)
        if timeout --kill-after=15 "$limit" "$0" --call "test_$name" > "$output" 2>&1 &&
            timeout --kill-after=5 60 "$0" --call nothing_is_left_soon >> "$output" 2>&1; then
            # Of a test that cannot run here, or a part of it.
            sed -n "s/^left out/left out $name/p" "$output"
            grep -q '^left out' "$output" || echo "ok $name ($(($(date +%s) - began)) s)"
        else
            echo "FAILED $name"
            {
                tail -n 10 "$WORK/slurmd-${NODES%% *}.log" "$WORK/slurmctld.log" "$WORK/daemon-${NODES%% *}.log"
                # Last, so that the end of a log has the reason.
                echo "--- $name"
                cat "$output"
            } >> "$WORK/failures" 2>&1
            # shellcheck disable=SC2086  # a list
            restore_nodes $NODES
        fi
    done
}

# chosen FILE TEST...: prints the tests of a file that were chosen; all if none was.
chosen() {
    tests=$(sed -n 's/^test_\([a-z_]*\)() {$/\1/p' "$repo/gcgroupfs/integrations/slurm/tests/$1")
    shift
    [ $# = 0 ] || tests=$(echo "$tests" | grep -xF "$(printf '%s\n' "$@")") || :
    echo "$tests"
}

all=$(chosen script_cases.sh; chosen conformance_cases.sh; chosen plugin_cases.sh)
for name; do
    echo "$all" | grep -qxF -e "$name" || fail "there is no test $name"
done
began=$(date +%s)
make_cluster
echo "--- the cluster runs after $(($(date +%s) - began)) s: $(slurmd -V)"
# The lists run side by side, since tests mostly wait; those of the plugin change its configuration.
{
    # shellcheck disable=SC2046  # lists of names
    run_tests 90 n3 $(chosen script_cases.sh "$@")
    # shellcheck disable=SC2046
    # Longer than what conformance.py waits for.
    run_tests 240 n4 $(chosen conformance_cases.sh "$@")
} > "$WORK/said-others" 2>&1 &
# shellcheck disable=SC2046
run_tests 90 "n1 n2" $(chosen plugin_cases.sh "$@") 2>&1 | tee "$WORK/said-plugin"
wait $!
cat "$WORK/said-others"
failed=$(sed -n 's/^FAILED //p' "$WORK/said-plugin" "$WORK/said-others" | tr '\n' ' ')
[ -z "$failed" ] || { cat "$WORK/failures"; fail "failed: $failed"; }
