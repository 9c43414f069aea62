# shellcheck shell=bash
# Steps of scripts/cluster/kubernetes.sh, which sources this file: one function each, run in order. There are
# two cards of 8 GiB.

# shellcheck disable=SC2034,SC2154  # used, and assigned, by the script that sources this file
steps=(
    daemon_and_containerd_and_api_server_start
    static_pod_before_the_plugin_starts_without_devices
    daemonset_offers_units_and_cards
    pod_without_devices_is_reported_and_has_no_memory
    two_pods_share_a_card_and_each_is_held_to_its_share
    limit_holds_for_exec_without_environment
    annotations_and_class_set_priority_quota_and_swap
    whole_card_is_not_given_in_units_and_a_request_waits
    metrics_name_namespace_pod_and_container
    unhealthy_without_daemon_and_limits_hold_after_its_restart
    plugin_killed_comes_back
    kubelet_killed_gets_the_resources_again
    containerd_killed_keeps_pods_and_limits
    plugin_upgrade_keeps_pods_and_limits
    ended_pods_leave_nothing
    jobs_are_held_as_under_gcgroupfs_run
    missing_rule_is_noticed_and_nothing_is_offered
)

plugin_image=gcgroup-kubelet-plugin
gib=$((1 << 30))

gcgroupfs() {
    "$dist/bin/gcgroupfs" "$@"
}

# start_gcgroupfs [CONFIG]. The simulated GPUs are a directory that all programs share.
start_gcgroupfs() {
    SIMGPU_DIR=$work/gpu SIMGPU_DEVICES=2 SIMGPU_MEMORY=8G LD_LIBRARY_PATH=$dist/simgpu \
        start gcgroupfs "$dist/bin/gcgroupfs" mount --config "${1-$repo/gcgroupfs/kubelet-plugin/gcgroupfs.toml}" \
        --state-dir "$work/state" --allow-other "$work/mount"
    wait_for "the daemon answers" 30 gcgroupfs get devices
}

# pod NAME LIMITS [ANNOTATIONS]: prints a pod whose program allocates blocks of 64 MiB until it is refused,
# and holds them.
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
    command: [/usr/bin/gcgroup-load, memory, --size, 64M, --touch, "0", --hold, "100000"]
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

# There is no controller manager: the test makes the pod of the DaemonSet from its template.
start_plugin() {
    kubectl -n gcgroup-system get daemonset gcgroup-kubelet-plugin -o json | python3 -c '
import json, sys
pod = json.load(sys.stdin)["spec"]["template"]
pod.update(apiVersion="v1", kind="Pod")
pod["metadata"].update(name="plugin", namespace="gcgroup-system")
pod["spec"]["nodeName"] = "node"
json.dump(pod, sys.stdout)' | kubectl apply -f - > /dev/null
    wait_for "the plugin is registered" 60 plugin_logs registered
}

plugin_logs() {
    kubectl -n gcgroup-system logs plugin | grep -F "$1"
}

daemon_and_containerd_and_api_server_start() {
    local libraries=/usr/lib/x86_64-linux-gnu
    mkdir -p "$work/gpu" "$work/mount" "$work/state"
    chmod 1777 "$work/gpu"
    start_gcgroupfs
    gcgroupfs cdi --output /etc/cdi/gcgroupfs.json
    "$repo/scripts/container-image.py" "$work/test.tar" example.invalid/test:1,example.invalid/pause:1 --busybox \
        --entrypoint "/bin/sleep 1000000000" "$dist/bin/gcgroup-load:/usr/bin/gcgroup-load" \
        "$dist/simgpu/libcuda.so.1:$libraries/libcuda.so.1" "$dist/lib/libgcgroup_hook.so:/opt/unused.so"
    "$repo/scripts/container-image.py" "$work/plugin.tar" "$plugin_image:0.2.0,$plugin_image:next" \
        --entrypoint /usr/bin/gcgroup-kubelet-plugin \
        "$dist/bin/gcgroup-kubelet-plugin:/usr/bin/gcgroup-kubelet-plugin"
    start_containerd
    for image in test plugin; do
        ctr -n k8s.io images import "$work/$image.tar" > /dev/null
    done
    start_control_plane
    start_kubelet
    wait_for "the node is ready" 60 kubectl wait --for=condition=Ready node/node --timeout=1s
}

static_pod_before_the_plugin_starts_without_devices() {
    pod early "$(units 1)" | static_pod early
    # Where a first try fails, the kubelet waits before the next.
    wait_for "the static pod runs" 120 kubectl wait --for=condition=Ready pod/early-node --timeout=1s
}

