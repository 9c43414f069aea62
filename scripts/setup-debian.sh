#!/bin/sh
# Installs what tests and demo need besides Rust on Debian or Ubuntu: packages, and a Python environment in
# .venv with real CUDA clients. Run as root or with sudo.
set -eu

usage() {
    cat <<'EOT'
usage: scripts/setup-debian.sh [--no-python]

environment:
  KUBERNETES   yes: also what the test of the Kubernetes plugin needs (no)
EOT
}

python=yes
for arg; do
    case $arg in
        --no-python) python=no ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done

repo=$(cd "$(dirname "$0")/.." && pwd -P)
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo

# First line: required packages. Second line: packages that some tests use if available.
needs="binutils curl fuse3 gcc libc6-dev make pkg-config python3 python3-venv"
tests="busybox g++ libjemalloc2 mandoc musl-tools perl podman prometheus runc shellcheck strace"
tests="$tests tmux valgrind"
# For scripts/test-packages.sh.
tests="$tests debootstrap dpkg-dev lintian"
# For scripts/test-aarch64.sh.
[ "$(dpkg --print-architecture)" = arm64 ] || tests="$tests gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
# A Slurm cluster for scripts/test-cluster.sh.
tests="$tests iproute2 libslurm-dev munge procps slurm-client slurm-wlm-basic-plugins slurmctld slurmd"
# Its accounting: slurmdbd and a database server, without the package that makes a service of the server.
tests="$tests mariadb-server-core slurm-wlm-mysql-plugin slurmdbd"
# A Kubernetes node, which is built from source (scripts/cluster/build-kubernetes.sh).
if [ "${KUBERNETES:-no}" = yes ]; then
    tests="$tests containerd containernetworking-plugins etcd-server golang-go openssl"
fi

# Often installed by other means; systemctl is for scripts/test-systemd.sh.
command -v systemctl > /dev/null || tests="$tests systemd"
command -v node > /dev/null || tests="$tests nodejs"
# Ubuntu has it only as a snap.
command -v chromium > /dev/null || ! grep -qx ID=debian /etc/os-release || tests="$tests chromium"

missing=
for package in $needs $tests; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
# Only the programs of prometheus and Slurm are needed: this policy keeps packages from starting services.
policy=/usr/sbin/policy-rc.d
forget_policy() {
    [ -z "$made" ] || $sudo rm -f "$policy"
}
made=
if [ -n "$missing" ]; then
    if [ ! -e "$policy" ]; then
        made=yes
        trap forget_policy EXIT
        trap 'exit 1' HUP INT TERM
        printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" > /dev/null
        $sudo chmod 755 "$policy"
    fi
    $sudo apt-get update -q
    # shellcheck disable=SC2086  # a list of names
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -q -y --no-install-recommends $missing
fi
forget_policy
made=

# The libraries are also built for AArch64. Without a network, or where Rust is not from rustup, they are not.
if command -v rustup > /dev/null; then
    (cd "$repo" && rustup -q target add aarch64-unknown-linux-gnu) || echo "no Rust target for AArch64"
fi

[ "$python" = yes ] || exit 0
venv=${GCGROUP_TEST_VENV:-$repo/.venv}
wanted=$repo/tests/clients/requirements.txt
if ! cmp -s "$wanted" "$venv/requirements.txt"; then
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$wanted"
    # Beside the others' runtime: the one whose look-ups tests/data records. --no-deps: it is one library.
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --upgrade \
        --target "$venv/cudart-12.8" nvidia-cuda-runtime-cu12==12.8.90
    cp "$wanted" "$venv/requirements.txt"
fi
echo "python clients in $venv"
