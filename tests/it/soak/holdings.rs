//! Resources held by a daemon: descriptors, threads, blocks, memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nix::unistd::Pid;
use support::helper;

/// Open descriptors, threads and mapped blocks of a process, by kind.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Holdings {
    /// All but the socket and the pidfd of an idle helper of suspensions.
    descriptors: BTreeMap<String, usize>,
    /// Threads except those that close received descriptors and those that read /proc: their number stays at
    /// the highest number needed at once.
    threads: BTreeMap<String, usize>,
    blocks: usize,
}

impl Holdings {
    pub(super) fn of(pid: Pid) -> Self {
        let count = |names: Vec<String>| {
            let mut counted = BTreeMap::new();
            for name in names {
                *counted.entry(name).or_default() += 1;
            }
            counted
        };
        let names = |directory: &str, name: fn(&Path) -> Option<String>| {
            let entries = fs::read_dir(format!("/proc/{pid}/{directory}")).expect("proc(5)");
            entries
                .flatten()
                .filter_map(|entry| name(&entry.path()))
                .collect::<Vec<_>>()
        };
        let kind = |path: &Path| {
            let target = fs::read_link(path).ok()?.display().to_string();
            // The names of sockets and pipes contain numbers, and those of files in /proc the daemon's pid.
            let target = match target.as_str() {
                // The name before Linux 6.9.
                "anon_inode:[pidfd]" => "pidfd",
                target => target.split(":[").next().unwrap_or_default(),
            };
            let is_pid = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            Some(
                target
                    .split('/')
                    .filter(|part| !is_pid(part))
                    .collect::<Vec<_>>()
                    .join("/"),
            )
        };
        let comm = |path: &Path| Some(fs::read_to_string(path.join("comm")).ok()?.trim().to_owned());
        let mut threads = names("task", comm);
        threads.retain(|name| name != "closer" && name != "procfs");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("proc(5)");
        let mut descriptors = count(names("fd", kind));
        // The daemon keeps the last helper for a minute or two.
        if helper(pid, "checkpoint").is_some() {
            for kind in ["socket", "pidfd"] {
                descriptors
                    .entry(kind.to_owned())
                    .and_modify(|number| *number -= 1);
            }
        }
        descriptors.retain(|_, number| *number > 0);
        Self {
            descriptors,
            threads: count(threads),
            blocks: maps.matches("/memfd:").count(),
        }
    }
}

/// Returns the resident memory in KiB, or `None` for an exiting process.
pub(super) fn resident(pid: Pid) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
