#!/bin/sh
# Makes packages from the tree that scripts/build.sh has built, which it builds if there is none:
#
#   gcgroupfs_VERSION_ARCH.deb       daemon, command line, scripts, manual pages, service
#   libgcgroup_VERSION_ARCH.deb      the preloaded library and the hook
#   gcgroup-exporter_VERSION_ARCH.deb  metrics and web page
#   gcgroup-simulator_VERSION_ARCH.deb  simulated driver
#   gcgroup-slurm_VERSION_ARCH.deb   SPANK plugin of Slurm, and the scripts in its place
#   gcgroup-kubelet-plugin_VERSION_ARCH.deb  Kubernetes device plugin
#   gcgroupfs-VERSION-ARCH.tar.gz    the tree with its install.sh, for other systems
#   SHA256SUMS
#
# Needs dpkg-deb and dpkg-shlibdeps (Debian's dpkg-dev), and no network.
set -eu

usage() {
    cat <<'EOF'
usage: scripts/package.sh [--target TRIPLE] OUT

  --target TRIPLE  another processor, such as aarch64-unknown-linux-gnu: packages what scripts/build.sh
                   --target has built with Debian's cross compiler
  OUT              directory of the packages; made if it does not exist

environment:
  DIST                   built tree (<repository>/target/dist, with --target target/dist-ARCH)
  PACKAGE_COMPRESSION    of the packages, as dpkg-deb -Z has it (xz)
  PACKAGE_VERSION        version of the packages (that of Cargo.toml)
  DEBFULLNAME, DEBEMAIL  maintainer of the packages
  SOURCE_DATE_EPOCH      timestamp of all files (that of CHANGELOG.md)
EOF
}

triple=
case ${1-} in
    -h | --help) usage; exit 0 ;;
    --target=?*) triple=${1#*=}; shift ;;
    --target) triple=${2-}; [ -n "$triple" ] || { usage >&2; exit 2; }; shift 2 ;;
esac
case ${1-} in
    -* | '') usage >&2; exit 2 ;;
esac
[ $# = 1 ] || { usage >&2; exit 2; }

fail() {
    echo "package.sh: $*" >&2
    exit 1
}

repo=$(cd "$(dirname "$0")/.." && pwd -P)
mkdir -p "$1"
out=$(cd "$1" && pwd -P)
cd "$repo"
command -v dpkg-shlibdeps > /dev/null || fail "dpkg-shlibdeps is missing: apt-get install dpkg-dev"
machine=${triple%%-*}
dist=${DIST:-$repo/target/dist${machine:+-$machine}}
[ -x "$dist/bin/gcgroupfs" ] || DIST=$dist scripts/build.sh ${triple:+--target "$triple"}

version=${PACKAGE_VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)}
epoch=${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}
arch=$(dpkg --print-architecture)
# Debian's prefix of the binary utilities, and where its cross compiler has the libraries of that processor.
tools=
libraries=
if [ -n "$triple" ] && [ "$machine" != "$(uname -m)" ]; then
    tools=$machine-linux-gnu-
    libraries=/usr/$machine-linux-gnu/lib
    command -v "${tools}strip" > /dev/null || fail "${tools}strip is missing: apt-get install gcc-$machine-linux-gnu"
    arch=$(dpkg-architecture -t "$machine-linux-gnu" -q DEB_HOST_ARCH) || fail "dpkg knows no processor $machine"
    # For dpkg-shlibdeps.
    export DEB_HOST_ARCH="$arch"
fi
maintainer="${DEBFULLNAME:-gcgroupfs maintainers} <${DEBEMAIL:-maintainers@gcgroupfs.invalid}>"
export SOURCE_DATE_EPOCH="$epoch"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
umask 022

