#!/bin/sh
# Installs the tree that scripts/build.sh has built (target/dist, or where it was moved to: the tree has a
# copy of this script). A second installation replaces the files one by one; running programs and daemons
# keep the old ones.
set -eu

usage() {
    cat <<'USAGE'
usage: install.sh [--prefix DIR] [--everywhere]
       install.sh [--prefix DIR] --uninstall

  --prefix DIR    installation directory (/usr/local; for the installed copy of this script, its own)
  --everywhere    adds the library to /etc/ld.so.preload, so that every new CUDA program is governed
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
everywhere=no
uninstall=no
while [ $# -gt 0 ]; do
    case $1 in
        --prefix)
            [ $# -gt 1 ] || { usage >&2; exit 2; }
            prefix=$2
            shift
            ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --everywhere) everywhere=yes ;;
        --uninstall) uninstall=yes ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
case $prefix in
    # A space or a colon would end the name in /etc/ld.so.preload.
    *[!A-Za-z0-9/._+-]*) fail "--prefix: letters, digits and /._+- only, not $prefix" ;;
    /*) prefix=${prefix%/} ;;
    *) fail "--prefix: an absolute path, not $prefix" ;;
esac
[ "$everywhere$uninstall" != yesyes ] || { usage >&2; exit 2; }

root=${DESTDIR-}
library=$prefix/lib/libgcgroup.so
list=$root/etc/ld.so.preload

built=$here
[ -x "$built/bin/gcgroupfs" ] || built=${DIST:-$here/../target/dist}

# The list of installed files, relative to the prefix: it uninstalls also what an older version installed.
manifest=$root$prefix/share/gcgroupfs/installed

# files: prints FROM TO MODE lines; FROM in the tree, TO below the prefix.
files() {
    (cd "$built" && find share/man -type f 2> /dev/null | sed 's/.*/& & 644/')
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
bin/gc-preempt bin/gc-preempt 755
share/gcgroupfs/ld.so.preload share/gcgroupfs/ld.so.preload 644
share/slurm/common.sh share/gcgroupfs/slurm/common.sh 644
share/slurm/prolog share/gcgroupfs/slurm/prolog 755
share/slurm/task-prolog share/gcgroupfs/slurm/task-prolog 755
share/slurm/epilog share/gcgroupfs/slurm/epilog 755
share/gcgroupfs.bash share/bash-completion/completions/gcgroupfs 644
share/gcgroupfs.zsh share/zsh/site-functions/_gcgroupfs 644
share/gcgroupfs.fish share/fish/vendor_completions.d/gcgroupfs.fish 644
share/gcgroupfs.toml share/doc/gcgroupfs/gcgroupfs.toml 644
share/alerts.yml share/doc/gcgroupfs/alerts.yml 644
share/grafana.json share/doc/gcgroupfs/grafana.json 644
share/kubelet-plugin/container-image.py share/doc/gcgroupfs/kubelet-plugin/container-image.py 644
share/kubelet-plugin/daemonset.yaml share/doc/gcgroupfs/kubelet-plugin/daemonset.yaml 644
share/kubelet-plugin/gcgroupfs.toml share/doc/gcgroupfs/kubelet-plugin/gcgroupfs.toml 644
share/gcgroupfs.service lib/systemd/system/gcgroupfs.service 644
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

# others FILE: prints its lines without ours.
others() {
    grep -vxF "$library" "$1" || :
}

# installed: prints the installed files, relative to the prefix.
installed() {
    if [ -f "$manifest" ]; then
        cat "$manifest"
    else
        files | while read -r _ to _; do echo "$to"; done
    fi
}

# stop_service: stops and disables the service, if its unit is the one that was installed here.
stop_service() {
    unit=$prefix/lib/systemd/system/gcgroupfs.service
    [ -z "$root" ] && [ -f "$unit" ] && command -v systemctl > /dev/null || return 0
    [ "$(systemctl show -p FragmentPath gcgroupfs.service 2> /dev/null)" = "FragmentPath=$unit" ] || return 0
    systemctl disable --now gcgroupfs.service || echo "install.sh: the service could not be stopped" >&2
}

if [ "$uninstall" = yes ]; then
    stop_service
    # Every new program would print an error for a library that is listed and missing.
    if [ -f "$list" ] && grep -qxF "$library" "$list"; then
        if [ -n "$(others "$list")" ]; then
            others "$list" | replace "$list" 644
        else
            rm "$list"
        fi
    fi
    # This script is among the files.
    installed | while read -r file; do
        case $file in
            '' | /* | *..*) fail "$manifest: not a file of this program: $file" ;;
        esac
        rm -f "$root$prefix/$file"
    done
    rm -f "$manifest"
    rmdir "$root$prefix/share/doc/gcgroupfs/kubelet-plugin" "$root$prefix/share/doc/gcgroupfs" \
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
    if [ "$from" = share/gcgroupfs.service ]; then
        sed "s|@PREFIX@|$prefix|" "$built/$from" | replace "$root$prefix/$to" "$mode"
    else
        replace "$root$prefix/$to" "$mode" < "$built/$from"
    fi
done
echo "installed in $root$prefix"

if [ "$everywhere" = yes ]; then
    # Every new program would print an error for a library that the loader rejects.
    complaint=$(LD_PRELOAD=$root$library /bin/true 2>&1)
    [ -z "$complaint" ] || fail "$list is left as it is: $complaint"
    if ! { [ -f "$list" ] && grep -qxF "$library" "$list"; }; then
        { [ ! -f "$list" ] || others "$list"; echo "$library"; } | replace "$list" 644
    fi
    echo "$list names $library"
fi

[ -z "$root" ] || exit 0
cat <<NEXT
next:
  $prefix/bin/gcgroupfs doctor                    checks this machine
  systemctl daemon-reload
  systemctl enable --now gcgroupfs                starts the daemon; or by hand: gcgroupfs mount --allow-other
  $prefix/bin/gcgroupfs run -- PROGRAM            runs a governed program
to uninstall: sh $prefix/share/gcgroupfs/install.sh --uninstall
NEXT
