# shellcheck shell=sh
# Accounting of the test cluster of slurm-nodes.sh: slurmdbd with a MariaDB server of its own, which listens
# on a socket only.

# has_accounting: whether the programs are here.
has_accounting() {
    [ -x /usr/sbin/slurmdbd ] && [ -x /usr/sbin/mariadbd ]
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
        --skip-networking --skip-grant-tables --innodb-flush-log-at-trx-commit=0
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
    in_background "$WORK/slurmdbd.out" slurmdbd -D
    until_true timeout 10 sacctmgr -n show cluster || {
        tail -n 20 "$WORK/mariadbd.log" "$WORK/slurmdbd.out" "$WORK/slurmdbd.log" >&2
        return 1
    }
}
