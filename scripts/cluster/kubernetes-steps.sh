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
    containers_of_a_pod_are_each_held_to_their_share
    annotations_and_class_set_priority_quota_and_swap
    annotations_change_a_running_pod
    whole_card_is_not_given_in_units_and_a_request_waits
    metrics_name_namespace_pod_and_container
    unhealthy_without_daemon_and_limits_hold_after_its_restart
    plugin_killed_comes_back
    kubelet_killed_gets_the_resources_again
    containerd_killed_keeps_pods_and_limits
    plugin_upgrade_keeps_pods_and_limits
    ended_pods_leave_nothing
    jobs_are_held_as_under_gcgroupfs_run
    card_with_xid_error_is_unhealthy
    missing_rule_is_noticed_and_nothing_is_offered
)

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
    kubectl apply -f "$repo/gcgroupfs/integrations/kubelet-plugin/daemonset.yaml" > /dev/null
    wait_for "the DaemonSet is rolled out" 120 is_rolled_out
    wait_for "the plugin is registered" 60 plugin_logs registered
    wait_for "units are offered" 30 has_allocatable gcgroup.io/gpu-memory 16
    wait_for "cards are offered" 30 has_allocatable gcgroup.io/gpu 2
}

has_no_unmanaged() {
    gcgroupfs get unmanaged
    [ -z "$(gcgroupfs get unmanaged)" ]
}

pod_without_devices_is_reported_and_has_no_memory() {
    wait_for "the pod is reported" 30 plugin_logs "default/early-node/main was started without the devices"
    rm "$work/static/early.yaml"
    # It holds all memory of its card until then.
    wait_for "the static pod has ended" 60 has_no_unmanaged
    pod_with_own_library sneaky | kubectl apply -f - > /dev/null
    wait_for "the pod is refused all memory" 60 \
        grep -F "/pods/$(uid sneaky)/container-main on GPU 0: 1 allocations refused, lowest limit 0 bytes" "$work/log/gcgroupfs"
    kubectl delete pod sneaky --wait=false > /dev/null
}

two_pods_share_a_card_and_each_is_held_to_its_share() {
    local annotations='gcgroup.io/priority: "9", gcgroup.io/compute-max: 20000 100000'
    pod one "$(units 2)" "$annotations, gcgroup.io/memory-swap-max: 1G" | kubectl apply -f - > /dev/null
    holds one 2
    # A static pod.
    pod two "$(units 3)" | static_pod two
    holds two-node 3
    [ "$(card one)" = "$(card two-node)" ] || fail "the pods are on cards $(card one) and $(card two-node)"
    all_held
}

# load POD CONTAINER: prints what a program says that allocates until it is refused, in a container without
# its environment.
load() {
    kubectl exec "$1" -c "$2" -- /bin/env -i SIMGPU_DIR=/gpu SIMGPU_CONTEXT_MEMORY=0 /usr/bin/gcgroup-load memory \
        --size 64M --touch 0 --hold 0 2>&1 || :
}

# gets_nothing POD CONTAINER: a program that is executed in a container is refused its first allocation.
gets_nothing() {
    local said
    said=$(load "$1" "$2")
    case $said in
        *"at 0 bytes"* | *"gcgroup-load: "*CUDA_ERROR_OUT_OF_MEMORY*) ;;
        *) fail "exec in the full container $2 of pod $1: $said" ;;
    esac
}

# cannot_use_a_gpu POD CONTAINER: a program that is executed in a container is refused by cuInit.
cannot_use_a_gpu() {
    local said
    said=$(load "$1" "$2")
    case $said in
        *CUDA_ERROR_SYSTEM_NOT_READY*) ;;
        *) fail "exec in container $2 of pod $1 while no daemon runs: $said" ;;
    esac
}

limit_holds_for_exec_without_environment() {
    gets_nothing one main
}

