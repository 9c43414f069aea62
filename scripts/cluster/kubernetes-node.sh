# shellcheck shell=bash
# shellcheck disable=SC2154  # assigned by the script that sources this file
# Starts a Kubernetes node with API server, scheduler and controller manager, for
# scripts/cluster/kubernetes.sh, which sources this file in network, mount and PID namespaces of their own.
# Needs $work (a path on a plain filesystem), $CGROUP (a name) and $PATH with the programs.

address=10.88.6.1
service=10.96.0.1

prepare_cgroups() {
    local hierarchy
    for hierarchy in /sys/fs/cgroup/*/; do
        [ ! -e "$hierarchy/cgroup.procs" ] || mkdir "$hierarchy$CGROUP"
    done
}

# Directories of this machine that the node writes to become copies, which end with the mount namespace.
prepare_files() {
    mkdir -p "$work/log"
    [ -z "${KEEP-}" ] || mount --bind "$KEEP" "$work/log"
    mount -t tmpfs tmpfs /run
    for directory in etc var; do
        mkdir -p "$work/overlay/$directory/upper" "$work/overlay/$directory/work"
        mount -t overlay overlay "/$directory" \
            -o "lowerdir=/$directory,upperdir=$work/overlay/$directory/upper,workdir=$work/overlay/$directory/work"
    done
    mkdir -p "$work/kubelet" /var/lib/kubelet "$work/cni" /etc/cdi /run/lock
    mount --bind "$work/kubelet" /var/lib/kubelet
    mount --make-rshared /var/lib/kubelet
    # The kubelet insists on these kernel settings: it is shown copies, and the machine keeps its own.
    mkdir -p "$work/sysctl"
    while read -r name value; do
        echo "$value" > "$work/sysctl/${name##*/}"
        mount --bind "$work/sysctl/${name##*/}" "/proc/sys/$name"
    done <<'SYSCTLS'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SYSCTLS
}

# A node address and a default route, neither of which leads anywhere.
prepare_network() {
    ip link set lo up
    ip link add node0 type bridge
    ip addr add "$address/24" dev node0
    ip addr add "$service/32" dev node0
    ip link set node0 up
    ip route add default via 10.88.6.254
    echo 1 > /proc/sys/net/ipv4/ip_forward
    cat > "$work/cni/ptp.conflist" <<'CNI'
{"cniVersion":"0.4.0","name":"p","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.88.7.0/24",
"routes":[{"dst":"0.0.0.0/0"}]}}]}
CNI
}

# start NAME COMMAND...: starts a daemon with a log of its own; its pid is in $work/NAME.pid.
start() {
    local name=$1
    shift
    setsid "$@" >> "$work/log/$name" 2>&1 < /dev/null &
    echo $! > "$work/$name.pid"
}

# kill9 NAME: kills a daemon and waits until it has ended.
kill9() {
    local pid
    pid=$(cat "$work/$1.pid")
    kill -KILL "$pid"
    wait "$pid" 2> /dev/null || :
}

start_containerd() {
    cat > "$work/containerd.toml" <<TOML
version = 2
root = "$work/containerd/root"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$work/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "example.invalid/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = "$work/cni"
  bin_dir = "/usr/lib/cni"
TOML
    start containerd containerd -c "$work/containerd.toml"
    wait_for "containerd answers" 60 ctr version
}

start_control_plane() {
    local token
    token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    cd "$work" || return
    (umask 077 && echo "$token,admin,admin,system:masters" > tokens.csv)
    openssl genrsa -out key.pem 2048 2> /dev/null
    openssl rsa -in key.pem -pubout -out public.pem 2> /dev/null
    start etcd etcd --data-dir "$work/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
    start kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 \
        --secure-port=443 --advertise-address="$address" --service-cluster-ip-range="${service%.*}.0/24" \
        --cert-dir="$work/certificates" --token-auth-file=tokens.csv --authorization-mode=Node,RBAC \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=public.pem \
        --service-account-signing-key-file=key.pem --kubelet-preferred-address-types=InternalIP \
        --disable-admission-plugins=ServiceAccount,TaintNodesByCondition
    cat > kubeconfig <<YAML
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$service", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: $token}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
YAML
    export KUBECONFIG=$work/kubeconfig
    wait_for "the API server answers" 120 kubectl get --raw /readyz
    # The certificate is followed by that of the authority which the server has made for itself.
    awk '/BEGIN CERTIFICATE/ { number++ } number == 2' certificates/apiserver.crt > ca.crt
    start kube-scheduler kube-scheduler --kubeconfig=kubeconfig --leader-elect=false
    # The controllers that the manifest needs: the other one makes the ConfigMap kube-root-ca.crt.
    start kube-controller-manager kube-controller-manager --kubeconfig=kubeconfig --leader-elect=false \
        --controllers=daemonset,root-ca-cert-publisher --root-ca-file=ca.crt --bind-address=127.0.0.1 \
        --cert-dir="$work/manager"
}

# The kubelet joins the API server and also runs the static pods of $work/static.
start_kubelet() {
    mkdir -p "$work/static"
    cat > "$work/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: $work/static
fileCheckFrequency: 1s
address: 0.0.0.0
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
resolvConf: ""
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
runtimeRequestTimeout: 30s
YAML
    # Old kubelets ask a cloud's metadata address for credentials, unless told that there is none.
    AWS_EC2_METADATA_DISABLED=true start kubelet kubelet --config="$work/kubelet.yaml" \
        --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
        --hostname-override=node --node-ip="$address" --kubeconfig="$work/kubeconfig"
    wait_for "the kubelet answers" 60 curl -sf http://127.0.0.1:10248/healthz
}
