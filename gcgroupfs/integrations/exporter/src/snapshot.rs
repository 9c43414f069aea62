//! The daemon's state at one moment, read over its socket.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use gcgroup_client::Client;
use gcgroup_client::node::{
    self, Activities, Activity, Device, Files, Host, Reader, Target, Usage, ancestors,
};

use crate::owner::Owner;
use crate::pods::Pods;

/// Longest wait for one answer of the daemon.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest time of all requests of a reading.
const LIFE: Duration = Duration::from_secs(15);

/// Files of the root.
const ROOT_FILES: [&str; 4] = [
    "compute.pressure",
    "gcgroup.events",
    "memory.events",
    "memory.pressure",
];

/// File of the unmanaged processes; the sums over them have its name in [`Snapshot::root`].
pub(crate) const UNMANAGED: &str = "unmanaged";

/// Maximum numbers of entries; what exceeds them is counted and left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) processes: usize,
    pub(crate) groups: usize,
}

/// Governed process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process {
    pub(crate) of: node::Process,
    pub(crate) activity: Activity,
    pub(crate) owner: Owner,
    pub(crate) host: Option<Host>,
}

/// Group of governed processes, which may be empty.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    pub(crate) of: node::Group,
    pub(crate) activity: Activity,
    /// Number of processes in it and below.
    pub(crate) nr_processes: usize,
}

/// The daemon's state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// Time when it was complete, since 1970.
    pub(crate) time: Duration,
    /// How long it took to read.
    pub(crate) took: Duration,
    /// The scheduling policy.
    pub(crate) policy: String,
    pub(crate) gpus: Vec<Device>,
    pub(crate) processes: Vec<Process>,
    pub(crate) groups: Vec<Group>,
    pub(crate) root: Files,
    /// Number of governed processes, with those left out.
    pub(crate) nr_processes: usize,
    pub(crate) processes_dropped: usize,
    pub(crate) groups_dropped: usize,
    /// Names of Kubernetes pods; empty where they are not known.
    pub(crate) pods: Pods,
}

impl Snapshot {
    /// Reads the state of the daemon at a socket. `activities` are those of the snapshots before.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(crate) fn read(
        socket: &Path,
        caps: Caps,
        (reader, activities): (&mut Reader, &mut Activities),
    ) -> anyhow::Result<Self> {
        let begun = Instant::now();
        reader.connect(Client::connect_with(socket, PATIENCE)?.within(LIFE));
        let mut node = reader.read()?;
        activities.update(&node);
        let client = reader.client()?;
        let mut root = Files::default();
        for name in ROOT_FILES {
            if let Ok(text) = client.get(name)? {
                root.insert(name, &text);
            }
        }
        let found = client.get(UNMANAGED)?.unwrap_or_default();
        root.insert(UNMANAGED, &unmanaged(&found));
        let (nr_processes, populated) = (node.processes.len(), populated(&node.processes));
        cap(&mut node.processes, caps.processes, &refuted(&found));
        // Empty groups too: a counter that begins with the first process could begin above 0.
        let groups = node.groups.into_iter().map(|of| Group {
            activity: activities.of(&Target::Group(of.path.clone())),
            nr_processes: populated.get(&of.path).copied().unwrap_or_default(),
            of,
        });
        let mut groups: Vec<Group> = groups.collect();
        let groups_dropped = groups.len().saturating_sub(caps.groups);
        groups.sort_by_key(|group| group.nr_processes == 0);
        groups.truncate(caps.groups);
        groups.sort_by(|a, b| a.of.path.cmp(&b.of.path));
        let processes = node.processes.into_iter().map(|of| Process {
            activity: activities.of(&Target::Process(of.pid)),
            owner: Owner::of(of.pid),
            // The command line is for its user and root only.
            host: Host::read(of.pid, of.uid).map(|host| Host {
                command: None,
                ..host
            }),
            of,
        });
        let processes: Vec<Process> = processes.collect();
        Ok(Self {
            time: now(),
            took: begun.elapsed(),
            policy: node.policy,
            gpus: node.devices,
            processes_dropped: nr_processes - processes.len(),
            processes,
            groups,
            root,
            nr_processes,
            groups_dropped,
            pods: Pods::default(),
        })
    }

    /// Names pods and containers by a file. Without it, or if it cannot be read, UIDs and ids remain.
    pub(crate) fn with_names(mut self, file: Option<&Path>) -> Self {
        self.pods = file.and_then(|file| Pods::read(file).ok()).unwrap_or_default();
        for process in &mut self.processes {
            process.owner.name(&self.pods);
        }
        self
    }

    /// Returns the groups and processes with their usage.
    pub(crate) fn targets(&self) -> impl Iterator<Item = (Target, &Usage)> {
        let groups = self.groups.iter();
        let groups = groups.map(|group| (Target::Group(group.of.path.clone()), &group.of.usage));
        let processes = self.processes.iter();
        groups.chain(processes.map(|process| (Target::Process(process.of.pid), &process.of.usage)))
    }

    /// Returns whether the daemon shows what NVML tells of each GPU.
    pub(crate) fn is_sampled(&self) -> bool {
        self.gpus.iter().all(|gpu| gpu.memory.used.is_some())
    }
}

