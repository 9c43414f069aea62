# shellcheck shell=bash
# Makes and examines pods on the simulated cards, for the steps of scripts/cluster/kubernetes.sh, which
# sources this file.
# shellcheck disable=SC2034,SC2154  # used, and assigned, by the script that sources this file

plugin_image=gcgroup-kubelet-plugin
gib=$((1 << 30))

gcgroupfs() {
    "$dist/bin/gcgroupfs" "$@"
}

# start_gcgroupfs [CONFIG]. The simulated GPUs are a directory that all programs share.
start_gcgroupfs() {
    SIMGPU_DIR=$work/gpu SIMGPU_DEVICES=2 SIMGPU_MEMORY=8G LD_LIBRARY_PATH=$dist/simgpu \
        start gcgroupfs "$dist/bin/gcgroupfs" mount --context-size 0 \
        --config "${1-$repo/gcgroupfs/integrations/kubelet-plugin/gcgroupfs.toml}" \
        --state-dir "$work/state" --allow-other "$work/mount"
    wait_for "the daemon answers" 30 gcgroupfs get devices
}

# pod NAME LIMITS [ANNOTATIONS [OPTIONS]]: prints a pod whose program allocates blocks of 64 MiB until it is
# refused, and holds them. OPTIONS of gcgroup-load end with a comma each.
pod() {
    cat <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: default, annotations: {${3-}}}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: main
    image: example.invalid/test:1
    imagePullPolicy: Never
    command: [/usr/bin/gcgroup-load, memory, --size, 64M, --touch, "0", ${4-} --hold, "100000"]
    env: [{name: SIMGPU_DIR, value: /gpu}, {name: SIMGPU_CONTEXT_MEMORY, value: "0"}]
    resources: {limits: {$2}}
    volumeMounts: [{name: gpu, mountPath: /gpu}]
  volumes: [{name: gpu, hostPath: {path: $work/gpu}}]
YAML
}

# A pod that has the library by itself, and asks for no memory of a GPU.
pod_with_own_library() {
    cat <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: main
    image: example.invalid/test:1
    imagePullPolicy: Never
    command: [/usr/bin/gcgroup-load, memory, --size, 64M, --touch, "0", --hold, "100000"]
    env:
    - {name: SIMGPU_DIR, value: /gpu}
    - {name: SIMGPU_CONTEXT_MEMORY, value: "0"}
    - {name: LD_PRELOAD, value: /opt/library/libgcgroup.so}
    volumeMounts: [{name: gpu, mountPath: /gpu}, {name: library, mountPath: /opt/library}, {name: run, mountPath: /run/gcgroupfs}]
  volumes:
  - {name: gpu, hostPath: {path: $work/gpu}}
  - {name: library, hostPath: {path: $dist/lib}}
  - {name: run, hostPath: {path: /run/gcgroupfs}}
YAML
}

# static_pod NAME: gives the kubelet a static pod from the standard input, by rename: of half a file it would
# start another pod, with another UID, and kill it while its sandbox starts.
static_pod() {
    cat > "$work/static/.$1.yaml"
    mv "$work/static/.$1.yaml" "$work/static/$1.yaml"
}

# units COUNT: prints limits of a container.
units() {
    echo "gcgroup.io/gpu-memory: $1"
}

allocatable() {
    local name=${1//./\\.}
    kubectl get node node -o "jsonpath={.status.allocatable.$name}"
}

has_allocatable() {
    echo "$1: $(allocatable "$1"), wanted $2"
    [ "$(allocatable "$1")" = "$2" ]
}

# logs_have POD TEXT
logs_have() {
    kubectl logs "$1" | grep -F "$2"
}

# uid POD: prints the UID that the pod's cgroup has.
uid() {
    local mirror
    mirror=$(kubectl get pod "$1" -o 'jsonpath={.metadata.annotations.kubernetes\.io/config\.mirror}')
    echo "${mirror:-$(kubectl get pod "$1" -o 'jsonpath={.metadata.uid}')}"
}

# holds POD GIB: the pod's program has been refused at its share, and holds it.
holds() {
    wait_for "pod $1 is refused more" 90 logs_have "$1" "refused CUDA_ERROR_OUT_OF_MEMORY"
    is_held "$1" "$2"
}

# is_full BYTES GIB: BYTES are at most GIB, and less than a block below.
is_full() {
    echo "$1 bytes are charged, of $2 GiB"
    [ "$1" -le $(($2 * gib)) ] && [ "$1" -gt $(($2 * gib - (64 << 20))) ]
}

# is_about BYTES GIB: as is_full, or a block less: the context may have taken the place of one.
is_about() {
    is_full "$1" "$2" || is_full "$(($1 + (64 << 20)))" "$2"
}

# is_held POD GIB: the daemon shows the pod's limit, and as much memory as it permits.
is_held() {
    local group
    group=pods/$(uid "$1")
    [ "$(gcgroupfs get "$group/memory.limit")" = $(($2 * gib)) ] || fail "$group has another limit than $2 GiB"
    is_full "$(gcgroupfs get "$group/memory.current")" "$2" > /dev/null || fail "$group does not hold $2 GiB"
}

all_held() {
    is_held one 2
    is_held two-node 3
}

# starts POD GIB: a new pod gets its share; then it is removed.
starts() {
    pod "$1" "$(units "$2")" | kubectl apply -f - > /dev/null
    holds "$1" "$2"
    kubectl delete pod "$1" --wait=false > /dev/null
}

# card POD: prints the index of the card that the pod uses.
card() {
    local index
    for index in 0 1; do
        [ "$(gcgroupfs get "pods/$(uid "$1")/$index/memory.limit")" = 0 ] || echo "$index"
    done
}

# plugin JSONPATH: prints a field of the plugin's only pod; fails while there are others.
plugin() {
    local names
    names=$(kubectl -n gcgroup-system get pods -l app=gcgroup-kubelet-plugin -o name)
    echo "pods of the plugin: $names" >&2
    [ "$(echo "$names" | grep -c .)" = 1 ] && kubectl -n gcgroup-system get "$names" -o "jsonpath={$1}"
}

# is_rolled_out: the pods of the DaemonSet are those of its newest template, and ready.
is_rolled_out() {
    kubectl -n gcgroup-system rollout status daemonset/gcgroup-kubelet-plugin --timeout=5s
}

plugin_logs() {
    kubectl -n gcgroup-system logs -l app=gcgroup-kubelet-plugin --tail=-1 | grep -F "$1"
}
