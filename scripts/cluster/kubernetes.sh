#!/bin/bash
# Tests gcgroup-kubelet-plugin with a real kubelet, API server, scheduler, controller manager and containerd,
# and simulated GPUs, in namespaces of their own, which end with this script (contained.sh).
set -eu

usage() {
    cat <<'USAGE'
usage: scripts/test-cluster.sh kubernetes

Needs root, and Debian 12 for the first run, which builds Kubernetes (build-kubernetes.sh).

environment:
  GCGROUP_DIST   a built tree (<repository>/target/dist, which is built if it has no plugin)
  KEEP           directory to which the logs are copied
USAGE
}

here=$(cd "$(dirname "$0")" && pwd -P)
repo=$(cd "$here/../.." && pwd -P)

fail() {
    echo "kubernetes.sh: $*" >&2
    exit 1
}

if [ -z "${INSIDE-}" ]; then
    case ${1-} in
        '') ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    [ "$(id -u)" = 0 ] || fail "needs root"
    for tool in containerd ctr runc etcd ip openssl curl; do
        command -v "$tool" > /dev/null || fail "$tool is missing: KUBERNETES=yes scripts/setup-debian.sh"
    done
    programs=$("$here/build-kubernetes.sh")
    dist=${GCGROUP_DIST:-$repo/target/dist}
    [ -x "$dist/bin/gcgroup-kubelet-plugin" ] || DIST=$dist "$repo/scripts/build.sh"
    [ -z "${KEEP-}" ] || mkdir -p "$KEEP"
    # shellcheck source=scripts/contained.sh
    . "$repo/scripts/contained.sh"
    export INSIDE=yes work=/dev/shm/work dist programs PATH="$programs:$PATH:/usr/sbin:/sbin"
    contained 840 --net "$0"
    exit
fi

# wait_for WHAT SECONDS COMMAND...: waits until the command succeeds.
wait_for() {
    local what=$1 end=$((SECONDS + $2))
    shift 2
    until "$@" > "$work/last" 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "kubernetes.sh: not in time: $what" >&2
            cat "$work/last" >&2
            exit 1
        fi
        sleep 0.3
    done
}

# Bounded, because a client waits forever for a server that does not answer.
kubectl() {
    timeout 20 "$programs/kubectl" "$@"
}

# shellcheck source=scripts/cluster/kubernetes-node.sh
. "$here/kubernetes-node.sh"
# shellcheck source=scripts/cluster/kubernetes-pods.sh
. "$here/kubernetes-pods.sh"
# shellcheck source=scripts/cluster/kubernetes-steps.sh
. "$here/kubernetes-steps.sh"
# shellcheck source=scripts/cluster/kubernetes-conformance.sh
. "$here/kubernetes-conformance.sh"

# shellcheck disable=SC2317  # called by the trap
explain() {
    local status=$?
    [ "$status" != 0 ] || return
    echo "--- state" >&2
    kubectl get pods -A -o wide >&2 || :
    kubectl get events -A --field-selector type=Warning >&2 || :
    kubectl -n gcgroup-system logs -l app=gcgroup-kubelet-plugin --tail=30 >&2 || :
    for log in gcgroupfs kubelet containerd kube-apiserver kube-controller-manager; do
        echo "--- end of the log of $log" >&2
        tail -8 "$work/log/$log" >&2 || :
    done
}
trap explain EXIT

prepare_cgroups
prepare_files
prepare_network
started=$SECONDS
for step in "${steps[@]}"; do
    began=$SECONDS
    "$step"
    echo "ok ${step//_/ } ($((SECONDS - began)) s)"
done
echo "kubernetes: ${#steps[@]} steps passed in $((SECONDS - started)) s"