/// Returns the time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Returns the pids of processes that claim to hold or use more than NVML shows, from the text of
/// `unmanaged`.
fn refuted(text: &str) -> BTreeSet<u32> {
    let claims = |line: &&str| line.contains(" reason=claims_");
    text.lines()
        .filter(claims)
        .filter_map(|line| line.split(' ').next()?.parse().ok())
        .collect()
}

/// Removes processes if there are more than `most`: first those whose claims NVML refutes, then those that
/// hold least memory. Sorts the rest by pid.
fn cap(processes: &mut Vec<node::Process>, most: usize, refuted: &BTreeSet<u32>) {
    processes.sort_by_key(|process| {
        let memory = process.usage.memory.current;
        (refuted.contains(&process.pid), Reverse(memory), process.pid)
    });
    processes.truncate(most);
    processes.sort_by_key(|process| process.pid);
}

/// Returns the groups of the processes and the groups above them, with the number of processes in each and
/// below.
fn populated(processes: &[node::Process]) -> BTreeMap<String, usize> {
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    let direct = processes.iter().filter_map(|process| process.group.as_deref());
    for path in direct.flat_map(ancestors) {
        *groups.entry(path.to_owned()).or_default() += 1;
    }
    groups
}

/// Returns the number of lines of `unmanaged` for each reason, as flat keys.
fn unmanaged(text: &str) -> String {
    let reasons = ["no_hook", "beyond_ledger", "claims_more", "claims_use"];
    let count = |reason: &str| {
        text.lines()
            .filter(|line| line.ends_with(&format!(" reason={reason}")))
            .count()
    };
    reasons
        .map(|reason| format!("{reason} {}\n", count(reason)))
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(bytes: &[u64]) -> Vec<node::Process> {
        let process = |(at, bytes): (u32, &u64)| {
            let mut process = node::Process {
                pid: at + 1,
                group: Some(format!("team/{at}")),
                ..node::Process::default()
            };
            process.usage.memory.current = *bytes;
            process
        };
        (0..).zip(bytes).map(process).collect()
    }

    #[test]
    fn processes_beyond_the_cap_hold_least() {
        let mut kept = processes(&[5, 1, 9, 5]);
        let found = "1 gpu=0 uid=7 comm=a bytes=1 since=1 reason=no_hook\n3 gpu=0 uid=7 comm=a bytes=9 since=1 \
                     reason=claims_more\n";
        cap(&mut kept, 3, &refuted(found));
        cap(&mut kept, 2, &BTreeSet::new());
        let pids: Vec<u32> = kept.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [1, 4], "the claims of 3 are refuted");
    }

    #[test]
    fn groups_above_count_processes_below() {
        let expected = [("team", 2), ("team/0", 1), ("team/1", 1)];
        let expected: BTreeMap<_, _> = expected.map(|(path, nr)| (path.to_owned(), nr)).into();
        assert_eq!(populated(&processes(&[5, 1])), expected);
    }
}
