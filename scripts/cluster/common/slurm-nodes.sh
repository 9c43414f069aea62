# shellcheck shell=sh
# A Slurm cluster on this machine, for tests: controller, munged, the nodes n1, n2 and n4 with the plugin,
# and n3 with the scripts instead. Debian's slurmd is not built for several nodes on one machine: it takes its
# name from the host's. So each node has a UTS and a mount namespace with a /run of its own, in which its
# gcgroupfs daemon has the usual socket.
#
# Variables: WORK, a directory that all users may search; DIST, a built tree; repo, the repository; CGROUP,
# the name of cgroups for this test.

export SLURM_CONF="$WORK/slurm.conf"
# An ordinary user, who submits the jobs.
export USER_ID=65534

# until_true COMMAND...: waits at most 60 s until the command succeeds.
until_true() {
    tries=0
    until "$@" > /dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || { echo "timed out: $*" >&2; return 1; }
        sleep 0.1
    done
}

# on NODE COMMAND...: runs a command on a node.
on() {
    pid=$(cat "$WORK/holder-$1")
    shift
    nsenter --mount="/proc/$pid/ns/mnt" --uts="/proc/$pid/ns/uts" -- "$@"
}

# in_background LOG COMMAND...
in_background() {
    log=$1
    shift
    # setsid(1) does not fork here, so $! is the command.
    setsid "$@" >> "$log" 2>&1 < /dev/null &
}

# plug LEVEL ARGUMENT...: configures the plugin; for steps that start from now on.
plug() {
    level=$1
    shift
    echo "$level $WORK/lib/libgcgroup_slurm.so $*" > "$WORK/plugstack.conf"
}

# use_plugin: configures the plugin as most tests use it.
use_plugin() {
    plug required "usage-log=$WORK/out/usage"
}

# set_scripts SETTING...: configures the scripts, for jobs that start from now on.
# shellcheck disable=SC2120  # tests give settings
set_scripts() {
    printf '%s\n' "gcgroupfs=$WORK/gcgroupfs" mount=/run/gcgroup "usage_log=$WORK/out/usage-scripts" "$@" \
        > "$WORK/share/gcgroupfs/slurm/gcgroup-slurm.conf"
}

