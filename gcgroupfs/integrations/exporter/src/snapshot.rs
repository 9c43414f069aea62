//! The daemon's state at one moment, read over its socket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow};
use gcgroup_client::Client;
use serde::Deserialize;

use crate::files::{Files, flat_keyed};
use crate::owner::{Owner, Users};
use crate::pods::Pods;

/// Files of processes, and of processes on a device where they have them.
const PROCESS_FILES: [&str; 11] = [
    "compute.freeze",
    "compute.pressure",
    "compute.priority",
    "compute.stat",
    "gcgroup.events",
    "memory.current",
    "memory.events",
    "memory.limit",
    "memory.peak",
    "memory.pressure",
    "memory.stat",
];

/// Files of groups.
const GROUP_FILES: [&str; 9] = [
    "compute.freeze",
    "compute.pressure",
    "compute.stat",
    "gcgroup.events",
    "memory.current",
    "memory.events",
    "memory.limit",
    "memory.pressure",
    "memory.stat",
];

/// Files of the root.
const ROOT_FILES: [&str; 3] = ["compute.pressure", "gcgroup.events", "memory.pressure"];

/// Name that the values of `devices.stat` have in [`Gpu::files`].
pub(crate) const DEVICE_STAT: &str = "devices.stat";

/// Name that the sums over unmanaged processes have in [`Snapshot::root`].
pub(crate) const UNMANAGED: &str = "unmanaged";

/// Maximum numbers of entries; what exceeds them is counted and left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) processes: usize,
    pub(crate) groups: usize,
}

/// GPU, or MIG instance.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub(crate) index: String,
    pub(crate) uuid: String,
    pub(crate) model: String,
    pub(crate) files: Files,
}

/// Governed process.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: String,
    pub(crate) comm: String,
    pub(crate) user: String,
    /// Path of its group, empty for the root; `None` if the exporter's user may not see it.
    pub(crate) group: Option<String>,
    pub(crate) owner: Owner,
    pub(crate) files: Files,
    /// Devices that it uses: index and files.
    pub(crate) devices: Vec<(String, Files)>,
}

/// Group with a governed process in it or below.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) path: String,
    pub(crate) files: Files,
    /// Number of processes in it and below.
    pub(crate) nr_processes: usize,
}

/// The daemon's state.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// Time when it was complete, since 1970.
    pub(crate) time: Duration,
    /// How long it took to read.
    pub(crate) took: Duration,
    pub(crate) gpus: Vec<Gpu>,
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

/// Line of the daemon's list.
#[derive(Debug, Deserialize)]
struct Line {
    pid: String,
    device: Option<String>,
    uid: u32,
    comm: String,
    #[serde(default)]
    group: Option<String>,
    files: Files,
}

