//! Tests a daemon that lacks resources, and pids that are used again.

use std::fs::{self, File};
use std::process::Command;
use std::thread;

use gcgroup_abi::message::{Operation, Request};
use nix::unistd::{Pid, Uid, setfsuid};
use support::{Config, Mount, artifacts, wait_until};

use crate::driver::{Dir, DriverShell, governed_pids};

const MIB: u64 = 1 << 20;

/// Sets the soft limit of descriptors of a running process. The daemon raises its own limit only when it
/// starts.
fn limit_descriptors(pid: Pid, most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let number = libc::RLIMIT_NOFILE;
    // SAFETY: writes the limit given, and reads none.
    let mut done = unsafe { libc::prlimit(pid.as_raw(), number, std::ptr::null(), &raw mut limit) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY: reads the limit given, and writes none.
    done = unsafe { libc::prlimit(pid.as_raw(), number, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn nr_descriptors(pid: Pid) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("proc(5)").count() as u64
}

#[test]
fn daemon_without_descriptors_serves_known_processes() {
    let mount = Mount::new();
    let first = DriverShell::start(&mount);
    let daemon = mount.daemon().expect("the daemon runs");
    wait_until("the first process is governed", || {
        governed_pids(&mount).len() == 1
    });
    let dir = Dir::of(&mount, first.pid());
    let nr_open = nr_descriptors(daemon);
    // None is free.
    limit_descriptors(daemon, 3);
    dir.write("memory.limit", 2 * MIB);
    // Room for a few more processes; each takes two descriptors, and one more while it registers.
    limit_descriptors(daemon, nr_open + 8);
    let mut shells: Vec<_> = (0..10).map(|_| DriverShell::start(&mount)).collect();
    for shell in &mut shells {
        assert_eq!(
            shell.ask("alloc linear 4096"),
            "ok 0",
            "a process that cannot register does not run ungoverned"
        );
    }
    dir.write("memory.limit", MIB);
    assert_eq!(dir.number("memory.limit"), MIB);
    let governed = governed_pids(&mount);
    assert!(governed.len() < 11, "{governed:?}");
    let (inside, outside): (Vec<_>, Vec<_>) = shells
        .into_iter()
        .partition(|shell| governed.contains(&shell.pid()));
    assert!(!outside.is_empty());
    inside.into_iter().for_each(DriverShell::kill9);
    wait_until("a waiting process is governed", || {
        let governed = governed_pids(&mount);
        outside.iter().any(|shell| governed.contains(&shell.pid()))
    });
    limit_descriptors(daemon, 4096);
    wait_until("every waiting process is governed", || {
        let governed = governed_pids(&mount);
        outside.iter().all(|shell| governed.contains(&shell.pid()))
    });
}

/// Shell script for a pid namespace of its own with only 50 pids. Runs a daemon and one governed process
/// after another; each must find no limit, is given one, and is killed. Sometimes the daemon is killed, too.
const PIDS_AGAIN: &str = r#"
set -eu
echo 360 > /proc/sys/kernel/pid_max
daemon() {
    gcgroupfs mount "$T/mnt" --socket "$T/s" --state-dir "$T" 2>> "$T/log" &
    daemon=$!
    until gcgroupfs --socket "$T/s" get devices > "$T/devices" 2>&1; do :; done
}
daemon
mkfifo "$T/in"
seen=' ' again=0 rounds=0
while [ $again -lt 10 ]; do
    rounds=$((rounds + 1))
    [ $rounds -lt 500 ] || { echo "only $again pids came again"; exit 1; }
    # The last program's line must not be taken for that of the next one.
    : > "$T/out"
    GCGROUP_SOCKET=$T/s LD_PRELOAD=$PRELOAD gcgroup-load obey < "$T/in" > "$T/out" 2>&1 &
    pid=$!
    exec 5> "$T/in"
    until read -r line < "$T/out"; do :; done
    # The directory of the pid's last owner may be about to go.
    until limit=$(cat "$T/mnt/$pid/memory.limit" 2> /dev/null); do :; done
    [ "$limit" = max ] || { echo "$pid was born with $limit"; exit 1; }
    echo "$rounds"M > "$T/mnt/$pid/memory.limit"
    case $seen in *" $pid "*) again=$((again + 1)) ;; esac
    seen="$seen$pid "
    if [ $((rounds % 20)) = 0 ]; then
        kill -9 $daemon
        wait $daemon 2> /dev/null || :
    fi
    # It may have ended by itself: its first allocations may come after the limit.
    kill -9 $pid 2> /dev/null || :
    wait $pid 2> /dev/null || :
    exec 5>&-
    [ $((rounds % 20)) != 0 ] || daemon
done
echo "$again of $rounds"
kill $daemon
wait $daemon
"#;

#[test]
fn reused_pid_inherits_no_setting() {
    let root = tempfile::tempdir().expect("a directory");
    for name in ["mnt", "sim"] {
        fs::create_dir(root.path().join(name)).expect("a directory in it");
    }
    let programs = artifacts().gcgroupfs();
    let programs = programs.parent().expect("a directory").display();
    let output = Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            PIDS_AGAIN,
        ])
        .env(
            "PATH",
            format!("{programs}:{}", std::env::var("PATH").expect("a path")),
        )
        .env("T", root.path())
        .env("PRELOAD", artifacts().preload())
        .env("LD_LIBRARY_PATH", artifacts().simgpu())
        .env("SIMGPU_DIR", root.path().join("sim"))
        .output()
        .expect("unshare runs");
    let log = fs::read_to_string(root.path().join("log")).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}\n{log}");
    assert!(said.contains(" of "), "{said}");
}

#[test]
fn unread_answers_of_a_request_flood_delay_no_other() {
    let mount = Mount::with(Config::default());
    let shell = DriverShell::start(&mount);
    let socket = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Unix,
        nix::sys::socket::SockType::SeqPacket,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )
    .expect("a socket");
    let address = nix::sys::socket::UnixAddr::new(&mount.socket()).expect("a path");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    nix::sys::socket::connect(fd, &address).expect("the daemon accepts a connection");
    let request = Request {
        operation: Operation::Get,
        offset: 0,
        name: "gcgroup.stat",
        value: b"",
    };
    let packet: Vec<u8> = request.to_bytes();
    wait_until("the daemon closes the connection", || {
        nix::sys::socket::send(fd, &packet, nix::sys::socket::MsgFlags::MSG_NOSIGNAL).is_err()
    });
    assert_eq!(Dir::of(&mount, shell.pid()).number("memory.current"), 0);
    assert!(
        mount
            .gcgroupfs(&["get", "gcgroup.stat"])
            .output()
            .expect("the command runs")
            .status
            .success()
    );
}

/// Tests closing, which is background work in the kernel: it delays requests beyond the negotiated number.
#[test]
fn rapid_opens_and_closes_never_reach_the_open_file_bound() {
    const THREADS: usize = 64;
    const TIMES: usize = 1000;
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let path = mount.path().join("memory.current");
    let open = || {
        // Changes the file system uid of this thread only; root's open files are not limited.
        setfsuid(Uid::from_raw(1000));
        (0..TIMES).try_for_each(|_| File::open(&path).map(drop))
    };
    thread::scope(|scope| {
        let openers: Vec<_> = (0..THREADS).map(|_| scope.spawn(open)).collect();
        for opener in openers {
            opener
                .join()
                .expect("the thread ends without a panic")
                .expect("a descriptor is free");
        }
    });
}
