# shellcheck shell=sh
# Accounting of the test cluster of slurm-nodes.sh: slurmdbd with a MariaDB server of its own, which listens
# on a socket only.

# has_accounting: whether the programs are here, and slurmdbd is not older than the controller.
has_accounting() {
    [ -x /usr/sbin/slurmdbd ] && [ -x /usr/sbin/mariadbd ] && [ ! -e "$WORK/old-slurmdbd" ]
}

# configure_accounting: prints the lines of slurm.conf.
configure_accounting() {
    cat <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=16816
AccountingStoragePass=$WORK/munge/socket
CONF
}

# start_accounting: starts both servers, before the controller. No user but the test's can reach the
# database's socket, so the database needs no users and no passwords.
start_accounting() {
    mkdir /run/mysqld "$WORK/database"
    # The path where newer libraries look.
    ln -s mysqld /run/mariadbd
    chmod 700 /run/mysqld
    chown munge:munge /run/mysqld "$WORK/database"
    in_background "$WORK/mariadbd.log" setpriv --reuid munge --regid munge --clear-groups mariadbd --no-defaults \
        --datadir="$WORK/database" --pid-file="$WORK/database/pid" --socket=/run/mysqld/mysqld.sock \
        --skip-networking --skip-grant-tables --innodb-flush-log-at-trx-commit=0 \
        --loose-innodb-snapshot-isolation=OFF
    until_true test -S /run/mysqld/mysqld.sock
    (umask 077 && cat > "$WORK/slurmdbd.conf") <<CONF
AuthType=auth/munge
AuthInfo=socket=$WORK/munge/socket
DbdHost=controller
DbdAddr=127.0.0.1
DbdPort=16816
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile=$WORK/slurmdbd.log
PidFile=$WORK/slurmdbd.pid
CONF
    start_slurmdbd
    until_true timeout 10 sacctmgr -n show cluster
}

# start_slurmdbd [COMMAND...]: starts slurmdbd, by this command, and waits until it listens.
start_slurmdbd() {
    in_background "$WORK/slurmdbd.out" "$@" env LD_PRELOAD="$(ls "$WORK/libmariadb.so.3" 2> /dev/null)" slurmdbd -D
    echo $! > "$WORK/slurmdbd"
    until_true listens 16816 || {
        tail -n 20 "$WORK/mariadbd.log" "$WORK/slurmdbd.out" "$WORK/slurmdbd.log" >&2
        return 1
    }
}

# replace_slurmdbd ROOT: goes on with the slurmdbd of another system, as between the steps of an upgrade.
replace_slurmdbd() {
    kill "$(cat "$WORK/slurmdbd")"
    until_true sh -c "! kill -0 $(cat "$WORK/slurmdbd")"
    for directory in /dev /run /proc; do
        mount --rbind "$directory" "$1$directory"
    done
    mount --bind "$WORK/hosts" "$1/etc/hosts"
    # Slurm lets no controller and no command be newer than slurmdbd, nor does that read a newer database.
    newest=$({ slurmdbd -V; chroot "$1" slurmdbd -V; } | sort -V | tail -n 1)
    if [ "$newest" != "$(chroot "$1" slurmdbd -V)" ]; then
        : > "$WORK/old-slurmdbd"
        sed -i 's/^StorageLoc=.*/StorageLoc=other/' "$WORK/slurmdbd.conf"
    fi
    start_slurmdbd chroot "$1"
}
