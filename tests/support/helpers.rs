//! Helper processes of a daemon.

use std::fs;

use nix::unistd::Pid;

/// Returns the descendant of the daemon that runs `gcgroupfs COMMAND`, if there is one.
pub fn helper(daemon: Pid, command: &str) -> Option<Pid> {
    let processes = fs::read_dir("/proc").expect("proc(5)").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let found = pids.find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let runs = line.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes());
        runs && descends(*pid, daemon.as_raw())
    });
    found.map(Pid::from_raw)
}

fn descends(pid: i32, from: i32) -> bool {
    let parent = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse::<i32>().ok().filter(|pid| *pid > 0)
    };
    std::iter::successors(Some(pid), |pid| parent(*pid)).any(|pid| pid == from)
}
