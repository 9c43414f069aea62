#!/bin/bash
# Builds kubelet, API server, scheduler and controller manager from the source package `kubernetes` of
# Debian 12 with Debian's Go, and takes kubectl from its binary package, once per machine. Prints the
# directory of the programs.
#
# The binary package kubernetes-client has only kubectl, and is not installed, since kubectl may be installed
# by other means. The source package has the whole tree with all dependencies. Needs golang-go and dpkg-dev,
# and 2 GiB of disk while it builds (0.2 GiB afterwards).
set -eu

usage() {
    cat <<'USAGE'
usage: scripts/cluster/build-kubernetes.sh [--has | --fetch]

  --has     only tells by its exit status whether all is built
  --fetch   only fetches the packages, unless all is built

environment:
  XDG_CACHE_HOME   the programs are kept in gcgroupfs/kubernetes below it ($HOME/.cache)
USAGE
}

mode=build
case ${1-} in
    '') ;;
    --has | --fetch) mode=${1#--} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

here=$(cd "$(dirname "$0")" && pwd -P)
servers="kubelet kube-apiserver kube-controller-manager kube-scheduler"
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gcgroupfs/kubernetes

fail() {
    echo "build-kubernetes.sh: $*" >&2
    exit 1
}

# has_all: whether all is built, by this version of this script and of the servers' program.
has_all() {
    local program
    for program in $servers kubectl; do
        [ -x "$cache/bin/$program" ] || return 1
    done
    cmp -s "$here/kubernetes-node.go" "$cache/bin/kubernetes-node.go" && cmp -s "$here/build-kubernetes.sh" "$cache/bin/built-by"
}

if [ "$mode" = has ]; then
    has_all
    exit
fi

# One build at a time; the lock ends with this process.
mkdir -p "$cache"
exec 9> "$cache/lock"
flock 9

if has_all; then
    echo "$cache/bin"
    exit 0
fi
for tool in go dpkg-source apt-get; do
    command -v "$tool" > /dev/null || fail "$tool is missing: KUBERNETES=yes scripts/setup-debian.sh"
done

# Fetches the tree and kubectl from the machine's own archive, with lists of its own: the machine's
# configuration stays.
fetch() {
    local apt=$cache/apt
    rm -rf "$apt" "$cache/unpacked" "$cache/client"
    mkdir -p "$apt/state/lists/partial" "$apt/archives/partial" "$apt/sources"
    if [ -e /etc/apt/sources.list.d/debian.sources ]; then
        sed 's/^Types:.*/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources > "$apt/sources/debian.sources"
    else
        sed -n '/^deb /{p; s/^deb /deb-src /p}' /etc/apt/sources.list > "$apt/sources/debian.list"
    fi
    (
        cd "$apt"
        ask() {
            apt-get -q -o "Dir::State=$apt/state" -o Dir::State::status=/var/lib/dpkg/status \
                -o "Dir::Cache=$apt" -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources" \
                -o APT::Sandbox::User=root -o Acquire::Languages=none "$@"
        }
        ask update
        ask source --download-only kubernetes
        ask download kubernetes-client
        dpkg-deb -x kubernetes-client_*.deb "$cache/client"
        dpkg-source -x kubernetes_1.20*.dsc "$cache/unpacked"
    )
    mkdir -p "$cache/bin"
    mv "$cache/client/usr/bin/kubectl" "$cache/bin/kubectl"
    rm -rf "$apt" "$cache/client" "$cache/source" "$cache"/*.orig.tar.gz
    mv "$cache/unpacked" "$cache/source"
}

# try FUNCTION WHAT: runs a function with its output in the log; if it fails, prints the log's end.
try() {
    local status
    # As a condition it would not end at the first error.
    set +e
    (set -eu; "$1") >> "$cache/build.log" 2>&1 9>&-
    status=$?
    set -e
    [ "$status" = 0 ] || {
        tail -20 "$cache/build.log" >&2
        fail "$2: $cache/build.log"
    }
}

build() {
    # GOPATH mode: the tree's go.mod is older than Go 1.19 accepts beside vendor/.
    mkdir -p "$cache/source/.go/src/k8s.io" "$cache/bin"
    ln -sfn ../../.. "$cache/source/.go/src/k8s.io/kubernetes"
    export GOPATH=$cache/source/.go GO111MODULE=off GOPROXY=off GOFLAGS='' CGO_ENABLED=0 GOCACHE=$cache/go
    # Read by openapi-gen, which has no path of its own.
    GOROOT=$(go env GOROOT)
    export GOROOT
    cd "$GOPATH/src/k8s.io/kubernetes"

    vendor=k8s.io/kubernetes/vendor/k8s.io
    version=$vendor/component-base/version
    linked="-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20"
    # Without the drivers of clouds and of Docker, and without what only a debugger reads.
    options=(-p 2 -trimpath -tags "providerless,dockerless" -gcflags all=-dwarf=false)
    generated=pkg/generated/openapi/zz_generated.openapi.go

    # The API server needs one generated file that the source package does not have.
    if [ ! -e "$generated" ]; then
        go build "${options[@]}" -o "$cache/openapi-gen" "$vendor/kube-openapi/cmd/openapi-gen"
        marked() {
            grep -rl --include='*.go' '+k8s:openapi-gen=true' "$@" | xargs -n1 dirname | sort -u
        }
        directories=$(
            {
                (cd vendor/k8s.io && marked -- */ | sed "s#^#$vendor/#")
                marked cmd pkg | sed 's#^#k8s.io/kubernetes/#'
            } | grep -vE '/(kube-openapi|code-generator|sample-[a-z]*|gengo)/' | paste -sd,
        )
        "$cache/openapi-gen" -i "$directories" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
            -h hack/boilerplate/boilerplate.generatego.txt -r /dev/null --output-base "$GOPATH/src"
    fi

    # This kubelet names a plugin's socket by its path as the :authority of its requests, which HTTP/2
    # does not allow. Newer ones (gRPC 1.34) say localhost.
    plugins=pkg/kubelet/cm/devicemanager/endpoint.go
    grep -q WithAuthority "$plugins" ||
        sed -i 's/DialContext(ctx, unixSocketPath, /&grpc.WithAuthority("localhost"), /' "$plugins"
    grep -q WithAuthority "$plugins" || { echo "$plugins has another text"; return 1; }

    mkdir -p cmd/node
    cp "$here/kubernetes-node.go" cmd/node/main.go
    go build "${options[@]}" -ldflags "$linked" -o "$cache/bin/kubernetes-node" k8s.io/kubernetes/cmd/node
    for server in $servers; do
        ln -sf kubernetes-node "$cache/bin/$server"
    done
    cp "$here/kubernetes-node.go" "$cache/bin"
    cp "$here/build-kubernetes.sh" "$cache/bin/built-by"
}

: > "$cache/build.log"
if [ ! -d "$cache/source" ] || [ ! -x "$cache/bin/kubectl" ]; then
    try fetch "the packages cannot be fetched"
fi
[ "$mode" = build ] || exit 0
echo "build-kubernetes.sh: building Kubernetes, which takes 4 CPU minutes" >&2
try build "the build failed"
# Go makes its cache read-only in part.
chmod -R u+w "$cache/source" "$cache/go"
rm -rf "$cache/source" "$cache/go" "$cache/openapi-gen"
echo "$cache/bin"
