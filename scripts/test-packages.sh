#!/bin/sh
# Makes the packages of scripts/package.sh and tests them: with lintian, and by installation, use by that
# system's programs, upgrade, removal and purge in Debian systems of their own (debootstrap). Where
# scripts/test-aarch64.sh has built a tree, also makes the packages for arm64 and checks their contents.
# Installs what it needs. Run as root. Everything is in namespaces, which end with the script.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/test-packages.sh

environment:
  DIST             built tree (<repository>/target/dist)
  SUITES           the Debian systems (bookworm trixie sid)
  PACKAGE_MINUTES  limit for the whole run (15)
  XDG_CACHE_HOME   where the Debian systems are kept ($HOME/.cache)
EOF
}

case ${1-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac

fail() {
    echo "test-packages.sh: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "run as root: a Debian system is made and entered"
repo=$(cd "$(dirname "$0")/.." && pwd -P)
if [ -z "${INSIDE-}" ]; then
    for program in debootstrap dpkg-shlibdeps lintian; do
        command -v "$program" > /dev/null || "$repo/scripts/setup-debian.sh" --no-python || {
            echo "test-packages.sh: left out, no $program can be installed"
            exit 0
        }
    done
    # shellcheck source=scripts/contained.sh
    . "$repo/scripts/contained.sh"
    export INSIDE=yes
    contained "$((${PACKAGE_MINUTES:-15} * 60))" "$repo/scripts/test-packages.sh"
    exit
fi
work=/dev/shm/packages
mkdir "$work"
# Of the scripts that this one calls.
export TMPDIR="$work"

say() {
    printf '%s %s\n' "--- $(date +%T)" "$*"
}

say "packages"
"$repo/scripts/package.sh" "$work/one"
version=$(dpkg-deb -f "$work"/one/gcgroupfs_*.deb Version)
PACKAGE_VERSION=$version+next PACKAGE_COMPRESSION=none "$repo/scripts/package.sh" "$work/two" > /dev/null
(cd "$work/one" && sha256sum --quiet -c SHA256SUMS)

# files PACKAGE: prints type, mode and name of all files of a package.
files() {
    dpkg-deb --contents "$1" | awk '{ print $1, $6, $7, $8 }'
}

# AArch64 packages of the tree that scripts/test-aarch64.sh builds: the same files, with programs for it.
cross=$repo/target/dist-aarch64
if [ "$(dpkg --print-architecture)" != arm64 ] && [ -x "$cross/bin/gcgroupfs" ]; then
    say "packages for arm64"
    DIST=$cross PACKAGE_COMPRESSION=gzip \
        "$repo/scripts/package.sh" --target aarch64-unknown-linux-gnu "$work/arm64" > /dev/null
    (cd "$work/arm64" && sha256sum --quiet -c SHA256SUMS)
    for package in "$work"/one/*.deb; do
        name=$(dpkg-deb -f "$package" Package)
        other=$work/arm64/${name}_${version}_arm64.deb
        [ "$(dpkg-deb -f "$other" Architecture)" = arm64 ] || fail "$other is not for arm64"
        depends=$(dpkg-deb -f "$other" Depends)
        case $depends in
            *cross* | *:*) fail "$other depends on $depends" ;;
            *libc6*) ;;
            *) fail "$other needs no C library: $depends" ;;
        esac
        files "$package" > "$work/files"
        files "$other" | diff "$work/files" - || fail "$other has other files"
        rm -rf "$work/unpacked"
        dpkg-deb -x "$other" "$work/unpacked"
        find "$work/unpacked" -type f -exec grep -lm1 "$(printf '^\177ELF')" {} + > "$work/programs"
        [ -s "$work/programs" ] || fail "$other has no program"
        while read -r program; do
            readelf -h "$program" | grep -q 'Machine:.*AArch64' || fail "$program of $other is not for AArch64"
        done < "$work/programs"
    done
else
    say "left out, scripts/test-aarch64.sh has built no tree here: packages for arm64"
fi

say "lintian"
lintian --allow-root --fail-on error,warning "$work"/one/*.deb
[ ! -d "$work/arm64" ] || lintian --allow-root --fail-on error,warning "$work"/arm64/*.deb

cat > "$work/run" <<'EOF'
set -eu

# state: prints all files but those of dpkg and this test.
state() {
    find / \( -path /proc -o -path /sys -o -path /test -o -path /dev -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log \
        -o -path /var/cache \) -prune -o -print | sort
}

fail() {
    echo "$*" >&2
    exit 1
}

packages="gcgroupfs libgcgroup gcgroup-exporter gcgroup-simulator gcgroup-slurm gcgroup-kubelet-plugin"
state > /test/before
dpkg -i /test/one/*.deb
gcgroupfs --version
gcgroup-load --help > /test/help
gcgroup-exporter --version
gcgroup-kubelet-plugin --version
for file in /usr/bin/gc*; do
    [ -f "/usr/share/man/man1/${file##*/}.1.gz" ] || echo "excluded by this system's dpkg: manual of $file"
done
for unit in /lib/systemd/system/gcgroup*.service; do
    program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' $unit)
    [ -x "$program" ] || fail "$unit starts $program, which is absent"
done

# The demonstration, with the programs that are installed.
ln -s /usr/lib/gcgroup-simulator /test/simgpu
GCGROUP_BUILT=/test sh /test/demo.sh > /test/demo || fail "$(cat /test/demo)"
tail -n 1 /test/demo

# The daemon governs programs of this system on the simulated GPU.
export GCGROUP_SOCKET=/tmp/socket SIMGPU_DIR=/tmp/sim
mkdir /tmp/sim /tmp/mount
gcgroup-simulator gcgroupfs mount /tmp/mount --state-dir /tmp/state > /test/log 2>&1 &
daemon=$!
tries=0
until grep -q 'gcgroupfs: ready' /test/log; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] && kill -0 $daemon || fail "$(cat /test/log)"
    sleep 0.1
