# shellcheck shell=sh
# The Debian system that has the Slurm of the test cluster, where that is not this machine's.
#
# Variables: WORK, a directory below /dev/shm; DIST, a built tree; repo, the repository; SYSTEM and DATABASE,
# archives of scripts/debian-system.sh, or nothing.

# unpack ARCHIVE DIRECTORY
unpack() {
    mkdir "$2"
    tar -C "$2" -xf "$1"
}

# check_headers [ROOT]: compares the plugin's declarations with the headers of the Slurm in a system.
check_headers() {
    [ ! -f "${1-}/usr/include/slurm/spank.h" ] ||
        gcc -fsyntax-only -Wall -Werror -I "${1-}/usr/include" "${repo:?}/gcgroupfs/integrations/slurm/tests/headers.c"
}

# enter_system COMMAND...: runs a command in the system of $SYSTEM, in place of this shell. The system becomes
# the root of the mount namespace, since nsenter(1) leaves a directory of chroot(1).
enter_system() {
    root=/dev/shm/root
    unpack "$SYSTEM" "$root"
    check_headers "$root"
    [ -z "$DATABASE" ] || unpack "$DATABASE" "$root/database"
    # Version 11.8.9 of this library fails Slurm's first query with its error 5027, and slurmdbd ends.
    for library in /usr/lib/*/libmariadb.so.3; do
        [ ! -e "$library" ] || cp "$library" "$WORK/libmariadb.so.3"
    done
    mount --bind "$root" "$root"
    for directory in "$repo" "$DIST" /dev /sys; do
        mkdir -p "$root$directory"
        mount --rbind "$directory" "$root$directory"
    done
    mount -t proc proc "$root/proc"
    mkdir "$root/machine"
    cd "$root" || exit
    pivot_root . machine
    umount -l machine
    exec chroot . "$@"
}
