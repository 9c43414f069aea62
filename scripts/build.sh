#!/bin/sh
# Builds all programs into a relocatable tree:
#
#   bin/{gcgroupfs,gcgroup-exporter,gcgroup-kubelet-plugin,gcgroup-load,gcgroup-contention,gc-*}
#   lib/{libgcgroup.so,libgcgroup_hook.so,libgcgroup_slurm.so}
#   share/                                      manual pages, completions, service, example configuration
#   install.sh                                  installs these
#   simgpu/{libcuda.so.1,libnvidia-ml.so.1}     the simulated driver
set -eu

usage() {
    cat <<'EOF'
usage: scripts/build.sh [--debug] [--target TRIPLE] [--demo]

  --debug          dev profile: faster build, slower programs, sizes not checked
  --target TRIPLE  another target of Rust, such as aarch64-unknown-linux-gnu, with Debian's cross compiler
                   (gcc-aarch64-linux-gnu) and emulator (qemu-user, runs the programs that write the manual)
  --demo           in the dev profile, only what scripts/demo.sh runs: gcgroupfs, gcgroup-load, the libraries
                   and the simulated driver

environment:
  DIST               output directory (<repository>/target/dist, with --target target/dist-ARCH)
  CARGO_TARGET_DIR   cargo's build directory (<repository>/target)
EOF
}

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

profile=release
triple=
is_whole=yes
while [ $# -gt 0 ]; do
    case $1 in
        --debug) profile=dev ;;
        --target=?*) triple=${1#*=} ;;
        --target) shift; triple=${1:?usage: --target TRIPLE} ;;
        --demo) profile=dev; is_whole=no ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done

repo=$(cd "$(dirname "$0")/.." && pwd -P)
cd "$repo"
target=${CARGO_TARGET_DIR:-$repo/target}
arch=${triple%%-*}
dist=${DIST:-$repo/target/dist${arch:+-$arch}}
# Prefix of the binary utilities, and what runs a program that was built.
tools=
run=
if [ -n "$triple" ]; then
    target=$target/$triple
    if [ "$arch" != "$(uname -m)" ]; then
        tools=$arch-linux-gnu-
        run="qemu-$arch -L /usr/$arch-linux-gnu"
        variable=CARGO_TARGET_$(echo "$triple" | tr 'a-z-' 'A-Z_')_LINKER
        command -v "${tools}gcc" > /dev/null || fail "${tools}gcc is missing: apt-get install gcc-$arch-linux-gnu"
        export "$variable=${tools}gcc"
    fi
fi
# The hook has a profile of its own, with fat LTO.
hook=hook
built=$target/release
hook_built=$target/hook
if [ "$profile" = dev ]; then
    hook=dev
    built=$target/debug
    hook_built=$built
fi

# build PROFILE OPTION...
build() {
    cargo build --locked ${triple:+--target "$triple"} --profile "$@"
}

# LD_PRELOAD and the simulated driver must not affect the build tools.
unset LD_PRELOAD LD_LIBRARY_PATH

# The hook runs with glibc 2.28, and without libgcc_s (hook/src/sys/imports.rs, hook/src/driver/unwinder.rs):
# what is linked as libgcc_s is the copy of the unwinder for static linking.
instead=$target/instead-of-libgcc_s
mkdir -p "$instead"
echo 'INPUT(-lgcc_eh)' > "$instead/libgcc_s.so"
cargo rustc --locked --profile "$hook" ${triple:+--target "$triple"} -p gcgroup-hook --lib --crate-type cdylib -- \
    -L "native=$instead" -C "link-arg=-Wl,@$repo/hook/imports.options"
build "$profile" -p gcgroupfs -p gcgroup-load -p simgpu-cuda -p simgpu-nvml
if [ "$is_whole" = yes ]; then
    build "$profile" -p gcgroup-contention
    build "$profile" --manifest-path gcgroupfs/integrations/Cargo.toml --workspace
fi
# Always without unwinder and allocator, in every profile.
build preload -p gcgroup-preload

