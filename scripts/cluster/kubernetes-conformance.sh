#!/bin/bash
# shellcheck disable=SC2154  # assigned by kubernetes.sh
# A step of scripts/cluster/kubernetes.sh: two contending pods, compared with jobs of gcgroupfs run by
# common/conformance.py. That program calls this file as a program, `start|group|end JOB`.

# conformance_pod JOB: prints the pod of a job.
conformance_pod() {
    local swap=
    [ "$JOB_SWAP" = no ] || swap=', gcgroup.io/memory-swap-max: max'
    cat <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: conformance-$1
  namespace: default
  annotations: {gcgroup.io/compute-max: "${JOB_MAX}000 100000", gcgroup.io/priority: "$JOB_PRIORITY"$swap}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: main
    image: example.invalid/test:1
    imagePullPolicy: Never
    command: [/bin/sh, -c, "${JOB_COMMAND//\\/\\\\}"]
    env: [{name: SIMGPU_DIR, value: /gpu}, {name: SIMGPU_CONTEXT_MEMORY, value: "0"}]
    resources: {limits: {gcgroup.io/gpu-memory: $((JOB_MEMORY >> 30))}}
    volumeMounts: [{name: gpu, mountPath: /gpu}]
  volumes: [{name: gpu, hostPath: {path: $work/gpu}}]
YAML
}

# conformance_group JOB: prints the group of a pod's container, once the pod's settings are in force.
conformance_group() {
    local pod group
    pod=$("$programs/kubectl" get pod "conformance-$1" -o 'jsonpath={.metadata.uid}')
    for group in "pods/$pod/container-main" "pods/$pod"; do
        if "$dist/bin/gcgroupfs" get "$group/gcgroup.procs" 2> /dev/null | grep -q . &&
            ! "$dist/bin/gcgroupfs" get "pods/$pod/compute.max" | grep -q max; then
            echo "$group"
            return
        fi
    done
}

jobs_are_held_as_under_gcgroupfs_run() {
    env PATH="$dist/bin:$PATH" LD_LIBRARY_PATH="$dist/simgpu" SIMGPU_DIR="$work/gpu" SIMGPU_DEVICES=2 \
        SIMGPU_MEMORY=8G SIMGPU_CONTEXT_MEMORY=0 \
        "$here/common/conformance.py" --daemon "$(cat "$work/gcgroupfs.pid")" --unit $((1 << 30)) \
        --load gcgroup-load --gcgroupfs "$dist/bin/gcgroupfs" -- "$here/kubernetes-conformance.sh"
}

# As a program.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -eu
    case $1 in
        start) conformance_pod "$2" | "$programs/kubectl" apply -f - > /dev/null ;;
        group) conformance_group "$2" ;;
        end) "$programs/kubectl" delete pod "conformance-$2" > /dev/null ;;
    esac
fi
