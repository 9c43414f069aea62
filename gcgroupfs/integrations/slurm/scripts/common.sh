# shellcheck shell=sh disable=SC2034  # used by the scripts that source this file
# Settings and functions of prolog, epilog and task-prolog, which source this file. gcgroup-slurm(8) describes
# the settings; they are set in /etc/gcgroup-slurm.conf, or in gcgroup-slurm.conf beside these scripts.

# Users' settings do not choose the programs. The library does not govern the scripts themselves.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Texts of users may have bytes that are no characters.
LC_ALL=C
export PATH LC_ALL
wanted_preload=${LD_PRELOAD-}
unset LD_PRELOAD GCGROUP_GROUP GCGROUP_REQUIRED

gcgroupfs=gcgroupfs
socket=/run/gcgroupfs/gcgroup.sock
mount=/gcgroup
group=slurm
library=
highest_priority=8
swap_max=max
without_gres=deny
usage_log=
accounting=yes
patience=5
run=/run/gcgroup-slurm

here=$(cd "$(dirname "$0")" && pwd -P)
for file in "$here/gcgroup-slurm.conf" /etc/gcgroup-slurm.conf; do
    if [ -f "$file" ]; then
        # shellcheck source=/dev/null
        . "$file"
        break
    fi
done

# Below PREFIX/share/gcgroupfs/slurm, the library is in PREFIX/lib, and the program in PREFIX/bin.
prefix=${here%/share/gcgroupfs/slurm}
[ -n "$library" ] || library=$prefix/lib/libgcgroup.so
[ "$gcgroupfs" != gcgroupfs ] || [ ! -x "$prefix/bin/gcgroupfs" ] || gcgroupfs=$prefix/bin/gcgroupfs

job=${SLURM_JOB_ID-}
# A path: what is not a number must not reach it.
case $job in
    '' | *[!0-9]*) echo "gcgroup: SLURM_JOB_ID is not a number" >&2; exit 1 ;;
esac
node=${SLURMD_NODENAME:-$(hostname -s)}
of_job=$group/job_$job

get() {
    timeout 15 "$gcgroupfs" get --socket "$socket" "$1"
}

# set_file FILE VALUE
set_file() {
    timeout 15 "$gcgroupfs" set --socket "$socket" "$1" "$2"
}

# answers COMMAND...: whether the command succeeds; prints nothing.
answers() {
    "$@" > /dev/null 2>&1
}

# set_now: sets `now` to a number of seconds that only grows.
set_now() {
    read -r now _ < /proc/uptime
    now=${now%.*}
}

# patiently COMMAND...: tries until `patience` seconds are over, since the daemon may be restarting. The last
# try may take 15 s longer, if the daemon hangs.
patiently() {
    set_now
    deadline=$((now + patience))
    until answers "$@"; do
        set_now
        [ "$now" -lt "$deadline" ] || return 1
        sleep 0.2
    done
}

# is_removed GROUP: fails also if the daemon does not answer.
is_removed() {
    ! answers get "$1/memory.limit" && answers get devices
}

# remove_group GROUP: removes a group with all groups that its user has made in it; tries for 20 s.
remove_group() {
    # Members that Slurm has not ended: those that have left the step's session with proctrack/linuxproc.
    answers set_file "$1/gcgroup.kill" 1 || :
    set_now
    deadline=$((now + 20))
    # Directories of GPUs cannot be removed, and end with their group.
    until is_removed "$1"; do
        timeout 15 find "$mount/$1" -depth -type d -exec rmdir {} + 2> /dev/null || :
        ! is_removed "$1" || break
        set_now
        [ "$now" -lt "$deadline" ] || return 1
        sleep 0.2
    done
}
