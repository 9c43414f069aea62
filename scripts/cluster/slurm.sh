#!/bin/sh
# Tests the Slurm integration with real munged, slurmctld and three slurmd, each node with a gcgroupfs daemon
# and two simulated GPUs of its own. Everything runs in namespaces of its own: their end takes along all
# processes, mounts and files. The tests are in gcgroupfs/integrations/slurm/tests/*_cases.sh.
set -eu

usage() {
    cat <<'USAGE'
usage: scripts/test-cluster.sh slurm [--in SUITE [--database SUITE]] [TEST...]

  --in SUITE        the Slurm of another Debian release, such as trixie, in a system made by debootstrap
  --database SUITE  at the end, tests of the accounting once more with the slurmdbd of that release

environment:
  DIST             built tree (<repository>/target/dist)
  CLUSTER_MINUTES  limit for the whole run (8)
USAGE
}

fail() {
    echo "test-cluster.sh slurm: $*" >&2
    exit 1
}

# need_value OPTION [VALUE]
need_value() {
    [ $# -ge 2 ] || { usage >&2; exit 2; }
}

repo=$(cd "$(dirname "$0")/../.." && pwd -P)
self=$repo/scripts/cluster/slurm.sh
if [ -z "${INSIDE-}" ]; then
    suite=
    database=
    while :; do
        case ${1-} in
            -h | --help) usage; exit 0 ;;
            --in) need_value "$@"; suite=$2; shift 2 ;;
            --database) need_value "$@"; database=$2; shift 2 ;;
            -*) usage >&2; exit 2 ;;
            *) break ;;
        esac
    done
    [ "$(id -u)" = 0 ] || fail "run as root: namespaces are made"
    for program in debootstrap gcc ip munged pgrep scontrol slurmctld slurmd srun; do
        command -v "$program" > /dev/null || { "$repo/scripts/setup-debian.sh" --no-python && break; }
    done
    DIST=${DIST:-$repo/target/dist}
    export DIST
    [ -f "$DIST/lib/libgcgroup_slurm.so" ] || "$repo/scripts/build.sh"
    # system SUITE: prints the archive of that release's Slurm.
    system() {
        # libslurm-dev has the headers; the others are the packages of scripts/setup-debian.sh.
        "$repo/scripts/debian-system.sh" "$1" slurm iproute2 libslurm-dev mariadb-server-core munge procps \
            slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin slurmctld slurmd slurmdbd
    }
    for release in $suite $database; do
        archive=$(system "$release" || :)
        [ -n "$archive" ] || {
            echo "test-cluster.sh slurm: left out, no Slurm of $release can be had here"
            exit 0
        }
    done
    SYSTEM=${suite:+$(system "$suite")}
    DATABASE=${database:+$(system "$database")}
    export SYSTEM DATABASE RELEASE="$suite"
    # shellcheck source=scripts/contained.sh
    . "$repo/scripts/contained.sh"
    export INSIDE=machine WORK=/dev/shm/work
    contained "$((${CLUSTER_MINUTES:-8} * 60))" --net --uts "$self" "$@"
    exit
fi

# shellcheck source=scripts/cluster/common/slurm-system.sh
. "$repo/scripts/cluster/common/slurm-system.sh"
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
if [ "$INSIDE" = machine ]; then
    install_programs
    export INSIDE=system
    [ -z "$SYSTEM" ] || enter_system "$self" "$@"
    check_headers
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
        if timeout --kill-after=15 "$limit" "$self" --call "test_$name" > "$output" 2>&1 &&
            timeout --kill-after=5 60 "$self" --call nothing_is_left_soon >> "$output" 2>&1; then
            # Of a test that cannot run here, or a part of it.
            sed -n "s/^left out/left out $name/p" "$output"
            grep -q '^left out' "$output" || echo "ok $name ($(($(date +%s) - began)) s${RELEASE:+, $RELEASE})"
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
if [ -n "$DATABASE" ]; then
    replace_slurmdbd /database
    echo "--- with slurmdbd of $(chroot /database slurmdbd -V)"
    stored=scripts_store_what_a_job_has_used_in_the_accounting
    has_accounting || stored=scripts_store_what_a_job_has_used
    run_tests 90 "n1 n2" use_is_stored_with_the_job > "$WORK/said-database" 2>&1
    run_tests 150 n3 "$stored" >> "$WORK/said-database" 2>&1
    cat "$WORK/said-database"
fi
failed=$(sed -n 's/^FAILED //p' "$WORK"/said-* | tr '\n' ' ')
[ -z "$failed" ] || { cat "$WORK/failures"; fail "failed${RELEASE:+ with the Slurm of $RELEASE}: $failed"; }
