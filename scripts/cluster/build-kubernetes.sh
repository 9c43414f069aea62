#!/bin/bash
# Builds kubelet, API server, scheduler and kubectl from the source package `kubernetes` of Debian 12 with
# Debian's Go, once per machine. Prints the directory of the programs.
#
# Debian's binary package has only kubectl; its source package has the whole tree with all dependencies.
# Needs golang-go and dpkg-dev, and 4 GiB of disk while it builds (0.3 GiB afterwards).
set -eu

usage() {
    cat <<'USAGE'
usage: scripts/cluster/build-kubernetes.sh [--has]

  --has   only tells by its exit status whether all is built

environment:
  XDG_CACHE_HOME   the programs are kept in gcgroupfs/kubernetes below it ($HOME/.cache)
USAGE
}

only_look=no
case ${1-} in
    '') ;;
    --has) only_look=yes ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

programs="kubelet kube-apiserver kube-scheduler kubectl"
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gcgroupfs/kubernetes

fail() {
    echo "build-kubernetes.sh: $*" >&2
    exit 1
}

if [ "$only_look" = yes ]; then
    for program in $programs; do
        [ -x "$cache/bin/$program" ] || exit 1
    done
    exit 0
fi

# One build at a time; the lock ends with this process.
mkdir -p "$cache"
exec 9> "$cache/lock"
flock 9

missing=
for program in $programs; do
    [ -x "$cache/bin/$program" ] || missing="$missing $program"
done
if [ -z "$missing" ]; then
    echo "$cache/bin"
    exit 0
fi
for tool in go dpkg-source apt-get; do
    command -v "$tool" > /dev/null || fail "$tool is missing: KUBERNETES=yes scripts/setup-debian.sh"
done
echo "build-kubernetes.sh: building$missing, which takes four minutes on two idle cores" >&2

# The machine's own archive, asked for sources, with lists of its own: the machine's configuration stays.
fetch() {
    local apt=$cache/apt
    rm -rf "$apt" "$cache/unpacked"
    mkdir -p "$apt/state/lists/partial" "$apt/archives/partial" "$apt/sources"
    if [ -e /etc/apt/sources.list.d/debian.sources ]; then
        sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$apt/sources/debian.sources"
    else
        sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > "$apt/sources/debian.list"
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
        dpkg-source -x kubernetes_1.20*.dsc "$cache/unpacked"
    )
    rm -rf "$apt"
    mv "$cache/unpacked" "$cache/source"
}

{
    [ -d "$cache/source" ] || fetch

    # GOPATH mode: the tree's go.mod is older than Go 1.19 accepts beside vendor/.
    mkdir -p "$cache/source/.go/src/k8s.io" "$cache/bin"
    ln -sfn ../../.. "$cache/source/.go/src/k8s.io/kubernetes"
    export GOPATH=$cache/source/.go GO111MODULE=off GOPROXY=off GOFLAGS='' CGO_ENABLED=0 GOCACHE=$cache/go
    cd "$GOPATH/src/k8s.io/kubernetes"

    vendor=k8s.io/kubernetes/vendor/k8s.io
    version=$vendor/component-base/version
    linked="-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20"
    generated=pkg/generated/openapi/zz_generated.openapi.go

    # The API server needs one generated file that the source package does not have.
    if [ ! -e "$generated" ]; then
        go build -o "$cache/openapi-gen" "$vendor/kube-openapi/cmd/openapi-gen"
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

    for program in $missing; do
        nice -n 10 go build -p 2 -trimpath -ldflags "$linked" -o "$cache/bin/$program.new" \
            "k8s.io/kubernetes/cmd/$program"
        mv "$cache/bin/$program.new" "$cache/bin/$program"
    done
} > "$cache/build.log" 2>&1 9>&- || {
    tail -20 "$cache/build.log" >&2
    fail "the build failed: $cache/build.log"
}
# Go makes its cache read-only in part.
chmod -R u+w "$cache/source" "$cache/go"
rm -rf "$cache/source" "$cache/go" "$cache/openapi-gen" "$cache"/*.orig.tar.gz
echo "$cache/bin"