# Prints a pod with the container full, which takes its unit, and the container idle, which has two.
pod_of_two() {
    pod "$1" "$(units 1)" | python3 -c '
import sys
text = sys.stdin.read().replace("- name: main", "- name: full")
begin, end = text.index("  - name: full"), text.index("  volumes:")
other = text[begin:end].replace("name: full", "name: idle").replace("gpu-memory: 1", "gpu-memory: 2")
lines = other.splitlines(True)
lines = ["    command: [/bin/sleep, \"1000000000\"]\n" if "command:" in line else line for line in lines]
sys.stdout.write(text[:end] + "".join(lines) + text[end:])'
}

containers_of_a_pod_are_each_held_to_their_share() {
    local group said bytes
    pod_of_two pair | kubectl apply -f - > /dev/null
    wait_for "the first container is refused more" 90 container_logs_have pair full CUDA_ERROR_OUT_OF_MEMORY
    wait_for "the second container runs" 60 kubectl wait --for=condition=Ready pod/pair --timeout=1s
    group=pods/$(uid pair)
    [ "$(gcgroupfs get "$group/memory.limit")" = $((3 * gib)) ] || fail "$group has not the limit of its containers"
    group=$group/container-full
    [ "$(gcgroupfs get "$group/memory.limit")" = "$gib" ] || fail "$group has another limit than 1 GiB"
    is_full "$(gcgroupfs get "$group/memory.current")" 1 > /dev/null || fail "$group does not hold 1 GiB"
    # The pod has room for 2 GiB, which is the other container's.
    gets_nothing pair full
    said=$(load pair idle)
    bytes=$(echo "$said" | sed -n 's/^refused CUDA_ERROR_OUT_OF_MEMORY at \([0-9]*\) bytes$/\1/p')
    is_about "${bytes:-0}" 2 > /dev/null || fail "exec in a container with 2 GiB: $said"
    kubectl delete pod pair --wait=false > /dev/null
}

# container_logs_have POD CONTAINER TEXT
container_logs_have() {
    kubectl logs "$1" -c "$2" | grep -F "$3"
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
    kubectl annotate pod one --overwrite gcgroup.io/priority=10 > /dev/null
    wait_for "the priority follows the annotation" 20 shows one compute.priority 10
    pod greedy "$(units 1)" 'gcgroup.io/priority: "0"' | kubectl apply -f - > /dev/null
    wait_for "the annotation is refused" 60 events_have greedy "pods may have 6 to 15, not 0"
    kubectl delete pod greedy --wait=false > /dev/null
}

# events_have POD TEXT
events_have() {
    kubectl get events --field-selector "involvedObject.name=$1" -o 'jsonpath={.items[*].message}' | grep -F "$2"
}

# stays POD FILE TEXT REASON: the pod's events have the reason, and the file has not changed.
stays() {
    wait_for "the event of the refused value" 30 events_have "$1" "$4"
    shows "$1" "$2" "$3" > "$work/last" || fail "$(cat "$work/last")"
}

