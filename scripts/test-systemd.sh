#!/bin/sh
# Tests the services under a real service manager: systemd --user, in namespaces that end with the script,
# runs the units that install.sh installs, with a daemon on a simulated GPU. Needs root, /dev/fuse and a
# kernel with takeover of mounts (Linux 6.9). Takes half a minute.
set -eu

usage() {
    cat <<'EOT'
usage: scripts/test-systemd.sh

environment:
  GCGROUP_DIST   a built tree (target/dist, which is built if it has no daemon)
EOT
}

case ${1-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

fail() {
    echo "test-systemd.sh: $*" >&2
    exit 1
}

left_out() {
    echo "test-systemd.sh: left out, $*"
    exit 0
}

repo=$(cd "$(dirname "$0")/.." && pwd -P)
dist=${GCGROUP_DIST:-$repo/target/dist}

# until_true COMMAND...: waits at most one minute until the command succeeds.
until_true() {
    tries=0
    until "$@" > /dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || fail "timed out: $*"
        sleep 0.1
    done
}

ctl() {
    systemctl --user "$@"
}

# show PROPERTY: prints a property of the unit.
show() {
    ctl show --value -p "$1" "$unit"
}

# has PROPERTY VALUE
has() {
    [ "$(show "$1")" = "$2" ]
}

# is_up RESTARTS: whether the service runs, after so many restarts.
is_up() {
    has NRestarts "$1" && has ActiveState active && has SubState running
}

# mounted: prints our mount, with its id.
mounted() {
    grep " $mnt .* - fuse.gcgroup " /proc/self/mountinfo
}

says() {
    grep -q "$1" "$work/daemon.log"
}

# in_namespace: what runs in the namespaces.
in_namespace() {
    unit=gcgroupfs.service
    mnt=$work/mnt

    mount -t tmpfs none /run
    mkdir -p /run/systemd/system "$work/units/$unit.d" "$work/gpu" "$mnt"
    mkdir -m 700 /run/user
    mount -t cgroup2 none /sys/fs/cgroup
    export XDG_RUNTIME_DIR=/run/user SYSTEMD_UNIT_PATH="$work/units" GCGROUP_SOCKET="$work/socket"

    for target in basic default shutdown; do
        printf '[Unit]\nDefaultDependencies=no\n' > "$work/units/$target.target"
    done
    sed "s|@PREFIX@|$dist|" "$repo/scripts/$unit" > "$work/units/$unit"
    cat > "$work/units/$unit.d/test.conf" <<EOT
[Service]
ExecStart=
ExecStart=$dist/bin/gcgroupfs mount $mnt --allow-other --socket $GCGROUP_SOCKET \\
    --state-dir $work/state --config $work/gcgroupfs.toml
Environment=LD_LIBRARY_PATH=$dist/simgpu SIMGPU_DIR=$work/gpu NO_COLOR=1
StandardError=append:$work/daemon.log
EOT
    : > "$work/gcgroupfs.toml"

    /lib/systemd/systemd --user --log-target=console > "$work/systemd.log" 2>&1 &
    until_true ctl is-system-running
    ctl start "$unit"
    has NRestarts 0
    grep -q '^0 ' "$mnt/devices" || fail "the service is started, and its files do not answer"
    main=$(show MainPID)
    grep -qx 'NoNewPrivs:	1' "/proc/$main/status" || fail "the service may gain privileges"
    grep -qx 'Seccomp:	2' "/proc/$main/status" || fail "the service has no filter of system calls"

    env LD_LIBRARY_PATH="$dist/simgpu" SIMGPU_DIR="$work/gpu" "$dist/bin/gcgroupfs" run -- \
        "$dist/bin/gcgroup-load" throughput --duration 3600 > "$work/load.log" 2>&1 &
    load=$!
    until_true grep -q ready "$work/load.log"
    echo 96M > "$mnt/$load/memory.limit"
    is_governed() {
        grep -qx 100663296 "$mnt/$load/memory.limit"
    }
    is_governed || fail "the program is not governed"
    echo "--- started: the files answer, a program is governed"

    echo 'on_unmanaged = "log"' > "$work/gcgroupfs.toml"
    ctl reload "$unit"
    until_true says 'configuration read again'
    echo 'nonsense = 1' > "$work/gcgroupfs.toml"
    ctl reload "$unit"
    until_true says 'gcgroupfs.toml:1:'
    : > "$work/gcgroupfs.toml"
    is_up 0 || fail "a reload has restarted the service"
    echo "--- reloaded: a valid configuration is in force, an invalid one has no effect"

    exporter=gcgroup-exporter.service
    sed "s|@PREFIX@|$dist|; s|/etc/default|$work|" "$repo/scripts/$exporter" > "$work/units/$exporter"
    echo "OPTIONS=--listen unix:$work/page --socket $GCGROUP_SOCKET" > "$work/gcgroup-exporter"
    mkdir "$work/units/$exporter.d"
    # A user's manager makes no namespaces of mounts here.
    {
        echo '[Service]'
        for option in DynamicUser PrivateDevices PrivateTmp ProtectHome ProtectKernelModules \
            ProtectKernelTunables ProtectSystem; do
            echo "$option=no"
        done
    } > "$work/units/$exporter.d/test.conf"
    ctl daemon-reload
    ctl start "$exporter"
    until_true curl -fs --unix-socket "$work/page" http://localhost/metrics
    ctl stop "$exporter"
    systemd-analyze verify --user --man=no "$work/units/$exporter" || fail "the unit is faulty"
    echo "--- the exporter's service answers"

    before=$(mounted)
    exec 3< "$mnt/devices" 4< "$mnt/devices"
    has NFileDescriptorStore 6 || fail "the manager stores $(show NFileDescriptorStore) descriptors"
    kill -KILL "$main"
    until_true is_up 1
    until_true is_governed
    grep -q '^0 ' <&3 || fail "a file that was open does not answer after the restart"
    [ "$(mounted)" = "$before" ] || fail "the restart has made another mount"
    echo "--- killed: the manager has started it again; the mount and its open files are the same"

    kill -STOP "$(show MainPID)"
    until_true is_up 2
    until_true is_governed
    grep -q '^0 ' <&4 || fail "a file that was open does not answer after the watchdog"
    [ "$(mounted)" = "$before" ] || fail "the watchdog's restart has made another mount"
    echo "--- stopped by a signal: the watchdog has had it started again"
    exec 3<&- 4<&-

    # The stored descriptors of a mount that is gone are of no use to the next daemon.
    main=$(show MainPID)
    kill -STOP "$main"
    umount -l "$mnt"
    kill -KILL "$main"
    until_true is_up 3
    until_true is_governed
    has NFileDescriptorStore 6 || fail "the manager stores $(show NFileDescriptorStore) descriptors"
    echo "--- killed without its mount: the next one has made another"

    ctl stop "$unit"
    has Result success || fail "the service ended with $(show Result)"
    has NFileDescriptorStore 0 || fail "the manager still stores descriptors"
    ! mounted || fail "the mount is left"
    [ ! -e "$GCGROUP_SOCKET" ] || fail "the socket is left"
    ctl start "$unit"
    until_true is_governed
    ctl stop "$unit"
    kill "$load"
    echo "the service starts, reloads, restarts and stops under systemd $(systemctl --version | sed -n 's/^systemd \([0-9]*\).*/\1/p')"
}

work=/dev/shm/systemd
case ${INSIDE-} in
    '') ;;
    namespaces)
        # The manager gets a cgroup of its own as its root.
        unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
        if [ -z "$unified" ] || ! mkdir "$unified/$CGROUP" 2> /dev/null; then
            left_out "no cgroup can be made here"
        fi
        echo $$ > "$unified/$CGROUP/cgroup.procs"
        mkdir "$work"
        exec env -i PATH="$PATH" HOME="$work" LC_ALL=C INSIDE=cgroup GCGROUP_DIST="$dist" unshare --cgroup "$0"
        ;;
    cgroup)
        trap '[ "$?" = 0 ] || tail -n 40 "$work"/*.log >&2' EXIT
        in_namespace
        exit
        ;;
esac

[ -x "$dist/bin/gcgroupfs" ] || DIST=$dist "$repo/scripts/build.sh" --debug > /dev/null
[ "$(id -u)" = 0 ] || left_out "root is needed for namespaces"
[ -x /lib/systemd/systemd ] || left_out "no systemd here"
[ -c /dev/fuse ] || left_out "no /dev/fuse here"
IFS=.- read -r major minor _ < /proc/sys/kernel/osrelease
[ "$((major * 1000 + minor))" -ge 6009 ] || left_out "the kernel is older than 6.9"
# shellcheck source=scripts/contained.sh
. "$repo/scripts/contained.sh"
INSIDE=namespaces contained 300 "$0"
