#!/bin/sh
# Installs the tree that scripts/build.sh has built (target/dist, or where it was moved to: the tree has a
# copy of this script). A second installation replaces the files one by one; running programs and daemons
# keep the old ones.
set -eu

usage() {
    cat <<'USAGE'
usage: install.sh [--prefix DIR] [--uninstall]

  --prefix DIR    installation directory (/usr/local; for the installed copy of this script, its own)
  --uninstall     removes all installed files, beginning with the entry in /etc/ld.so.preload

environment:
  DESTDIR         prefix of every path, for packages
USAGE
}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

here=$(cd "$(dirname "$0")" && pwd -P)
prefix=/usr/local
# The installed copy belongs to the prefix that it lies in.
[ ! -f "$here/installed" ] || prefix=${here%/share/gcgroupfs}
uninstall=no
while [ $# -gt 0 ]; do
    case $1 in
        --prefix)
            [ $# -gt 1 ] || { usage >&2; exit 2; }
            prefix=$2
            shift
            ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --uninstall) uninstall=yes ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
case $prefix in
    # A space or a colon would end the name in LD_PRELOAD.
    *[!A-Za-z0-9/._+-]*) fail "--prefix: letters, digits and /._+- only, not $prefix" ;;
    /*) prefix=${prefix%/} ;;
    *) fail "--prefix: an absolute path, not $prefix" ;;
esac

root=${DESTDIR-}

built=$here
[ -x "$built/bin/gcgroupfs" ] || built=${DIST:-$here/../target/dist}

# The list of installed files, relative to the prefix: it uninstalls also what an older version installed.
manifest=$root$prefix/share/gcgroupfs/installed

# files: prints FROM TO MODE lines; FROM in the tree, TO below the prefix.
files() {
    (cd "$built" && find share/man share/bash-completion share/zsh share/fish -type f \
        ! -name gcgroup-simulator.1 2> /dev/null | sed 's/.*/& & 644/')
    cat <<'TABLE'
install.sh share/gcgroupfs/install.sh 644
lib/libgcgroup_hook.so lib/libgcgroup_hook.so 755
lib/libgcgroup.so lib/libgcgroup.so 755
lib/libgcgroup_slurm.so lib/libgcgroup_slurm.so 755
bin/gcgroupfs bin/gcgroupfs 755
bin/gcgroup-exporter bin/gcgroup-exporter 755
bin/gcgroup-kubelet-plugin bin/gcgroup-kubelet-plugin 755
bin/gcgroup-load bin/gcgroup-load 755
bin/gc-autopreempt bin/gc-autopreempt 755
bin/gc-everywhere bin/gc-everywhere 755
bin/gc-preempt bin/gc-preempt 755
share/gcgroupfs/ld.so.preload share/gcgroupfs/ld.so.preload 644
share/slurm/common.sh share/gcgroupfs/slurm/common.sh 644
share/slurm/prolog share/gcgroupfs/slurm/prolog 755
share/slurm/task-prolog share/gcgroupfs/slurm/task-prolog 755
share/slurm/epilog share/gcgroupfs/slurm/epilog 755
share/gcgroupfs.toml share/doc/gcgroupfs/gcgroupfs.toml 644
share/notices/gcgroup_notice.h include/gcgroup_notice.h 644
share/notices/gcgroup_notice.py share/gcgroupfs/python/gcgroup_notice.py 644
share/notices/shrink_cache.c share/doc/gcgroupfs/notices/shrink_cache.c 644
share/notices/shrink_cache.py share/doc/gcgroupfs/notices/shrink_cache.py 644
share/alerts.yml share/doc/gcgroupfs/alerts.yml 644
share/grafana.json share/doc/gcgroupfs/grafana.json 644
share/kubelet-plugin/container-image.py share/doc/gcgroupfs/kubelet-plugin/container-image.py 644
share/kubelet-plugin/daemonset.yaml share/doc/gcgroupfs/kubelet-plugin/daemonset.yaml 644
share/kubelet-plugin/gcgroupfs.toml share/doc/gcgroupfs/kubelet-plugin/gcgroupfs.toml 644
share/gcgroupfs.service lib/systemd/system/gcgroupfs.service 644
share/gcgroup-exporter.service lib/systemd/system/gcgroup-exporter.service 644
README.md share/doc/gcgroupfs/README.md 644
share/ls.schema.json share/doc/gcgroupfs/ls.schema.json 644
TABLE
}

