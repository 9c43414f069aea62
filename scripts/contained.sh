# shellcheck shell=sh
# Namespaces for a test, for scripts that source this file. They end with the script, however that ends.

# contained SECONDS OPTION... COMMAND [ARGUMENT...]: runs a command for so long at most, without an input, as
# the first process of a PID and a mount namespace, and of those that the options of unshare(1) name.
# /dev/shm is an empty directory there, which ends with them. Leaves the script, with a message, where
# namespaces cannot be made.
contained() {
    seconds=$1
    shift
    options=
    while [ "${1#--}" != "$1" ]; do
        options="$options $1"
        shift
    done
    # shellcheck disable=SC2086  # a list
    unshare --mount --pid $options --fork --mount-proc true 2> /dev/null || {
        echo "${0##*/}: left out, no namespaces can be made here"
        exit 0
    }
    # The kernel kills each of these processes with its parent, and with the last one the namespaces. Signals
    # have their default action: a shell's background jobs ignore SIGINT.
    # shellcheck disable=SC2016,SC2086  # the inner shell expands it; a list
    env --default-signal setpriv --pdeathsig KILL timeout --signal=KILL "$seconds" setpriv --pdeathsig KILL \
        unshare --mount --pid $options --fork --kill-child --mount-proc \
        sh -c 'mount -t tmpfs -o mode=1777 none /dev/shm && exec "$0" "$@"' "$@" < /dev/null &
    contained_pid=$!
    # Traps run while a shell waits.
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    contained_status=0
    wait "$contained_pid" || contained_status=$?
    [ "$contained_status" != 137 ] || echo "${0##*/}: ended after $seconds s" >&2
    return "$contained_status"
}

# end_contained: ends what still runs, for a trap at the exit, and removes the cgroups gcgroup-test-PID of
# this script, and of those that were killed.
end_contained() {
    kill -KILL "${contained_pid-}" 2> /dev/null || :
    for cgroup in /sys/fs/cgroup/*/gcgroup-test-*; do
        [ "${cgroup##*-}" = $$ ] || [ ! -e "/proc/${cgroup##*-}" ] || continue
        # The last processes may take a moment to leave.
        tries=0
        while [ -d "$cgroup" ] && [ "$tries" -lt 100 ]; do
            find "$cgroup" -depth -type d -exec rmdir {} + 2> /dev/null || sleep 0.1
            tries=$((tries + 1))
        done
    done
}
