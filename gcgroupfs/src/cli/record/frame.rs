//! Frames of a recording: what has changed since the frame before, or everything (a key frame).

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use gcgroup_client::node::{Device, Group, Process, Snapshot, VERSION};

/// Groups and processes of one sample. GPUs are few and change in each sample: they are always complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::cli) struct Frame {
    /// Seconds since 1970.
    pub(in crate::cli) time: f64,
    policy: String,
    devices: Value,
    /// Groups by path that are new or have changed, as `gcgroupfs ls --json` prints them; null: removed.
    groups: BTreeMap<String, Value>,
    /// Processes by pid that are new or have changed; null: ended.
    processes: BTreeMap<u32, Value>,
}

impl Frame {
    /// Returns a key frame.
    ///
    /// # Errors
    /// A number is not finite.
    pub(super) fn new(snapshot: &Snapshot) -> serde_json::Result<Self> {
        let group = |group: &Group| Ok((group.path.clone(), serde_json::to_value(group)?));
        let process = |process: &Process| Ok((process.pid, serde_json::to_value(process)?));
        Ok(Self {
            time: snapshot.time,
            policy: snapshot.policy.clone(),
            devices: serde_json::to_value(&snapshot.devices)?,
            groups: snapshot
                .groups
                .iter()
                .map(group)
                .collect::<serde_json::Result<_>>()?,
            processes: snapshot
                .processes
                .iter()
                .map(process)
                .collect::<serde_json::Result<_>>()?,
        })
    }

    /// Returns what changes from `before` to this key frame.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            groups: changes(&before.groups, &self.groups),
            processes: changes(&before.processes, &self.processes),
            ..self.clone()
        }
    }

    /// Makes this the key frame of the time of `next`, which says what changes.
    pub(in crate::cli) fn apply(&mut self, next: Self) {
        apply(&mut self.groups, next.groups);
        apply(&mut self.processes, next.processes);
        (self.time, self.policy, self.devices) = (next.time, next.policy, next.devices);
    }

    /// Returns the snapshot of a key frame. Parts that another version wrote otherwise are left out.
    pub(in crate::cli) fn snapshot(&self, at: Instant) -> Snapshot {
        Snapshot {
            version: VERSION,
            time: self.time,
            at,
            policy: self.policy.clone(),
            devices: self.devices(),
            groups: values(self.groups.values()),
            processes: values(self.processes.values()),
        }
    }

    pub(super) fn devices(&self) -> Vec<Device> {
        serde_json::from_value(self.devices.clone()).unwrap_or_default()
    }

    /// Returns the processes that are new or have changed.
    pub(super) fn changed_processes(&self) -> Vec<Process> {
        values(self.processes.values())
    }

    /// Returns the pids of processes that have ended.
    pub(super) fn ended_processes(&self) -> impl Iterator<Item = u32> {
        let ended = self.processes.iter().filter(|(_, value)| value.is_null());
        ended.map(|(pid, _)| *pid)
    }

    pub(super) fn process(&self, pid: u32) -> Option<Process> {
        serde_json::from_value(self.processes.get(&pid)?.clone()).ok()
    }
}

fn values<'a, T: serde::de::DeserializeOwned>(values: impl Iterator<Item = &'a Value>) -> Vec<T> {
    values
        .filter_map(|value| serde_json::from_value(value.clone()).ok())
        .collect()
}

fn changes<K: Ord + Clone>(before: &BTreeMap<K, Value>, now: &BTreeMap<K, Value>) -> BTreeMap<K, Value> {
    let changed = now.iter().filter(|(key, value)| before.get(key) != Some(value));
    let removed = before.keys().filter(|key| !now.contains_key(key));
    let changed = changed.map(|(key, value)| (key.clone(), value.clone()));
    changed
        .chain(removed.map(|key| (key.clone(), Value::Null)))
        .collect()
}

fn apply<K: Ord>(all: &mut BTreeMap<K, Value>, changes: BTreeMap<K, Value>) {
    for (key, value) in changes {
        match value {
            Value::Null => all.remove(&key),
            value => all.insert(key, value),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::fixture;

    #[test]
    fn changes_lead_from_frame_to_frame() {
        let before = Frame::new(&fixture::snapshot()).unwrap();
        let mut snapshot = fixture::snapshot();
        snapshot.time = 1.5;
        snapshot.processes.retain(|process| process.pid != 7);
        snapshot.processes[0].usage.memory.current = 5;
        snapshot.groups.pop();
        snapshot.devices[0].utilization = None;
        let now = Frame::new(&snapshot).unwrap();
        let text = serde_json::to_vec(&now.since(&before)).unwrap();
        let change: Frame = serde_json::from_slice(&text).unwrap();
        let changed = change.changed_processes();
        assert_eq!((changed.len(), changed[0].pid), (1, 100));
        assert_eq!(change.ended_processes().collect::<Vec<_>>(), [7]);
        let mut frame = before;
        frame.apply(change);
        assert_eq!(frame, now);
        let read = frame.snapshot(snapshot.at);
        let json = |snapshot: &Snapshot| serde_json::to_value(snapshot).unwrap();
        assert_eq!(json(&read), json(&snapshot));
    }
}
