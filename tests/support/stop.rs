//! Stopping processes.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::wait_until;

/// Stops a process with SIGSTOP and waits until all its threads have stopped: kill(2) returns earlier, while
/// threads on other CPUs still run.
///
/// # Panics
/// If there is no process with this pid.
#[track_caller]
pub fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("the process runs");
    wait_until("every thread of the process has stopped", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
        tasks.flatten().all(|task| {
            let Ok(text) = fs::read_to_string(task.path().join("stat")) else {
                return true;
            };
            // After the name, which may contain any character.
            let state = text.rsplit(") ").next().unwrap_or_default();
            state.starts_with(['T', 't'])
        })
    });
}

/// Returns whether the process's first thread has stopped.
pub fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may contain any character.
    let state = stat.rsplit(") ").next().unwrap_or_default();
    state.starts_with('T')
}