impl Snapshot {
    /// Reads the state of the daemon at a socket.
    ///
    /// # Errors
    /// No daemon answers, or its answer is invalid.
    pub(crate) fn read(socket: &Path, caps: Caps, users: &mut Users) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let mut client = Client::connect(socket)?;
        // The daemon samples the GPUs when it is asked, and shows the sample to the next reader.
        read(&mut client, DEVICE_STAT)?;
        let text = client.list(&PROCESS_FILES)?;
        let text = text.map_err(|refusal| anyhow!("cannot list processes: {refusal}"))?;
        let mut processes = processes(&text, users)?;
        let (nr_processes, paths) = (processes.len(), group_paths(&processes));
        let found = read(&mut client, "unmanaged")?;
        cap(&mut processes, caps.processes, &refuted(&found));
        for process in &mut processes {
            process.owner = Owner::of(&process.pid);
        }
        let groups_dropped = paths.len().saturating_sub(caps.groups);
        let mut groups = Vec::new();
        for (path, nr_processes) in paths.into_iter().take(caps.groups) {
            let files = read_files(&mut client, &format!("{path}/"), &GROUP_FILES)?;
            groups.push(Group {
                path,
                files,
                nr_processes,
            });
        }
        let mut root = read_files(&mut client, "", &ROOT_FILES)?;
        let (devices, stats) = (read(&mut client, "devices")?, read(&mut client, DEVICE_STAT)?);
        root.insert(UNMANAGED, unmanaged(&found));
        Ok(Self {
            time: now(),
            took: begun.elapsed(),
            gpus: gpus(&devices, &stats),
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

    /// Returns whether the daemon shows what NVML tells of each GPU.
    pub(crate) fn is_sampled(&self) -> bool {
        self.gpus
            .iter()
            .all(|gpu| gpu.files.key(DEVICE_STAT, "memory_used").is_some())
    }
}

/// Returns the time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Returns the processes of a list.
///
/// # Errors
/// The list is invalid.
fn processes(text: &str, users: &mut Users) -> anyhow::Result<Vec<Process>> {
    let mut processes: BTreeMap<String, Process> = BTreeMap::new();
    for line in text.lines() {
        let line: Line = serde_json::from_str(line).context("the daemon's list is invalid")?;
        match line.device {
            None => {
                let process = Process {
                    pid: line.pid.clone(),
                    comm: line.comm,
                    user: users.name(line.uid),
                    group: line.group,
                    owner: Owner::default(),
                    files: line.files,
                    devices: Vec::new(),
                };
                processes.insert(line.pid, process);
            }
            Some(device) => {
                let is_used = line.files.number("memory.current") != Some(0)
                    || line
                        .files
                        .key("memory.stat", "swapped")
                        .is_some_and(|bytes| bytes != 0)
                    || line.files.submissions() != 0;
                if let Some(process) = processes.get_mut(&line.pid).filter(|_| is_used) {
                    process.devices.push((device, line.files));
                }
            }
        }
    }
    Ok(processes.into_values().collect())
}

/// Returns the pids of processes that claim to hold or use more than NVML shows, from the text of
/// `unmanaged`.
fn refuted(text: &str) -> BTreeSet<&str> {
    let claims = |line: &&str| line.contains(" reason=claims_");
    text.lines()
        .filter(claims)
        .filter_map(|line| line.split(' ').next())
        .collect()
}

/// Removes processes if there are more than `most`: first those whose claims NVML refutes, then those that
/// hold least memory. Sorts the rest by pid.
fn cap(processes: &mut Vec<Process>, most: usize, refuted: &BTreeSet<&str>) {
    let pid = |process: &Process| process.pid.parse().unwrap_or(u64::MAX);
    let memory = |process: &Process| process.files.number("memory.current").unwrap_or(0);
    processes.sort_by_key(|process| {
        let is_refuted = refuted.contains(process.pid.as_str());
        (is_refuted, std::cmp::Reverse(memory(process)), pid(process))
    });
    processes.truncate(most);
    processes.sort_by_key(pid);
}

/// Returns the groups of the processes and the groups above them, with the number of processes in each and
/// below.
fn group_paths(processes: &[Process]) -> BTreeMap<String, usize> {
    let mut paths: BTreeMap<String, usize> = BTreeMap::new();
    for group in processes.iter().filter_map(|process| process.group.as_deref()) {
        let mut above: BTreeSet<&str> = group
            .match_indices('/')
            .filter_map(|(at, _)| group.get(..at))
            .collect();
        above.insert(group);
        for path in above.into_iter().filter(|path| !path.is_empty()) {
            *paths.entry(path.to_owned()).or_default() += 1;
        }
    }
    paths
}

/// Returns the contents of files in a directory; those that cannot be read are left out.
fn read_files(client: &mut Client, directory: &str, names: &[&str]) -> anyhow::Result<Files> {
    let mut files = Files::default();
    for name in names {
        if let Ok(text) = client.get(&format!("{directory}{name}"))? {
            files.insert(name, text);
        }
    }
    Ok(files)
}

/// Returns the text of a file of the root; an empty one if it cannot be read.
fn read(client: &mut Client, name: &str) -> anyhow::Result<String> {
    Ok(client.get(name)?.unwrap_or_default())
}

/// Parses `devices` and `devices.stat`.
fn gpus(devices: &str, stats: &str) -> Vec<Gpu> {
    let stats: BTreeMap<&str, &str> = stats.lines().filter_map(|line| line.split_once(' ')).collect();
    let gpu = |line: &str| {
        let mut words = line.splitn(5, ' ');
        let mut word = || words.next().map(str::to_owned);
        let (index, uuid, _pci, _total, model) = (word()?, word()?, word()?, word()?, word()?);
        let mut files = Files::default();
        files.insert(DEVICE_STAT, flat_keyed(stats.get(index.as_str()).unwrap_or(&"")));
        Some(Gpu {
            index,
            uuid,
            model,
            files,
        })
    };
    devices.lines().filter_map(gpu).collect()
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

    fn list(bytes: &[u64]) -> String {
        let line = |(at, bytes): (usize, &u64)| {
            format!(
                r#"{{"pid":"{}","device":null,"uid":0,"comm":"a","group":"team/{at}","files":{{"memory.current":"{bytes}\n"}}}}"#,
                at + 1
            ) + "\n"
        };
        bytes.iter().enumerate().map(line).collect()
    }

    #[test]
    fn processes_beyond_the_cap_hold_least() {
        let mut kept = processes(&list(&[5, 1, 9, 5]), &mut Users::default()).unwrap();
        let found = "1 gpu=0 uid=7 comm=a bytes=1 since=1 reason=no_hook\n3 gpu=0 uid=7 comm=a bytes=9 since=1 \
                     reason=claims_more\n";
        cap(&mut kept, 3, &refuted(found));
        cap(&mut kept, 2, &BTreeSet::new());
        let pids: Vec<&str> = kept.iter().map(|process| process.pid.as_str()).collect();
        assert_eq!(pids, ["1", "4"], "the claims of 3 are refuted");
    }

    #[test]
    fn unused_devices_are_left_out() {
        let device = |index, bytes, launches| {
            format!(
                r#"{{"pid":"1","device":"{index}","uid":0,"comm":"a","files":{{"memory.current":"{bytes}\n","compute.stat":"nr_launches {launches}\n"}}}}"#
            ) + "\n"
        };
        let text = list(&[5]) + &device(0, 0, 0) + &device(1, 5, 0) + &device(2, 0, 7);
        let kept = processes(&text, &mut Users::default()).unwrap();
        let devices: Vec<&str> = kept[0].devices.iter().map(|(index, _)| index.as_str()).collect();
        assert_eq!(devices, ["1", "2"]);
    }

    #[test]
    fn groups_above_count_processes_below() {
        let kept = processes(&list(&[5, 1]), &mut Users::default()).unwrap();
        let expected = [("team", 2), ("team/0", 1), ("team/1", 1)];
        let expected: BTreeMap<_, _> = expected.map(|(path, nr)| (path.to_owned(), nr)).into();
        assert_eq!(group_paths(&kept), expected);
    }

    #[test]
    fn model_names_keep_their_blanks() {
        let gpus = gpus(
            "0 GPU-1 0000:01 80 NVIDIA H100 PCIe\n1 bad\n",
            "0 utilization=7 temperature=unknown\n",
        );
        assert_eq!(gpus.len(), 1);
        assert_eq!(gpus[0].model, "NVIDIA H100 PCIe");
        assert_eq!(gpus[0].files.key(DEVICE_STAT, "utilization"), Some(7));
    }
}
