//! Tests holes in a usage block. The block's seals fix its size but not its pages, so a process can free
//! pages that the daemon reads later: the daemon gets zeroed pages, charged to its own memory cgroup.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;

use gcgroup_abi::map::USAGE_SIZE;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Mount, stop, wait_until};

use crate::cgroup::Cgroup;
use crate::driver::{Dir, DriverShell};

/// Memory limit of the daemon's cgroup in bytes. The pages made for holes amount to twice as much.
const LIMIT: u64 = 16 << 20;

/// Opens the usage block of a process through one of its descriptors.
pub(crate) fn usage_block(pid: i32) -> File {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives");
    let mut paths = descriptors.flatten().map(|entry| entry.path());
    let path = paths.find(|path| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("gcgroup-usage"))
    });
    let path = path.expect("the process has a usage block");
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("root may open the file")
}

#[test]
fn usage_block_holes_cost_daemon_at_most_the_block() {
    let Some(cgroup) = Cgroup::new("holes", LIMIT) else {
        eprintln!("skipped: no memory cgroup can be made here");
        return;
    };
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask("spin 1 3"), "ok");
    let block = usage_block(shell.pid());
    cgroup.take(mount.daemon().expect("the daemon runs"));
    // Stops the process so that only the daemon allocates pages of the block.
    let pid = Pid::from_raw(shell.pid());
    stop(pid);
    let size = || block.metadata().expect("the block is open").blocks() * 512;
    let mut filled = 0;
    while filled < 2 * LIMIT {
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&block, punch, 0, USAGE_SIZE.try_into().expect("the size fits"))
            .expect("the seals allow it");
        // The daemon also reads at its own intervals, so pages may be allocated again at once.
        let dir = Dir::of(&mount, shell.pid());
        assert_eq!(dir.number("memory.current"), 0);
        assert_eq!(
            dir.key("compute.stat", "nr_launches"),
            0,
            "the emptied page does not read as zeroes"
        );
        let now = size();
        assert!(
            (1..=USAGE_SIZE as u64).contains(&now),
            "reading allocated {now} bytes"
        );
        filled += now;
    }
    kill(pid, Signal::SIGCONT).expect("the process lives");
    assert_eq!(shell.ask("spin 1 1"), "ok", "the program cannot continue");
    shell.quit();
    wait_until("the process is no longer governed", || {
        !mount.governs(pid.as_raw())
    });
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
}
