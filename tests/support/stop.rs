//! Processes that stand still.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::wait_until;

/// Stops a process as SIGSTOP does, and waits until each of its threads has: kill(2) returns before, and a
/// thread that runs on another CPU goes on for a while.
///
/// # Panics
/// When there is none of that pid.
#[track_caller]
pub fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("it runs");
    wait_until("all its threads have stopped", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        tasks.flatten().all(|task| {
            let Ok(text) = fs::read_to_string(task.path().join("stat")) else {
                return true;
            };
            // Behind the name, which may have anything in it.
            let state = text.rsplit(") ").next().unwrap_or_default();
            state.starts_with(['T', 't'])
        })
    });
}