annotations_change_a_running_pod() {
    local limit=memory.limit container=container-main
    annotate() { kubectl annotate pod --overwrite "$@" > /dev/null; }
    pod fixed "$(units 2)" | kubectl apply -f - > /dev/null
    # Where the swap is full, nothing may move.
    pod live "$(units 2)" 'gcgroup.io/memory-swap-max: "4Gi"' '--total, 2G,' | kubectl apply -f - > /dev/null
    holds fixed 2
    annotate fixed gcgroup.io/memory-limit=lots
    stays fixed $limit $((2 * gib)) '"lots": expected bytes'
    annotate fixed gcgroup.io/memory-limit=3Gi
    stays fixed $limit $((2 * gib)) '"3Gi": more than the resources'
    annotate fixed gcgroup.io/memory-limit=1Gi
    stays fixed $limit $((2 * gib)) '"1Gi": less than is in use'
    annotate fixed gcgroup.io/compute-max=sometimes
    stays fixed compute.max "max 100000" '"sometimes"'
    annotate fixed gcgroup.io/compute-max="$(printf '%20000d' 0 | tr ' ' 9)"
    stays fixed compute.max "max 100000" 'longer than 100 characters'
    kubectl delete pod fixed --wait=false > /dev/null
    annotate live gcgroup.io/memory-limit=1Gi gcgroup.io/compute-max="30000 100000" priority.gcgroup.io/main=11
    wait_for "the limit is lowered where memory may move" 30 shows live $limit "$gib"
    wait_for "the quota follows the annotation" 30 shows live compute.max "30000 100000"
    wait_for "the container's priority follows the annotation" 30 shows live $container/compute.priority 11
    shows live compute.priority 12 > /dev/null || fail "the pod has its container's priority"
    annotate live gcgroup.io/memory-limit- memory-limit.gcgroup.io/main=1536Mi priority.gcgroup.io/main-
    wait_for "the granted limit is back" 30 shows live $limit $((2 * gib))
    wait_for "the container's limit follows the annotation" 30 shows live $container/$limit $((3 * gib / 2))
    wait_for "the container's priority is its pod's" 30 shows live $container/compute.priority 12
    kubectl delete pod live --wait=false > /dev/null
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
    cannot_use_a_gpu one main
    kubectl annotate pod one --overwrite gcgroup.io/compute-max="25000 100000" > /dev/null
    start_gcgroupfs
    wait_for "units are offered again" 30 has_allocatable gcgroup.io/gpu-memory 16
    wait_for "the pods are back" 30 gcgroupfs get "pods/$(uid one)/memory.limit"
    wait_until_held
    shows one compute.priority 10 > /dev/null || fail "the annotated priority is lost"
    wait_for "the quota that was annotated meanwhile holds" 20 shows one compute.max "25000 100000"
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
    kubectl annotate pod one --overwrite gcgroup.io/priority=11 > /dev/null
    wait_for "its container is started again" 60 has_restarted
    wait_for "the plugin is registered" 60 plugin_logs registered
    all_held
    wait_for "the priority that was annotated meanwhile holds" 20 shows one compute.priority 11
    wait_for "units are offered" 30 has_allocatable gcgroup.io/gpu-memory 16
    starts after-plugin 1
}

has_restarted() {
    [ "$(plugin '.status.containerStatuses[0].restartCount')" = 1 ]
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
    kubectl -n gcgroup-system logs -l app=gcgroup-kubelet-plugin --tail=-1 |
        awk '/the kubelet has restarted/ { seen = 1 } /: registered$/ { done = seen } END { exit !done }'
}

kubelet_killed_gets_the_resources_again() {
    kill9 kubelet
    kubectl annotate pod one --overwrite gcgroup.io/priority=12 > /dev/null
    start_kubelet
    wait_for "the priority that was annotated meanwhile holds" 20 shows one compute.priority 12
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

plugin_is_upgraded() {
    [ "$(plugin '.spec.containers[0].image')" = "$plugin_image:next" ]
}

plugin_upgrade_keeps_pods_and_limits() {
    sed "s|image: $plugin_image:0.2.0|image: $plugin_image:next|" "$repo/gcgroupfs/integrations/kubelet-plugin/daemonset.yaml" \
        > "$work/upgrade.yaml"
    kubectl apply -f "$work/upgrade.yaml" > /dev/null
    # The kubelet may look at an ended pod again only after a minute.
    wait_for "the DaemonSet is rolled out" 180 is_rolled_out
    wait_for "the plugin is upgraded" 10 plugin_is_upgraded
    wait_for "the plugin is registered" 60 plugin_logs registered
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

# The next step starts the daemon again, and all units are offered again.
card_with_xid_error_is_unhealthy() {
    # 31 is a program's fault.
    printf '0 31\n1 79\n' >> "$work/gpu/xid"
    wait_for "the card's units are not offered" 30 has_allocatable gcgroup.io/gpu-memory 8
    wait_for "the card is not offered" 30 has_allocatable gcgroup.io/gpu 1
    plugin_logs "has had XID error 79" > /dev/null || fail "$(plugin_logs '')"
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
    # Otherwise the pod below may come while the plugin still takes the daemon for away.
    wait_for "nothing is offered" 30 has_allocatable gcgroup.io/gpu-memory 0
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