done
gcgroup-simulator gcgroupfs run --memory-limit 1G -- python3 /test/program.py /tmp/mount
kill $daemon
wait $daemon

gc-everywhere on
echo "--- upgrade"
dpkg -i /test/two/*.deb
[ "$(cat /etc/ld.so.preload)" = /usr/lib/libgcgroup.so ] || fail "the upgrade changed /etc/ld.so.preload"
dpkg-query -W -f '${Version}\n' $packages |
    grep -c next | grep -qx 6 || fail "not upgraded"
[ "$(/bin/true 2>&1)" = "" ] || fail "a program complains"

echo "--- removal and purge"
dpkg -r $packages
[ ! -e /etc/ld.so.preload ] || fail "/etc/ld.so.preload is left"
dpkg -P $packages
state > /test/after
diff /test/before /test/after || fail "the purge left files, or took some"
EOF

# Program of the Debian system: reads and writes its own directory between allocations.
cat > "$work/program.py" <<'EOF'
import ctypes
import os
import pathlib
import sys

OUT_OF_MEMORY = 2
directory = pathlib.Path(sys.argv[1], str(os.getpid()))
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()


def allocate(mebibytes):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(mebibytes << 20))


assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert allocate(400) == 0
assert int((directory / "memory.current").read_text()) >= 400 << 20
assert allocate(800) == OUT_OF_MEMORY
(directory / "memory.limit").write_text("500M\n")
assert allocate(200) == OUT_OF_MEMORY
EOF

for suite in ${SUITES:-bookworm trixie sid}; do
    # A machine without a network or without the right to make devices is no fault of the packages.
    kept=$("$repo/scripts/debian-system.sh" "$suite" || :)
    [ -n "$kept" ] || {
        say "left out, no Debian system can be made here: $suite"
        continue
    }
    say "installation in $suite"
    root=$work/$suite
    mkdir "$root"
    tar -C "$root" -xf "$kept"
    mount -t proc proc "$root/proc"
    [ -e "$root/dev/fuse" ] || mknod "$root/dev/fuse" c 10 229
    mkdir "$root/test"
    cp -a "$work/one" "$work/two" "$work/run" "$work/program.py" "$repo/scripts/demo.sh" "$root/test"
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C sh /test/run
    say "passed in $suite: $(chroot "$root" ldd --version | head -1)"
    umount -l "$root/proc"
    rm -rf --one-file-system "$root"
done