# The same files as install.sh installs, in Debian's places.
DESTDIR=$work/all "$dist/install.sh" --prefix /usr > /dev/null
all=$work/all/usr
rm "$all/share/gcgroupfs/install.sh" "$all/share/gcgroupfs/installed"
mkdir -p "$all/share/doc/gcgroupfs/examples"
mv "$all"/share/doc/gcgroupfs/notices/* "$all/share/doc/gcgroupfs/examples"
rmdir "$all/share/doc/gcgroupfs/notices"
mv "$all/share/zsh/site-functions" "$all/share/zsh/vendor-completions"
mv "$all/share/doc/gcgroupfs/gcgroupfs.toml" "$all/share/doc/gcgroupfs/examples"
gzip -9n "$all"/share/man/man*/*
mkdir -p "$work/all/lib/systemd" "$work/gcgroup-exporter/lib/systemd/system"
mv "$all/lib/systemd/system" "$work/all/lib/systemd/system"
rmdir "$all/lib/systemd"
mv "$work/all/lib/systemd/system/gcgroup-exporter.service" "$work/gcgroup-exporter/lib/systemd/system"
"${tools}strip" --strip-unneeded --remove-section=.comment "$all"/lib/libgcgroup*.so "$all"/bin/gcgroup*
chmod 644 "$all"/lib/libgcgroup*.so

slurm=$work/gcgroup-slurm/usr
mkdir -p "$slurm/lib" "$slurm/share/man" "$slurm/share/doc/gcgroup-slurm"
mv "$all/lib/libgcgroup_slurm.so" "$slurm/lib"
mv "$all/share/man/man8" "$slurm/share/man"
mkdir "$slurm/share/gcgroupfs"
mv "$all/share/gcgroupfs/slurm" "$slurm/share/gcgroupfs"
cp gcgroupfs/integrations/slurm/README.md "$slurm/share/doc/gcgroup-slurm"
lib=$work/libgcgroup
mkdir -p "$lib/usr/lib" "$lib/usr/bin" "$lib/usr/share/man/man1"
mv "$all"/lib/libgcgroup*.so "$lib/usr/lib"
mv "$all/bin/gc-everywhere" "$lib/usr/bin"
mv "$all/share/man/man1/gc-everywhere.1.gz" "$lib/usr/share/man/man1"
rmdir "$all/lib"
exporter=$work/gcgroup-exporter/usr
mkdir -p "$exporter/bin" "$exporter/share/man/man1" "$exporter/share/doc/gcgroup-exporter/examples"
mv "$all/bin/gcgroup-exporter" "$exporter/bin"
mv "$all/share/man/man1/gcgroup-exporter.1.gz" "$exporter/share/man/man1"
mv "$all/share/doc/gcgroupfs/alerts.yml" "$all/share/doc/gcgroupfs/grafana.json" \
    "$exporter/share/doc/gcgroup-exporter/examples"
plugin=$work/gcgroup-kubelet-plugin/usr
mkdir -p "$plugin/bin" "$plugin/share/man/man1" "$plugin/share/doc/gcgroup-kubelet-plugin"
mv "$all/bin/gcgroup-kubelet-plugin" "$plugin/bin"
mv "$all/share/man/man1/gcgroup-kubelet-plugin.1.gz" "$plugin/share/man/man1"
mv "$all/share/doc/gcgroupfs/kubelet-plugin" "$plugin/share/doc/gcgroup-kubelet-plugin/examples"
simulator=$work/gcgroup-simulator/usr
mkdir -p "$simulator/bin" "$simulator/lib" "$simulator/share/man/man1"
cp "$dist/bin/gcgroup-simulator" "$simulator/bin"
cp -a "$dist/simgpu" "$simulator/lib/gcgroup-simulator"
"${tools}strip" --strip-unneeded --remove-section=.comment "$simulator"/lib/gcgroup-simulator/lib*.so.1
chmod 644 "$simulator"/lib/gcgroup-simulator/lib*.so.1
gzip -9n < "$dist/share/man/man1/gcgroup-simulator.1" > "$simulator/share/man/man1/gcgroup-simulator.1.gz"
mv "$work/all" "$work/gcgroupfs"