daemonset_offers_units_and_cards() {
    kubectl apply -f "$repo/gcgroupfs/kubelet-plugin/daemonset.yaml" > /dev/null
    kubectl -n gcgroup-system create configmap kube-root-ca.crt --from-file=ca.crt="$work/ca.crt" > /dev/null
    start_plugin
    wait_for "units are offered" 30 has_allocatable gcgroup.io/gpu-memory 16
    wait_for "cards are offered" 30 has_allocatable gcgroup.io/gpu 2
}

pod_without_devices_is_reported_and_has_no_memory() {
    wait_for "the pod is reported" 30 plugin_logs "default/early-node/main was started without the devices"
    rm "$work/static/early.yaml"
    pod_with_own_library sneaky | kubectl apply -f - > /dev/null
    wait_for "the pod is refused all memory" 60 \
        grep -F "/pods/$(uid sneaky) on GPU 0: 1 allocations refused, lowest limit 0 bytes" "$work/log/gcgroupfs"
    kubectl delete pod sneaky --wait=false > /dev/null
}

two_pods_share_a_card_and_each_is_held_to_its_share() {
    local annotations='gcgroup.io/compute.priority: "9", gcgroup.io/compute.max: 20000 100000'
    pod one "$(units 2)" "$annotations, gcgroup.io/memory.swap.max: 1G" | kubectl apply -f - > /dev/null
    holds one 2
    # A static pod.
    pod two "$(units 3)" | static_pod two
    holds two-node 3
    [ "$(card one)" = "$(card two-node)" ] || fail "the pods are on cards $(card one) and $(card two-node)"
    all_held
}

limit_holds_for_exec_without_environment() {
    local said
    said=$(kubectl exec one -- /bin/env -i SIMGPU_DIR=/gpu SIMGPU_CONTEXT_MEMORY=0 /usr/bin/gcgroup-load memory \
        --size 64M --touch 0 --hold 0 2>&1) || :
    case $said in
        *"at 0 bytes"* | *"gcgroup-load: "*CUDA_ERROR_OUT_OF_MEMORY*) ;;
        *) fail "exec in a full pod: $said" ;;
    esac
}

# shows POD FILE TEXT
shows() {
    local text
    text=$(gcgroupfs get "pods/$(uid "$1")/$2")
    echo "$2: $text, wanted $3"
    [ "$text" = "$3" ]
}

annotations_and_class_set_priority_quota_and_swap() {
    wait_for "the priority is that of the annotation" 10 shows one compute.priority 9
    wait_for "the quota is that of the annotation" 10 shows one compute.max "20000 100000"
    wait_for "the swap is that of the annotation" 10 shows one memory.swap.max "$gib"
    # Without requests of CPU or memory the class is BestEffort.
    wait_for "the priority is that of the class" 10 shows two-node compute.priority 12
    kubectl annotate pod one --overwrite gcgroup.io/compute.priority=10 > /dev/null
    wait_for "the priority follows the annotation" 20 shows one compute.priority 10
    pod greedy "$(units 1)" 'gcgroup.io/compute.priority: "0"' | kubectl apply -f - > /dev/null
    wait_for "the annotation is refused" 60 events_have greedy "pods may have 6 to 15, not 0"
    kubectl delete pod greedy --wait=false > /dev/null
}

# events_have POD TEXT
events_have() {
    kubectl get events --field-selector "involvedObject.name=$1" -o 'jsonpath={.items[*].message}' | grep -F "$2"
}

whole_card_is_not_given_in_units_and_a_request_waits() {
    wait_for "the card with units is not offered whole" 20 has_allocatable gcgroup.io/gpu 1
    pod whole "gcgroup.io/gpu: 1" | kubectl apply -f - > /dev/null
    wait_for "the pod has all memory of its card" 60 logs_have whole "refused CUDA_ERROR_OUT_OF_MEMORY"
    shows whole memory.limit max > /dev/null
    is_full "$(gcgroupfs get "pods/$(uid whole)/memory.current")" 8 > /dev/null || fail "the pod has not all of its card"
    wait_for "the whole card's units are not offered" 20 has_allocatable gcgroup.io/gpu-memory 8
    pod waits "$(units 4)" | kubectl apply -f - > /dev/null
    wait_for "the pod waits" 30 events_have waits "Insufficient gcgroup.io/gpu-memory"
    kubectl delete pod whole --wait=false > /dev/null
    holds waits 4
    [ "$(card waits)" != "$(card one)" ] || fail "the pod is on a card that has no room"
    kubectl delete pod waits --wait=false > /dev/null
}

metrics_name_namespace_pod_and_container() {
    "$dist/bin/gcgroup-exporter" --pods /run/gcgroup-kubelet-plugin/pods.json --textfile "$work/metrics"
    grep -E '^gcgroup_process_memory_bytes\{.*container="main".*namespace="default".*pod="one"' "$work/metrics" ||
        fail "$(grep gcgroup_process_memory_bytes "$work/metrics")"
} > "$work/last"

