//! Diagnosis and release of hanging processes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use nix::mount::{MntFlags, umount2};

/// Returns where in the kernel each thread of a process is.
pub fn threads(pid: impl ToString) -> String {
    let tasks = format!("/proc/{}/task", pid.to_string());
    let mut text = String::new();
    for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (comm, wchan, call, stack) = (read("comm"), read("wchan"), read("syscall"), read("stack"));
        let call = call.split(' ').next().unwrap_or_default().trim();
        let stack: Vec<_> = stack.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        let id = task.file_name().display().to_string();
        let _ = writeln!(
            text,
            "{id} {}: in {wchan}, system call {call}: {}",
            comm.trim(),
            stack.join(" ")
        );
    }
    text
}

/// Fails all pending requests to the FUSE mount at `point`. (If a file is open there, umount2(2) returns
/// EBUSY, but has aborted the connection by then.)
pub(crate) fn abort(point: &Path) {
    let _ = umount2(point, MntFlags::MNT_FORCE);
}