# make_scripts: installs the scripts; all nodes have the same slurm.conf.
make_scripts() {
    mkdir -p "$WORK/share/gcgroupfs/slurm" "$WORK/hooks"
    cp "${repo:?}"/gcgroupfs/integrations/slurm/scripts/* "$WORK/share/gcgroupfs/slurm"
    for script in prolog epilog task-prolog; do
        cat > "$WORK/hooks/$script" <<HOOK
#!/bin/sh
[ "\$(hostname)" != n3 ] || exec $WORK/share/gcgroupfs/slurm/$script
HOOK
        chmod 755 "$WORK/hooks/$script"
    done
    # shellcheck disable=SC2119
    set_scripts
}

start_daemon() {
    in_background "$WORK/daemon-$1.log" nsenter --mount="/proc/$(cat "$WORK/holder-$1")/ns/mnt" -- \
        env LD_LIBRARY_PATH="$WORK/lib" SIMGPU_DIR="$WORK/gpus" SIMGPU_DEVICES=2 SIMGPU_MEMORY=1G \
        SIMGPU_CONTEXT_MEMORY=0 "$WORK/gcgroupfs" mount --context-size 0 --allow-other \
        --socket /run/gcgroupfs/gcgroup.sock --config "$WORK/gcgroupfs-$1.toml" /run/gcgroup
    echo $! > "$WORK/daemon-$1"
    until_true on "$1" "$WORK/gcgroupfs" get devices
}

stop_daemon() {
    kill -9 "$(cat "$WORK/daemon-$1")"
    until_true sh -c "! kill -0 $(cat "$WORK/daemon-$1")"
}

start_slurmd() {
    in_background "$WORK/slurmd-$1.out" nsenter --mount="/proc/$(cat "$WORK/holder-$1")/ns/mnt" \
        --uts="/proc/$(cat "$WORK/holder-$1")/ns/uts" -- \
        slurmd -D
    echo $! > "$WORK/slurmd-$1"
    until_true node_is "$1" 'idle|mixed'
    # The controller may not have noticed that an earlier one has ended.
    until_true listens "$((16817 + ${1#n}))"
}

# listens PORT
listens() {
    ss -Hltn "sport = :$1" | grep -q .
}

# node_is NODE STATES
node_is() {
    sinfo -h -n "$1" -o %T | grep -qxE "$2"
}

start_controller() {
    in_background "$WORK/slurmctld.out" slurmctld -D
    until_true sinfo -h
}

make_node() {
    mkdir -p "$WORK/spool-$1" "$WORK/gpus-$1"
    chmod 1777 "$WORK/gpus-$1"
    setsid unshare --mount --uts sh -c "hostname $1; mount -t tmpfs none /run
        mount --bind '$WORK/gpus-$1' '$WORK/gpus'; mkdir /run/gcgroupfs /run/gcgroup; exec sleep infinity" < /dev/null > /dev/null 2>&1 &
    echo $! > "$WORK/holder-$1"
    until_true on "$1" test -d /run/gcgroup
}

# track_by_cgroup NODE: has Slurm track the processes of a node's steps by cgroups, and the daemon find them
# so. Fails where cgroups of version 1 with the freezer cannot be made, which Slurm 22.05 needs here.
track_by_cgroup() {
    freezer=/sys/fs/cgroup/freezer
    mkdir "$freezer/$CGROUP" 2> /dev/null || return 1
    on "$1" mount --bind "$freezer/$CGROUP" "$freezer" || return 1
    printf '%s\n' CgroupPlugin=cgroup/v1 CgroupAutomount=no > "$WORK/cgroup.conf"
    sed 's|proctrack/linuxproc|proctrack/cgroup|' "$SLURM_CONF" > "$WORK/slurm-$1.conf"
    on "$1" mount --bind "$WORK/slurm-$1.conf" "$SLURM_CONF"
    # The rule that the documentation gives, below the directory of this test.
    sed -n '/^\[\[rule\]\]$/,/^```$/p' "$repo/gcgroupfs/integrations/slurm/README.md" |
        sed "/^\`\`\`\$/d; s|\"/slurm|\"/$CGROUP/slurm|" > "$WORK/gcgroupfs-$1.toml"
    grep -q "\"/$CGROUP/slurm" "$WORK/gcgroupfs-$1.toml"
}

# install_programs: makes $WORK with what the cluster's nodes run.
install_programs() {
    mkdir -m 755 "$WORK" "$WORK/lib"
    cp "$DIST"/lib/*.so "$DIST"/simgpu/* "$WORK/lib"
    ln -sf libcuda.so.1 "$WORK/lib/libcuda.so"
    cp "$DIST/bin/gcgroupfs" "$DIST/bin/gcgroup-load" "$WORK"
    gcc -O1 -o "$WORK/driver_shell" "${repo:?}/tests/programs/driver_shell.c" -pthread "-L$WORK/lib" -lcuda
    cp "$repo/gcgroupfs/integrations/slurm/tests/gpu" "$WORK/gpu"
    echo 'long slurm_api_version(void) { return 43L << 16; }' | gcc -shared -fPIC -x c - -o "$WORK/libslurm-43.so"
}

make_cluster() {
    ip link set lo up
    # slurmd looks up its own addresses, and finds none where there is only 127.0.0.1.
    ip address add 192.0.2.1/32 dev lo
    hostname controller
    mount --make-rprivate /
    mount -t tmpfs none /run
    echo "127.0.0.1 localhost controller n1 n2 n3 n4" > "$WORK/hosts"
    mount --bind "$WORK/hosts" /etc/hosts
    mkdir "$WORK/munge" "$WORK/state" "$WORK/gpus" "$WORK/out"
    chmod 1777 "$WORK/gpus" "$WORK/out"
    : > "$WORK/nvidia0"
    : > "$WORK/nvidia1"
    for node in n1 n2 n3 n4; do
        : > "$WORK/gcgroupfs-$node.toml"
    done
    make_scripts
    use_plugin
    dd if=/dev/urandom of="$WORK/munge/key" bs=128 count=1 2> /dev/null
    chmod 600 "$WORK/munge/key"
    chown -R munge:munge "$WORK/munge"
    setpriv --reuid munge --regid munge --clear-groups munged --force --socket="$WORK/munge/socket" \
        --key-file="$WORK/munge/key" --pid-file="$WORK/munge/pid" --log-file="$WORK/munge/log" \
        --seed-file="$WORK/munge/seed"
    cat > "$WORK/gres.conf" <<GRES
Name=gpu Type=sim File=$WORK/nvidia[0-1]
Name=shard Count=8 File=$WORK/nvidia0
Name=shard Count=8 File=$WORK/nvidia1
GRES
    cat > "$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=controller(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$WORK/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,shard
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=10
DebugFlags=NO_CONF_HASH
KillWait=2
SlurmctldPort=16817
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
StateSaveLocation=$WORK/state
SlurmdSpoolDir=$WORK/spool-%n
SlurmctldPidFile=$WORK/slurmctld.pid
SlurmdPidFile=$WORK/slurmd-%n.pid
SlurmctldLogFile=$WORK/slurmctld.log
SlurmdLogFile=$WORK/slurmd-%n.log
PlugStackConfig=$WORK/plugstack.conf
Prolog=$WORK/hooks/prolog
Epilog=$WORK/hooks/epilog
TaskProlog=$WORK/hooks/task-prolog
NodeName=n1 NodeAddr=127.0.0.1 Port=16818 CPUs=8 Gres=gpu:sim:2,shard:16
NodeName=n2 NodeAddr=127.0.0.1 Port=16819 CPUs=8 Gres=gpu:sim:2,shard:16
NodeName=n3 NodeAddr=127.0.0.1 Port=16820 CPUs=8 Gres=gpu:sim:2,shard:16
NodeName=n4 NodeAddr=127.0.0.1 Port=16821 CPUs=8 Gres=gpu:sim:2,shard:16
PartitionName=p Nodes=n1,n2,n3,n4 Default=YES State=UP
CONF
    if has_accounting; then
        configure_accounting >> "$SLURM_CONF"
        start_accounting
    fi
    start_controller
    for node in n1 n2 n3 n4; do
        make_node "$node"
    done
    on n3 mount --bind /dev/null "$WORK/plugstack.conf"
    if ! track_by_cgroup n3; then
        echo "--- n3 has proctrack/linuxproc: no cgroups for proctrack/cgroup can be made here"
    fi
    # Other tests change the plugin's configuration meanwhile.
    cp "$WORK/plugstack.conf" "$WORK/plugstack-n4.conf"
    on n4 mount --bind "$WORK/plugstack-n4.conf" "$WORK/plugstack.conf"
    for node in n1 n2 n3 n4; do
        start_daemon "$node"
        start_slurmd "$node"
    done
}

# restore_nodes NODE...: what a failed test may have left.
restore_nodes() {
    use_plugin
    # shellcheck disable=SC2119
    set_scripts
    for node; do
        # shellcheck disable=SC2046  # numbers
        scancel $(squeue -h -w "$node" -o %A) 2> /dev/null || :
        on "$node" find /run/gcgroup/slurm -depth -type d -exec rmdir {} + 2> /dev/null || :
        on "$node" "$WORK/gcgroupfs" get devices > /dev/null 2>&1 || start_daemon "$node" || :
        kill -0 "$(cat "$WORK/slurmd-$node")" 2> /dev/null || start_slurmd "$node" || :
        node_is "$node" idle || scontrol update "NodeName=$node" State=RESUME 2> /dev/null || :
    done
}
