# shellcheck shell=sh
# Namespaces for a test, for scripts that source this file. They end with the script, however that ends, and
# with them its processes, mounts, interfaces and files in /dev/shm.

# has_namespaces OPTION...: whether namespaces can be made: of PIDs, mounts and those that the options of
# unshare(1) name.
has_namespaces() {
    unshare --mount --pid "$@" --fork --mount-proc true 2> /dev/null
}

# contained SECONDS OPTION... COMMAND [ARGUMENT...]: runs a command for so long at most, without an input,
# in such namespaces. /dev/shm is an empty directory there. The cgroups $CGROUP and $CGROUP-*, a name that
# the command inherits, are removed at the end. Leaves the script, with a message, where namespaces cannot
# be made.
contained() {
    contained_seconds=$1
    shift
    contained_options=
    while [ "${1#--}" != "$1" ]; do
        contained_options="$contained_options $1"
        shift
    done
    # shellcheck disable=SC2086  # a list
    has_namespaces $contained_options || {
        echo "${0##*/}: left out, no namespaces can be made here"
        exit 0
    }
    contained_cgroup=${CGROUP-gcgroup-test}-$$
    # The kernel kills unshare with the script, and the first process of the namespaces with unshare, and all
    # others with that, which is a shell: it reaps processes that have lost their parents. Signals have their
    # default action: a shell's background jobs ignore SIGINT.
    # shellcheck disable=SC2016,SC2086  # the inner shells expand it; a list
    CGROUP=$contained_cgroup env --default-signal \
        setpriv --pdeathsig KILL sh -c '[ "$PPID" = "$0" ] && exec "$@"' $$ \
        unshare --mount --pid $contained_options --fork --kill-child --mount-proc \
        sh -c 'mount -t tmpfs -o mode=1777 none /dev/shm && timeout --kill-after=10 "$0" "$@"; exit' \
        "$contained_seconds" "$@" < /dev/null &
    contained_pid=$!
    # In a session of its own: it outlives the script and its process group. The last processes may take a
    # moment to leave their cgroups.
    # shellcheck disable=SC2016  # the inner shell expands it
    setsid sh -c 'tail -s 0.1 -f --pid="$0" /dev/null
        for _ in $(seq 100); do
            find /sys/fs/cgroup -depth -type d -regex ".*/$1\([-/].*\)?" -exec rmdir {} + && break
            sleep 0.1
        done' "$contained_pid" "$contained_cgroup" > /dev/null 2>&1 &
    contained_cleaner=$!
    # Traps run while a shell waits.
    trap 'end_contained 129' HUP
    trap 'end_contained 130' INT
    trap 'end_contained 143' TERM
    contained_status=0
    wait "$contained_pid" || contained_status=$?
    contained_pid=
    wait "$contained_cleaner"
    case $contained_status in
        124 | 137) echo "${0##*/}: ended after $contained_seconds s" >&2 ;;
    esac
    return "$contained_status"
}

# end_contained STATUS: ends what runs, and the script.
end_contained() {
    [ -z "$contained_pid" ] || kill -KILL "$contained_pid" 2> /dev/null
    wait "$contained_cleaner"
    exit "$1"
}