# place FROM TO: replaces TO by rename, so that running processes keep the old file; does nothing if both
# are equal.
place() {
    mkdir -p "$(dirname "$2")"
    fresh=$2.$$
    case $profile,$1 in
        dev,* | *,scripts/* | *,*/slurm/scripts/* | *,*.yml | *,*.yaml | *,*.toml | *,*.json) cp "$1" "$fresh" ;;
        *) "${tools}strip" --strip-unneeded -o "$fresh" "$1" ;;
    esac
    if cmp -s "$fresh" "$2"; then
        rm "$fresh"
    else
        mv -f "$fresh" "$2"
    fi
}

place "$built/gcgroupfs" "$dist/bin/gcgroupfs"
place "$built/gcgroup-load" "$dist/bin/gcgroup-load"
place "$hook_built/libgcgroup_hook.so" "$dist/lib/libgcgroup_hook.so"
place "$target/preload/libgcgroup.so" "$dist/lib/libgcgroup.so"
place "$built/libsimcuda.so" "$dist/simgpu/libcuda.so.1"
place "$built/libsimnvml.so" "$dist/simgpu/libnvidia-ml.so.1"
# For programs linked with -lcuda.
ln -sf libcuda.so.1 "$dist/simgpu/libcuda.so"

if [ "$is_whole" = yes ]; then
    place "$built/gcgroup-exporter" "$dist/bin/gcgroup-exporter"
    place "$built/gcgroup-kubelet-plugin" "$dist/bin/gcgroup-kubelet-plugin"
    place "$built/gcgroup-contention" "$dist/bin/gcgroup-contention"
    place "$built/libgcgroup_slurm.so" "$dist/lib/libgcgroup_slurm.so"
    # Scripts that no longer exist.
    rm -f "$dist"/bin/gc-*
    for script in scripts/gc-*; do
        place "$script" "$dist/bin/${script#scripts/}"
    done
    place scripts/install.sh "$dist/install.sh"
    place scripts/gcgroup-simulator "$dist/bin/gcgroup-simulator"
    cp README.md "$dist/README.md"
    for file in c/gcgroup_notice.h c/shrink_cache.c python/gcgroup_notice.py python/shrink_cache.py; do
        mkdir -p "$dist/share/notices"
        cp "gcgroupfs/client/$file" "$dist/share/notices"
    done
    place gcgroupfs/doc/ls.schema.json "$dist/share/ls.schema.json"
    for file in gcgroupfs.service gcgroup-exporter.service gcgroupfs.toml; do
        place "scripts/$file" "$dist/share/$file"
    done
    for file in alerts.yml grafana.json; do
        place "gcgroupfs/integrations/exporter/$file" "$dist/share/$file"
    done
    for file in daemonset.yaml gcgroupfs.toml; do
        place "gcgroupfs/integrations/kubelet-plugin/$file" "$dist/share/kubelet-plugin/$file"
    done
    place scripts/container-image.py "$dist/share/kubelet-plugin/container-image.py"
    for file in common.sh prolog task-prolog epilog; do
        place "gcgroupfs/integrations/slurm/scripts/$file" "$dist/share/slurm/$file"
    done
    # The copy that containers preload.
    place scripts/ld.so.preload "$dist/share/gcgroupfs/ld.so.preload"
    rm -rf "$dist/share/man"
    $run "$dist/bin/gcgroupfs" manual --write "$dist/share/man"
    cp scripts/manual/*.1 "$dist/share/man/man1"
    mkdir -p "$dist/share/man/man8"
    cp scripts/manual/*.8 "$dist/share/man/man8"
    for program in gcgroupfs gc-autopreempt gc-everywhere gc-preempt; do
        for place in "bash bash-completion/completions/$program" "zsh zsh/site-functions/_$program" \
            "fish fish/vendor_completions.d/$program.fish"; do
            mkdir -p "$dist/share/$(dirname "${place#* }")"
            $run "$dist/bin/gcgroupfs" completions "${place%% *}" "$program" > "$dist/share/${place#* }"
        done
    done
fi

# below FILE BYTES
below() {
    size=$(wc -c < "$1")
    [ "$size" -lt "$2" ] || fail "$1 has $size bytes, not below $2"
    echo "$1: $size bytes"
}

# This library may be preloaded into every program: a missing dependency would stop them all.
needed=$(readelf -d "$dist/lib/libgcgroup.so") || fail "readelf cannot read $dist/lib/libgcgroup.so"
case $needed in
    *'(NEEDED)'*) fail "libgcgroup.so needs another library" ;;
esac
# The libraries are loaded in containers with an older glibc, and without other libraries.
needed=$("${tools}readelf" -d "$dist/lib/libgcgroup_hook.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in $needed; do
    case $library in
        libc.so.6 | ld-linux-*.so.* | libpthread.so.0 | libdl.so.2) ;;
        *) fail "libgcgroup_hook.so needs $library" ;;
    esac
done
newest=$("${tools}objdump" -T "$dist/lib/libgcgroup.so" "$dist/lib/libgcgroup_hook.so" \
    | sed -n 's/.*[( ]GLIBC_\([0-9.]*\)[) ].*/\1/p' | sort -Vu | tail -n 1)
[ "$(printf '%s\n2.28\n' "$newest" | sort -V | tail -n 1)" = 2.28 ] || fail "the libraries need glibc $newest, not 2.28: see hook/src/sys/imports.rs"
echo "newest symbol of glibc in the libraries: $newest"
if [ "$profile" != dev ]; then
    below "$dist/lib/libgcgroup.so" 73728
    below "$dist/lib/libgcgroup_hook.so" 1441792
fi
echo "built $dist"
