#!/bin/sh
# Prints the path of an archive with a Debian system, which is made once per machine (debootstrap). Exits with
# 3 where none can be made, as without a network.
set -eu

usage() {
    cat <<'USAGE'
usage: scripts/debian-system.sh SUITE [NAME PACKAGE...]

  SUITE     such as trixie
  NAME      of a system with these packages; without it the system has Python

environment:
  XDG_CACHE_HOME   the archives are kept in gcgroupfs below it ($HOME/.cache)
USAGE
}

case ${1-} in
    -h | --help) usage; exit 0 ;;
    '' | -*) usage >&2; exit 2 ;;
esac

repo=$(cd "$(dirname "$0")/.." && pwd -P)
suite=$1
name=${2-python3}
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gcgroupfs
kept=$cache/$suite-$(dpkg --print-architecture)-$name.tar

# The archive that this machine uses, which may be a mirror.
here=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
# shellcheck disable=SC2016  # apt-get's own notation
mirror=$(apt-get indextargets --format '$(SITE)' "Codename: $here" 2> /dev/null | head -1)

# install SYSTEM PACKAGE...: installs packages without starting services.
install() {
    system=$1
    shift
    printf '#!/bin/sh\nexit 101\n' > "$system/usr/sbin/policy-rc.d"
    chmod 755 "$system/usr/sbin/policy-rc.d"
    cp /etc/resolv.conf "$system/etc/resolv.conf"
    # The archive's lists may be old where it is a copy.
    for command in update "install --yes --no-install-recommends $*"; do
        # shellcheck disable=SC2086  # words
        chroot "$system" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive \
            apt-get -q -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none $command
    done
}

# make: makes the system in /dev/shm, which ends with the namespaces.
make() {
    system=/dev/shm/system
    if [ "$name" = python3 ]; then
        debootstrap --variant=minbase --include=python3 "$suite" "$system" ${mirror:+"$mirror"} || return 3
    else
        mkdir "$system"
        tar -C "$system" -xf "$BASE_SYSTEM"
        install "$system" "$@" || return 3
        rm -rf "$system/usr/share/doc" "$system/usr/share/man"
    fi
    rm -rf "$system/var/cache/apt" "$system/var/lib/apt/lists"
    tar -C "$system" -cf "$kept.new" . && mv "$kept.new" "$kept"
}

if [ -n "${BASE_SYSTEM+set}" ]; then
    [ $# = 1 ] || shift 2
    make "$@"
    exit
fi
BASE_SYSTEM=
[ "$name" = python3 ] || BASE_SYSTEM=$("$0" "$suite")
mkdir -p "$cache"
# One at a time; the lock ends with this process.
exec 9> "$kept.lock"
flock 9
if [ ! -f "$kept" ]; then
    # shellcheck source=scripts/contained.sh
    . "$repo/scripts/contained.sh"
    export BASE_SYSTEM
    contained 420 "$0" "$@" > "$kept.log" 2>&1 || { tail -n 5 "$kept.log" >&2; exit 3; }
fi
echo "$kept"