# shlibs FILE...: prints the packages that they need.
shlibs() {
    mkdir -p "$work/source/debian"
    printf 'Source: gcgroupfs\n\nPackage: gcgroupfs\nArchitecture: any\n' > "$work/source/debian/control"
    # Libraries that are not linked with libc, as libgcgroup.so, are warned about.
    (cd "$work/source" && dpkg-shlibdeps --ignore-missing-info ${libraries:+"-l$libraries"} -O "$@" 2> "$work/warnings") |
        # Debian's cross compiler has copies of the libraries, in packages of other names.
        sed -n "s/:$arch//g; s/-$arch-cross//g; s/^shlibs:Depends=//p"
}

# document PACKAGE: adds copyright and changelog.
document() {
    docs=$work/$1/usr/share/doc/$1
    mkdir -p "$docs"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        echo "Upstream-Name: gcgroupfs"
        printf '\nFiles: *\nCopyright: 2026 the authors of gcgroupfs, and of the Rust crates in its Cargo.lock files\n'
        printf 'License: Apache-2.0 or Expat\n\nLicense: Apache-2.0\n'
        echo " On Debian systems: /usr/share/common-licenses/Apache-2.0"
        printf '\nLicense: Expat\n'
        sed 's/^$/./; s/^/ /' LICENSE-MIT
    } > "$docs/copyright"
    {
        printf 'gcgroupfs (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n' "$version"
        printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$epoch")"
    } | gzip -9n > "$docs/changelog.gz"
}

# control PACKAGE: reads the rest of the control file from stdin, and adds the maintainer's scripts.
control() {
    mkdir -p "$work/$1/DEBIAN" "$work/$1/usr/share/lintian/overrides"
    {
        printf 'Package: %s\nSource: gcgroupfs\nVersion: %s\nArchitecture: %s\n' "$1" "$version" "$arch"
        printf 'Maintainer: %s\nPriority: optional\n' "$maintainer"
        printf 'Installed-Size: %s\n' "$(du -sk --apparent-size "$work/$1" | cut -f1)"
        cat
    } > "$work/$1/DEBIAN/control"
    for unit in "$work/$1"/lib/systemd/system/*.service; do
        [ -f "$unit" ] || continue
        for script in postinst postrm prerm; do
            sed "s/@UNIT@/${unit##*/}/" "scripts/debian/service.$script" > "$work/$1/DEBIAN/$script"
            chmod 755 "$work/$1/DEBIAN/$script"
        done
    done
    for script in "scripts/debian/$1".*; do
        case $script in
            *'.*') ;; # none
            *.overrides) install -m 644 "$script" "$work/$1/usr/share/lintian/overrides/$1" ;;
            *) install -m 755 "$script" "$work/$1/DEBIAN/${script##*.}" ;;
        esac
    done
    (cd "$work/$1" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs md5sum) \
        > "$work/$1/DEBIAN/md5sums"
    chmod 644 "$work/$1/DEBIAN/md5sums" "$work/$1/DEBIAN/control"
    find "$work/$1" -exec touch -h -d "@$epoch" {} +
    dpkg-deb --root-owner-group "-Z${PACKAGE_COMPRESSION:-xz}" --build "$work/$1" "$out" > /dev/null
}

document libgcgroup
control libgcgroup <<EOF
Section: utils
Depends: $(shlibs "$lib/usr/lib/libgcgroup_hook.so")
Enhances: gcgroupfs
Description: library that governs CUDA programs for gcgroupfs
 A library that is preloaded into programs, and the hook that it loads when a
 program uses CUDA. The hook obeys the limits, priorities and freezes that the
 daemon of the package gcgroupfs sets.
 .
 The preloaded library needs no other library and does nothing in programs
 that do not use CUDA.
EOF

