//! Processes that belong to a test, whether or not they are its children.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::hang::threads;
use crate::wait::DEADLINE;

/// Returns these processes, those that have one of the paths in their command line or environment, and all
/// their descendants.
pub(crate) fn related(mut found: Vec<u32>, paths: &[&Path]) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let parent = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse::<u32>().ok()
    };
    let is_told = |pid: u32| {
        let text =
            ["cmdline", "environ"].map(|name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default());
        let text = text.map(|text| String::from_utf8_lossy(&text).into_owned());
        let has = |path: &&Path| text.iter().any(|text| text.contains(&*path.to_string_lossy()));
        paths.iter().any(has)
    };
    found.extend(pids.iter().filter(|pid| is_told(**pid)));
    loop {
        let is_child =
            |pid: &u32| !found.contains(pid) && parent(*pid).is_some_and(|pid| found.contains(&pid));
        let more: Vec<u32> = pids.iter().copied().filter(is_child).collect();
        if more.is_empty() {
            found.sort_unstable();
            found.dedup();
            return found;
        }
        found.extend(more);
    }
}

/// Returns the command line of each process, and where in the kernel its threads are.
pub(crate) fn describe(pids: &[u32]) -> String {
    let describe = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        format!("{pid} {line}\n{}\n", threads(pid))
    };
    pids.iter().map(describe).collect()
}

/// Kills all processes that are related to a path, but not this one, and waits until they have ended.
pub(crate) fn end_related(path: &Path) {
    let (me, deadline) = (std::process::id(), Instant::now() + DEADLINE);
    loop {
        let mut left = related(Vec::new(), &[path]);
        left.retain(|pid| *pid != me);
        if left.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            eprintln!("killed processes do not end:\n{}", describe(&left));
            return;
        }
        for pid in left.into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(2));
    }
}