unhealthy_without_daemon_and_limits_hold_after_its_restart() {
    kill9 gcgroupfs
    wait_for "nothing is offered" 30 has_allocatable gcgroup.io/gpu-memory 0
    start_gcgroupfs
    wait_for "units are offered again" 30 has_allocatable gcgroup.io/gpu-memory 16
    wait_for "the pods are back" 30 gcgroupfs get "pods/$(uid one)/memory.limit"
    wait_until_held
    limit_holds_for_exec_without_environment
    starts after-daemon 1
}

# is_charged POD GIB
is_charged() {
    is_full "$(gcgroupfs get "pods/$(uid "$1")/memory.current")" "$2"
}

# After a restart of the daemon the programs register again.
wait_until_held() {
    wait_for "pod one is charged" 30 is_charged one 2
    wait_for "pod two is charged" 30 is_charged two-node 3
    all_held
}

plugin_killed_comes_back() {
    kill_plugin
    wait_for "its container is started again" 60 has_restarted
    wait_for "the plugin is registered" 60 plugin_logs registered
    all_held
    wait_for "units are offered" 30 has_allocatable gcgroup.io/gpu-memory 16
    starts after-plugin 1
}

has_restarted() {
    [ "$(kubectl -n gcgroup-system get pod plugin -o 'jsonpath={.status.containerStatuses[0].restartCount}')" = 1 ]
}

# Kills the plugin, of which there is one in this pid namespace.
kill_plugin() {
    local directory
    for directory in /proc/[0-9]*; do
        case $(readlink "$directory/exe") in
            */gcgroup-kubelet-plugin) kill -KILL "${directory#/proc/}" ;;
        esac
    done
}

has_registered_again() {
    kubectl -n gcgroup-system logs plugin |
        awk '/the kubelet has restarted/ { seen = 1 } /: registered$/ { done = seen } END { exit !done }'
}

kubelet_killed_gets_the_resources_again() {
    kill9 kubelet
    start_kubelet
    # A pod that comes before is rejected for good.
    wait_for "the plugin registers again" 60 has_registered_again
    wait_for "units are offered" 60 has_allocatable gcgroup.io/gpu-memory 16
    all_held
    starts after-kubelet 1
}

containerd_killed_keeps_pods_and_limits() {
    kill9 containerd
    start_containerd
    wait_for "the node is ready" 60 kubectl wait --for=condition=Ready node/node --timeout=1s
    all_held
    starts after-containerd 1
}

plugin_is_gone() {
    [ -z "$(kubectl -n gcgroup-system get pod plugin --ignore-not-found -o name)" ]
}

plugin_upgrade_keeps_pods_and_limits() {
    kubectl -n gcgroup-system set image daemonset/gcgroup-kubelet-plugin plugin=$plugin_image:next > /dev/null
    kubectl -n gcgroup-system delete pod plugin --wait=false > /dev/null
    # The kubelet may look at an ended pod again only after a minute.
    wait_for "the old plugin's pod is gone" 120 plugin_is_gone
    start_plugin
    all_held
    wait_for "units are offered" 30 has_allocatable gcgroup.io/gpu-memory 16
    starts after-upgrade 1
}

has_no_groups() {
    gcgroupfs ls --json
    ! gcgroupfs ls --json | grep -E '"pods/'
}

ended_pods_leave_nothing() {
    rm "$work/static/two.yaml"
    kubectl delete pods --all --wait=false > /dev/null
    wait_for "no pod has a group" 60 has_no_groups
    wait_for "both cards are offered" 30 has_allocatable gcgroup.io/gpu 2
}

# metrics_have TEXT
metrics_have() {
    "$dist/bin/gcgroup-exporter" --pods /run/gcgroup-kubelet-plugin/pods.json --textfile "$work/metrics"
    grep '^gcgroup_pods_without_rule' "$work/metrics"
    grep -qF "$1" "$work/metrics"
}

# has_process POD
has_process() {
    gcgroupfs get "pods/$(uid "$1")/gcgroup.procs" | grep .
}

missing_rule_is_noticed_and_nothing_is_offered() {
    kill9 gcgroupfs
    : > "$work/no-rule.toml"
    start_gcgroupfs "$work/no-rule.toml"
    wait_for "units are offered" 60 has_allocatable gcgroup.io/gpu-memory 16
    pod unruled "$(units 1)" | kubectl apply -f - > /dev/null
    wait_for "the missing rule is reported" 90 plugin_logs "the daemon has no rule for pods"
    wait_for "the process is in its pod's group" 30 has_process unruled
    shows unruled memory.limit "$gib" > /dev/null
    wait_for "nothing is offered" 30 has_allocatable gcgroup.io/gpu-memory 0
    wait_for "the metric tells it" 30 metrics_have 'gcgroup_pods_without_rule{} 1'
    kubectl delete pod unruled --wait=false > /dev/null
}