document gcgroupfs
control gcgroupfs <<EOF
Section: admin
Depends: libgcgroup (= $version), $(shlibs "$work"/gcgroupfs/usr/bin/gcgroupfs "$work"/gcgroupfs/usr/bin/gcgroup-load)
Recommends: fuse3
Description: control groups for processes that use a GPU
 Each process that uses CUDA is a directory of control files: its memory
 limit, its share of GPU time and its freeze switch. They are read and written
 with cat and echo, and a change takes effect at the program's next CUDA call.
 .
 This package has the daemon, the command line and scripts. The daemon is not
 started by the installation: systemctl enable --now gcgroupfs.
EOF

document gcgroup-exporter
control gcgroup-exporter <<EOF
Section: admin
Depends: $(shlibs "$exporter/bin/gcgroup-exporter")
Enhances: gcgroupfs
Description: metrics and web page of processes that use a GPU
 A process without privileges that reads the socket of the gcgroupfs daemon. It
 serves metrics for Prometheus and a live web page of GPUs, groups and
 processes.
 .
 It is not started by the installation. Alert rules and a dashboard are among
 the examples.
EOF

document gcgroup-simulator
control gcgroup-simulator <<EOF
Section: utils
Depends: $(shlibs "$simulator"/lib/gcgroup-simulator/lib*.so.1)
Recommends: gcgroupfs
Description: simulated CUDA driver to try and test gcgroupfs without a GPU
 Libraries in place of NVIDIA's libcuda.so.1 and libnvidia-ml.so.1, for
 programs that gcgroup-simulator starts. They have memory, streams and time,
 which processes share as on a GPU, and compute only what tests need.
EOF

document gcgroup-slurm
control gcgroup-slurm <<EOF
Section: admin
Depends: libgcgroup (= $version), $(shlibs "$slurm/lib/libgcgroup_slurm.so")
Recommends: gcgroupfs
Enhances: gcgroupfs, slurmd
Description: Slurm plugin that enforces shares of GPUs with gcgroupfs
 A SPANK plugin: each step of a job runs in a group of the daemon of the
 package gcgroupfs, with the limits that follow from the job's shards or from
 options of srun, sbatch and salloc. Scripts for Prolog, Epilog and TaskProlog
 do so where the plugin cannot be used.
 .
 The installation does not change the configuration of Slurm; gcgroup-slurm(8)
 describes it. The plugin serves Slurm 22.05, 24.11 and 26.05; the scripts serve
 every release.
EOF

document gcgroup-kubelet-plugin
control gcgroup-kubelet-plugin <<EOF
Section: admin
Depends: $(shlibs "$plugin/bin/gcgroup-kubelet-plugin")
Enhances: gcgroupfs
Description: Kubernetes device plugin for shares of GPUs
 Offers memory of GPUs in units of 1 GiB, and whole cards, to the kubelet. It
 tells the gcgroupfs daemon what each pod has been given, and the daemon
 enforces it for all processes of the pod.
 .
 It runs in a DaemonSet or on the host. The manifest, and a program that makes
 the image without a registry, are among the examples.
EOF

tree=gcgroupfs-$version-$arch
mkdir "$work/$tree"
cp -a "$dist/bin" "$dist/lib" "$dist/share" "$dist/install.sh" "$dist/README.md" CHANGELOG.md LICENSE-* "$work/$tree"
rm -f "$work/$tree/bin/gcgroup-contention" "$work/$tree/bin/gcgroup-simulator" \
    "$work/$tree/share/man/man1/gcgroup-simulator.1"
"${tools}strip" --strip-unneeded "$work/$tree"/lib/*.so "$work/$tree"/bin/gcgroup*
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -c "$tree" |
    gzip -9n > "$out/$tree.tar.gz"
(cd "$out" && sha256sum "gcgroupfs_${version}_$arch.deb" "libgcgroup_${version}_$arch.deb" \
    "gcgroup-exporter_${version}_$arch.deb" "gcgroup-simulator_${version}_$arch.deb" "gcgroup-slurm_${version}_$arch.deb" \
    "gcgroup-kubelet-plugin_${version}_$arch.deb" "$tree.tar.gz" > SHA256SUMS)
cat "$out/SHA256SUMS"
