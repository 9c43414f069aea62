# shellcheck shell=sh
# Functions of the tests of the Slurm integration. A GPU has 1 GiB and 8 shards. Two lists of tests run side
# by side: each looks at its own nodes only.
#
# Variable: NODES, the nodes of the list; the first one is that of most tests.

# shellcheck disable=SC2034  # used by the tests
MIB=1048576

# check WHAT FOUND WANTED
check() {
    [ "$2" = "$3" ] || { echo "$1: found $2, not $3" >&2; exit 1; }
}

# has FILE TEXT...: the file has lines with these texts.
has() {
    file=$1
    shift
    for text; do
        grep -qF -e "$text" "$file" || { echo "no \"$text\" in:" >&2; cat "$file" >&2; exit 1; }
    done
}

# lacks FILE TEXT
lacks() {
    ! grep -qF -e "$2" "$1" || { echo "\"$2\" in:" >&2; cat "$1" >&2; exit 1; }
}

# as_user COMMAND...: runs a command as an ordinary user.
as_user() {
    setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups env HOME=/ "$@"
}

# show FILE: prints a control file of the daemon on the first node.
show() {
    on "${NODES%% *}" "$WORK/gcgroupfs" get "$1"
}

# shows FILE VALUE
shows() {
    [ "$(show "$1")" = "$2" ]
}

is_gone() {
    ! show "$1"
}

# answers FILE: prints the answers of a task on the GPU without its pid and the identities of its blocks.
answers() {
    sed -n '/^ready /d; s/^ok .*/ok/; /^ok$/p; /^error/p' "$1" | tr '\n' ' '
}

# job_of NAME: prints the number of the job of that name.
job_of() {
    squeue -h -n "$1" -o %A
}

# admin_comment JOB: prints the job's AdminComment, without other texts, of which a user's may look like it.
admin_comment() {
    squeue -h -t all -j "$1" -O admin_comment:4096 | sed 's/ *$//'
}

# in_accounting JOB TEXT...: the job's AdminComment in the accounting database has these texts.
in_accounting() {
    sacct -n -X -P -a -j "$1" -o AdminComment > "$WORK/out/accounting-${NODES%% *}"
    shift
    for text; do
        grep -qF -e "$text" "$WORK/out/accounting-${NODES%% *}" || return 1
    done
}

# start NAME TEXT COMMAND...: runs a command in the background and waits until its output has the text.
start() {
    output=$WORK/out/$1
    text=$2
    shift 2
    : > "$output"
    chmod 666 "$output"
    as_user "$@" > "$output" 2>&1 &
    until_true grep -q "$text" "$output" || { cat "$output" >&2; exit 1; }
}

# batch NAME TEXT SCRIPT OPTION...: submits a script and waits until its output has the text.
batch() {
    name=$1
    text=$2
    script=$3
    shift 3
    output=$WORK/out/$name
    : > "$output"
    chmod 666 "$output"
    printf '#!/bin/sh\n%s\n' "$script" | as_user sbatch -Q -w "${NODES%% *}" -D / -J "$name" -o "$output" --open-mode=append "$@"
    until_true grep -q "$text" "$output" || { cat "$output" >&2; exit 1; }
}

# end NAME: cancels a job and waits until it is gone.
end() {
    scancel --name "$1"
    until_true sh -c "[ -z \"\$(squeue -h -n $1)\" ]"
}

nothing_is_left() {
    for node in $NODES; do
        ! on "$node" "$WORK/gcgroupfs" ls --json | grep -qF '"slurm/' || return 1
        [ -z "$(squeue -h -w "$node")" ] || return 1
        ! pgrep --ns "$(cat "$WORK/holder-$node")" --nslist mnt -x 'slurmstepd|driver_shell' || return 1
    done
}

nothing_is_left_soon() {
    until_true nothing_is_left || {
        on "${NODES%% *}" "$WORK/gcgroupfs" ls
        squeue
        ps -ef
        exit 1
    }
}

# kill_node NODE: ends slurmd and all steps, without the daemon.
kill_node() {
    holder=$(cat "$WORK/holder-$1")
    kill -9 "$(cat "$WORK/slurmd-$1")"
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [ "$(readlink "$process/ns/mnt")" = "$(readlink "/proc/$holder/ns/mnt")" ] || continue
        case $pid,$(cat "$process/comm") in
            "$holder",* | *,gcgroupfs*) ;;
            *) kill -9 "$pid" || : ;;
        esac
    done
}

no_job_runs() {
    [ -z "$(squeue -h -w "${NODES%% *}" -t running)" ]
}