# replace FILE MODE: replaces FILE by stdin with one rename; processes that have the old file open keep it.
replace() {
    mkdir -p "$(dirname "$1")"
    rm -f "$1.new.$$"
    if ! { cat > "$1.new.$$" && chmod "$2" "$1.new.$$" && mv -f "$1.new.$$" "$1"; }; then
        rm -f "$1.new.$$"
        fail "cannot write $1"
    fi
}

# installed: prints the installed files, relative to the prefix.
installed() {
    if [ -f "$manifest" ]; then
        cat "$manifest"
    else
        files | while read -r _ to _; do echo "$to"; done
    fi
}

# stop_services: stops and disables the services whose units are those that were installed here.
stop_services() {
    [ -z "$root" ] && command -v systemctl > /dev/null || return 0
    for unit in gcgroup-exporter.service gcgroupfs.service; do
        path=$prefix/lib/systemd/system/$unit
        [ -f "$path" ] || continue
        [ "$(systemctl show -p FragmentPath "$unit" 2> /dev/null)" = "FragmentPath=$path" ] || continue
        systemctl disable --now "$unit" || echo "install.sh: $unit could not be stopped" >&2
    done
}

if [ "$uninstall" = yes ]; then
    stop_services
    # Every new program would print an error for a library that is listed and missing.
    switch=$root$prefix/bin/gc-everywhere
    [ ! -x "$switch" ] || "$switch" off
    # This script is among the files.
    installed | while read -r file; do
        case $file in
            '' | /* | *..*) fail "$manifest: not a file of this program: $file" ;;
        esac
        rm -f "$root$prefix/$file"
    done
    rm -f "$manifest"
    rmdir "$root$prefix/share/doc/gcgroupfs/kubelet-plugin" "$root$prefix/share/doc/gcgroupfs/notices" \
        "$root$prefix/share/gcgroupfs/python" "$root$prefix/share/doc/gcgroupfs" \
        "$root$prefix/share/gcgroupfs/slurm" "$root$prefix/share/gcgroupfs" 2>/dev/null || :
    echo "removed from $root$prefix; a daemon that was started by hand still runs"
    exit 0
fi

[ -x "$built/bin/gcgroupfs" ] || fail "nothing is built in $built: scripts/build.sh does it"
# Written first: what an interrupted installation leaves can be uninstalled.
{ installed; files | while read -r _ to _; do echo "$to"; done; } |
    sort -u | replace "$manifest" 644
files | while read -r from to mode; do
    [ -f "$built/$from" ] || fail "$built has no $from"
    case $from in
        *.service) sed "s|@PREFIX@|$prefix|" "$built/$from" ;;
        *) cat "$built/$from" ;;
    esac | replace "$root$prefix/$to" "$mode"
done
echo "installed in $root$prefix"

[ -z "$root" ] || exit 0
cat <<NEXT
next:
  $prefix/bin/gcgroupfs doctor                    checks this machine
  systemctl daemon-reload
  systemctl enable --now gcgroupfs                starts the daemon; or by hand: gcgroupfs mount --allow-other
  $prefix/bin/gcgroupfs run -- PROGRAM            runs a governed program
  $prefix/bin/gc-everywhere on                    governs every new CUDA program
  systemctl enable --now gcgroup-exporter         metrics and a web page at 127.0.0.1:9836
to uninstall: sh $prefix/share/gcgroupfs/install.sh --uninstall
NEXT
