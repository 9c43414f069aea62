//! Reading a snapshot from the daemon's socket.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::Context;
use serde::Deserialize;

use super::host::Host;
use super::users::Users;
use super::{
    DEVICE_STAT, FILES, Files, Group, Lease, OnDevice, Process, Snapshot, Usage, VERSION, Wait, ancestors,
    read_devices,
};
use crate::Client;

/// Reads snapshots. Connects again after a failure, since daemons are restarted.
#[derive(Debug, Default)]
pub struct Reader {
    socket: PathBuf,
    client: Option<Client>,
    /// Files to read; `None`: [`FILES`].
    files: Option<Vec<&'static str>>,
    with_host: bool,
    users: Users,
}

/// Line of the daemon's list of processes.
#[derive(Debug, Deserialize)]
struct ProcessLine<'a> {
    #[serde(borrow)]
    pid: Cow<'a, str>,
    #[serde(borrow)]
    device: Option<Cow<'a, str>>,
    uid: u32,
    #[serde(borrow)]
    comm: Cow<'a, str>,
    #[serde(borrow, default)]
    group: Option<Cow<'a, str>>,
    files: Files,
}

/// Line of the daemon's list of groups.
#[derive(Debug, Deserialize)]
struct GroupLine<'a> {
    #[serde(borrow)]
    group: Cow<'a, str>,
    #[serde(borrow)]
    device: Option<Cow<'a, str>>,
    uid: u32,
    files: Files,
}

impl Reader {
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            client: None,
            files: None,
            with_host: false,
            users: Users::default(),
        }
    }

    /// Reads no other files than these, so that long lists take less time.
    pub fn only(&mut self, files: Vec<&'static str>) {
        self.files = Some(files);
    }

    /// Reads also what the kernel tells of each process.
    pub fn with_host(&mut self) {
        self.with_host = true;
    }

    /// Uses this connection, whose limits of time are the caller's.
    pub fn connect(&mut self, client: Client) {
        self.client = Some(client);
    }

    /// Returns the connection to the daemon.
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn client(&mut self) -> anyhow::Result<&mut Client> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.socket)?,
        };
        Ok(self.client.insert(client))
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// No daemon answers, or the client may not search the root directory.
    pub fn read(&mut self) -> anyhow::Result<Snapshot> {
        let read = self.try_read();
        if read.is_err() {
            self.client = None;
        }
        read
    }

    fn try_read(&mut self) -> anyhow::Result<Snapshot> {
        let files = self.files.clone().unwrap_or_else(|| FILES.to_vec());
        let client = self.client()?;
        // The daemon samples the GPUs when it is asked, and shows the sample to the next reader.
        let _ = client.get(DEVICE_STAT)?;
        // Processes first: the groups of all of them are then found, unless they are removed meanwhile.
        let processes = client.list(&files)?.context("cannot list processes")?;
        let at = Instant::now();
        let groups = client.list_groups(&files)?.context("cannot list groups")?;
        let devices = read_devices(client)?;
        let policy = client.get("compute.policy")??.trim().to_owned();
        let mut snapshot = Snapshot {
            version: VERSION,
            time: SystemTime::UNIX_EPOCH
                .elapsed()
                .map_or(0.0, |time| time.as_secs_f64()),
            at,
            policy,
            devices,
            groups: self.groups(&groups)?,
            processes: self.processes(&processes)?,
        };
        snapshot.bound();
        Ok(snapshot)
    }

    fn groups(&mut self, text: &str) -> anyhow::Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for line in lines::<GroupLine<'_>>(text) {
            let line = line?;
            let lease = Lease::of(&line.files);
            let usage = Usage::of(line.files);
            let index = line.device.and_then(|device| device.parse().ok());
            match (groups.last_mut().filter(|group| group.path == line.group), index) {
                (Some(group), Some(index)) => group.devices.push(OnDevice { index, usage }),
                _ => groups.push(Group {
                    uid: line.uid,
                    user: self.users.name(line.uid),
                    path: line.group.into_owned(),
                    lease,
                    rates: None,
                    usage,
                    devices: Vec::new(),
                }),
            }
        }
        groups.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(groups)
    }

    fn processes(&mut self, text: &str) -> anyhow::Result<Vec<Process>> {
        let mut processes: Vec<Process> = Vec::new();
        for line in lines::<ProcessLine<'_>>(text) {
            let line = line?;
            let usage = Usage::of(line.files);
            let index = line.device.and_then(|device| device.parse().ok());
            let Ok(pid) = line.pid.parse() else { continue };
            match (processes.last_mut().filter(|process| process.pid == pid), index) {
                (Some(process), Some(index)) => process.devices.push(OnDevice { index, usage }),
                _ => processes.push(Process {
                    pid,
                    uid: line.uid,
                    user: self.users.name(line.uid),
                    comm: line.comm.into_owned(),
                    group: line.group.map(Cow::into_owned),
                    host: self.with_host.then(|| Host::read(pid, line.uid)).flatten(),
                    waits: Wait::all(&usage.files),
                    rates: None,
                    usage,
                    devices: Vec::new(),
                }),
            }
        }
        processes.sort_by_key(|process| process.pid);
        Ok(processes)
    }
}

