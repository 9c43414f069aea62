//! Tests a daemon whose clock jumps, and a daemon without memory for blocks shared with processes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use support::{Config, Mount, c_program, wait_until};
use tempfile::NamedTempFile;

use crate::driver::{Dir, DriverShell, governed_pids};

const MIB: u64 = 1 << 20;
const YEAR: i64 = 365 * 24 * 3600;

/// The file that `trouble.c` reads.
struct Trouble(NamedTempFile);

impl Trouble {
    const REALTIME: u64 = 0;
    const MEMORY: u64 = 1;

    /// Starts a daemon that this file can disturb.
    fn new() -> (Self, Mount) {
        let trouble = Self(NamedTempFile::new().expect("a file"));
        for word in [Self::REALTIME, Self::MEMORY] {
            trouble.set(word, 0);
        }
        let library = c_program("trouble.c", &["-shared", "-fPIC"]);
        // Governed programs get another library in `LD_PRELOAD`.
        let config = Config::default()
            .env("LD_PRELOAD", library.display())
            .env("TROUBLE", trouble.0.path().display());
        (trouble, Mount::with(config))
    }

    fn set(&self, word: u64, value: i64) {
        let file: &File = self.0.as_file();
        file.write_all_at(&value.to_ne_bytes(), word * 8)
            .expect("the file is writable");
    }
}

#[test]
fn clock_jumps_delay_no_file_freeze_or_quota() {
    let (trouble, mount) = Trouble::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("compute.max", "20000 100000");
    for (seconds, n) in [30 * YEAR, -20 * YEAR, 3600, 0].into_iter().zip(1..) {
        trouble.set(Trouble::REALTIME, seconds);
        dir.write("memory.limit", n * MIB);
        assert_eq!(dir.number("memory.limit"), n * MIB);
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        dir.write("compute.freeze", 0);
        // More than a period allows.
        assert_eq!(shell.ask("spin 5000 10"), "ok");
        assert_eq!(shell.ask("sync"), "ok");
        let another = DriverShell::start(&mount);
        assert_eq!(Dir::of(&mount, another.pid()).number("memory.current"), 0);
        another.quit();
        wait_until("the second process is no longer governed", || {
            governed_pids(&mount) == [shell.pid()]
        });
        // The usage is that of the kernels, without the jump.
        let usage = dir.key("compute.stat", "usage_usec");
        assert!(usage < 60_000_000, "{usage} after {seconds} s");
    }
    // Within the 5 % to which GPU time is known.
    wait_until("the GPU time of all kernels is charged", || {
        dir.key("compute.stat", "usage_usec") >= 4 * 47_500
    });
    assert!(!mount.log().contains("panicked"), "{}", mount.log());
}

#[test]
fn governed_processes_are_served_without_memory_for_blocks() {
    let (trouble, mount) = Trouble::new();
    let inside = DriverShell::start(&mount);
    trouble.set(Trouble::MEMORY, libc::ENOMEM.into());
    let mut outside = DriverShell::start(&mount);
    assert_eq!(
        outside.ask("alloc linear 4096"),
        "ok 0",
        "the process that cannot register does not run ungoverned"
    );
    assert_eq!(governed_pids(&mount), [inside.pid()]);
    let dir = Dir::of(&mount, inside.pid());
    dir.write("memory.limit", MIB);
    assert_eq!(dir.number("memory.limit"), MIB);
    wait_until("the log reports the refused registration", || {
        mount.log().contains("was refused: ENOMEM")
    });
    trouble.set(Trouble::MEMORY, 0);
    wait_until("the refused process is governed", || mount.governs(outside.pid()));
    let outside = Dir::of(&mount, outside.pid());
    // Without a daemon, which says that a page is a byte, the block was charged as one in a page of 2 MiB.
    wait_until("its context, which takes nothing, is measured", || {
        outside.number("memory.current") == 2 * MIB
    });
    assert_eq!(outside.key("memory.stat", "requested"), 4096);
}