fn lines<'a, T: Deserialize<'a>>(text: &'a str) -> impl Iterator<Item = anyhow::Result<T>> {
    let lines = text.lines().map(serde_json::from_str);
    lines.map(|line| line.context("the daemon's list is invalid"))
}

/// Limits in force for a group: as a whole, and on each device by its index.
type Limits = (Option<u64>, BTreeMap<usize, u64>);

impl Snapshot {
    /// Computes the effective limits, and leaves out the devices that are not used.
    fn bound(&mut self) {
        // By the index of the group; those above come first.
        let mut limits: Vec<Limits> = Vec::new();
        for at in 0..self.groups.len() {
            let path = self.groups[at].path.as_str();
            let above = ancestors(path).nth(1).and_then(|path| self.nearest(path));
            let above = above.and_then(|above| limits.get(above));
            let group = &mut self.groups[at];
            let bounds = bound(&mut group.usage, &mut group.devices, above);
            limits.push(bounds);
        }
        for at in 0..self.processes.len() {
            let group = self.processes[at].group.as_deref();
            let above = group.and_then(|path| self.nearest(path));
            let above = above.and_then(|above| limits.get(above));
            let process = &mut self.processes[at];
            bound(&mut process.usage, &mut process.devices, above);
        }
    }

    /// Returns the index of the group of a path, or of the nearest one above it that the client may see.
    fn nearest(&self, path: &str) -> Option<usize> {
        ancestors(path).find_map(|path| self.find(path))
    }
}

/// Computes the limits in force from the own ones and those in force above. Devices that are not used are
/// left out; their limits are returned too.
fn bound(whole: &mut Usage, devices: &mut Vec<OnDevice>, above: Option<&Limits>) -> Limits {
    let all = above
        .and_then(|above| above.0)
        .into_iter()
        .chain(whole.memory.limit)
        .min();
    whole.memory.effective_limit = all;
    let mut on_devices = above.map_or_else(BTreeMap::new, |above| above.1.clone());
    devices.retain_mut(|on| {
        let above = on_devices.get(&on.index).copied();
        let bound = above.into_iter().chain(on.usage.memory.limit).min();
        on_devices.extend(bound.map(|bound| (on.index, bound)));
        on.usage.memory.effective_limit = bound.into_iter().chain(all).min();
        on.usage.is_used()
    });
    (all, on_devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(limit: &str, current: &str) -> serde_json::Value {
        serde_json::json!({"memory.limit": limit, "memory.current": current})
    }

    fn read(processes: &[serde_json::Value], groups: &[serde_json::Value]) -> Snapshot {
        let text =
            |lines: &[serde_json::Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let mut reader = Reader::new(Path::new("/nowhere"));
        let mut snapshot = Snapshot {
            version: VERSION,
            time: 0.0,
            at: Instant::now(),
            policy: String::new(),
            devices: Vec::new(),
            groups: reader.groups(&text(groups)).unwrap(),
            processes: reader.processes(&text(processes)).unwrap(),
        };
        snapshot.bound();
        snapshot
    }

    #[test]
    fn effective_limit_is_the_smallest_above() {
        let process = |pid: &str, device: Option<&str>, group: Option<&str>, limit: &str| {
            serde_json::json!({
                "pid": pid, "device": device, "uid": 0, "comm": "x", "group": group,
                "files": files(limit, "1"),
            })
        };
        let group = |path: &str, device: Option<&str>, limit: &str| serde_json::json!({"group": path, "device": device, "uid": 0, "files": files(limit, "0")});
        let snapshot = read(
            &[
                process("20", None, Some("a/b"), "50"),
                process("20", Some("0"), Some("a/b"), "max"),
                process("20", Some("1"), Some("a/b"), "40"),
                process("3", None, None, "max"),
                process("4", None, Some("ab"), "max"),
            ],
            &[
                group("a", None, "max"),
                group("a", Some("0"), "30"),
                group("a/b", None, "45"),
                group("ab", None, "max"),
            ],
        );
        let pids: Vec<u32> = snapshot.processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [3, 4, 20]);
        let limits = |process: &Process| -> Vec<Option<u64>> {
            let devices = process.devices.iter().map(|on| on.usage.memory.effective_limit);
            [process.usage.memory.effective_limit]
                .into_iter()
                .chain(devices)
                .collect()
        };
        assert_eq!(limits(&snapshot.processes[2]), [Some(45), Some(30), Some(40)]);
        assert_eq!(limits(&snapshot.processes[0]), [None]);
        assert_eq!(limits(&snapshot.processes[1]), [None]);
        let groups: Vec<_> = snapshot
            .groups
            .iter()
            .map(|group| group.usage.memory.effective_limit)
            .collect();
        assert_eq!(groups, [None, Some(45), None]);
        assert!(snapshot.groups[0].devices.is_empty(), "it holds nothing there");
    }
}
