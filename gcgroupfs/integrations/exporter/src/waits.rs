//! Processes that wait, and why.

use std::collections::BTreeMap;

use gcgroup_client::node::{self, Pressure, State, Usage, ancestors};
use serde::Serialize;

use crate::snapshot::{Process, Snapshot};

/// Process with a thread that has waited since the last snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Wait {
    pub(crate) pid: String,
    pub(crate) comm: String,
    pub(crate) priority: u64,
    /// Part of the time since the last snapshot, percent.
    pub(crate) percent: u64,
    /// Kind of wait: one word.
    pub(crate) kind: &'static str,
    pub(crate) causes: Vec<Cause>,
}

/// Process that is waited for, or another cause of a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Cause {
    /// `None`: no process.
    pub(crate) pid: Option<String>,
    pub(crate) comm: String,
    /// `None`: it has ended.
    pub(crate) priority: Option<u64>,
    pub(crate) text: String,
    /// Part of the time since the last snapshot, percent.
    pub(crate) percent: u64,
}

/// Returns the processes that have waited between two snapshots: those that waited longest first, frozen ones
/// last.
pub(crate) fn waits(last: &Snapshot, next: &Snapshot) -> Vec<Wait> {
    let elapsed = next.time.saturating_sub(last.time).as_micros();
    let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX).max(1);
    let before: BTreeMap<_, _> = last
        .processes
        .iter()
        .map(|process| (process.of.pid, process))
        .collect();
    let mut waits = Vec::new();
    for process in &next.processes {
        let Some(last) = before.get(&process.of.pid) else {
            continue;
        };
        let waited = |of: fn(&Usage) -> &Option<Pressure>| {
            let total = |process: &Process| of(&process.of.usage).as_ref().map_or(0, |it| it.some.total_usec);
            total(process).saturating_sub(total(last))
        };
        let waited = [
            waited(|usage| &usage.compute.pressure),
            waited(|usage| &usage.memory.pressure),
        ];
        for (waited, is_compute) in waited.into_iter().zip([true, false]) {
            if waited == 0 {
                continue;
            }
            let (kind, text) = match is_compute {
                true => compute_reason(process, next),
                false => ("memory", memory_reason(process)),
            };
            let percent = |usec: u64| (usec.saturating_mul(100) / elapsed).clamp(1, 100);
            waits.push(Wait {
                pid: process.of.pid.to_string(),
                comm: process.of.comm.clone(),
                priority: process.of.usage.compute.priority,
                percent: percent(waited),
                kind,
                causes: match awaited((*last, process), kind, next, percent) {
                    none if none.is_empty() => vec![Cause::other(text, percent(waited))],
                    processes => processes,
                },
            });
        }
    }
    // Frozen processes wait all of the time, and must not hide others.
    waits.sort_by_key(|wait| (wait.kind == "frozen", std::cmp::Reverse(wait.percent)));
    waits
}

impl Cause {
    fn other(text: String, percent: u64) -> Self {
        Self {
            pid: None,
            comm: String::new(),
            priority: None,
            text,
            percent,
        }
    }
}

/// Returns the processes that one has waited for since the last snapshot, for their turns or their memory.
fn awaited(
    (last, process): (&Process, &Process),
    kind: &str,
    next: &Snapshot,
    percent: impl Fn(u64) -> u64,
) -> Vec<Cause> {
    // A process with a quota waits for turns too.
    let is_for_turn = match kind {
        "quota" | "turn" => true,
        "memory" => false,
        _ => return Vec::new(),
    };
    let waits = process.of.waits.iter();
    let waits = waits.filter(|wait| (wait.r#for == "turn") == is_for_turn);
    let cause = |wait: &node::Wait| {
        let is_same = |it: &&node::Wait| (it.pid, it.gpu, &it.r#for) == (wait.pid, wait.gpu, &wait.r#for);
        let before = last.of.waits.iter().find(is_same).map_or(0, |it| it.usec);
        let usec = wait.usec.saturating_sub(before);
        if usec == 0 && !wait.now {
            return None;
        }
        let found = next.processes.iter().find(|it| it.of.pid == wait.pid);
        Some(Cause {
            pid: Some(wait.pid.to_string()),
            comm: found.map_or(&wait.comm, |it| &it.of.comm).clone(),
            priority: wait.priority,
            text: format!("GPU {} {}", wait.gpu, wait.r#for),
            percent: percent(usec),
        })
    };
    waits.filter_map(cause).collect()
}

/// Returns why submissions of a process wait: a word and a text.
fn compute_reason(process: &Process, next: &Snapshot) -> (&'static str, String) {
    let path = process.of.group.as_deref().unwrap_or_default();
    let groups = ancestors(path).filter_map(|path| next.groups.iter().find(|it| it.of.path == path));
    let groups: Vec<_> = groups.collect();
    let frozen = groups.iter().find(|group| group.of.usage.compute.freeze);
    let mut usages = groups.iter().map(|group| &group.of.usage);
    let has_quota = |usage: &Usage| usage.compute.max.quota_usec.is_some();
    let has_quota = has_quota(&process.of.usage) || usages.any(has_quota);
    match (process.of.usage.compute.freeze, frozen, process.activity.state) {
        (true, ..) => ("frozen", "frozen".to_owned()),
        (_, Some(group), _) => ("frozen", format!("group /{} is frozen", group.of.path)),
        (_, _, state) if state.is_frozen() => ("frozen", "a group is frozen".to_owned()),
        (_, _, state) if state.is_suspended() => ("frozen", "suspended".to_owned()),
        (_, _, State::Throttled) if has_quota => ("quota", "its quota".to_owned()),
        (_, _, State::Throttled) => ("turn", "a turn".to_owned()),
        _ => ("own", "its own queued work".to_owned()),
    }
}

/// Returns why allocations of a process wait.
fn memory_reason(process: &Process) -> String {
    let text = |file| process.of.usage.files.text(file).unwrap_or("unknown");
    format!(
        "memory: uses {} bytes, limit {}",
        text("memory.current"),
        text("memory.limit")
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gcgroup_client::node::Files;

    use super::*;

    fn usage(pairs: &[(&str, &str)]) -> Usage {
        let mut files = Files::default();
        for (name, text) in pairs {
            files.insert(name, text);
        }
        Usage::of(files)
    }

    fn snapshot(seconds: u64, processes: &[(u32, &[(&str, &str)])]) -> Snapshot {
        let process = |(pid, pairs): &(u32, &[(&str, &str)])| Process {
            of: node::Process {
                pid: *pid,
                group: Some("team/x".to_owned()),
                usage: usage(pairs),
                ..node::Process::default()
            },
            ..Process::default()
        };
        Snapshot {
            time: Duration::from_secs(seconds),
            processes: processes.iter().map(process).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn wait_names_the_frozen_group() {
        let pressure = |total| format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        let (before, after) = (pressure(0), pressure(500_000));
        let last = snapshot(0, &[(1, &[("compute.pressure", &before)]), (2, &[])]);
        let mut next = snapshot(1, &[(1, &[("compute.pressure", &after)]), (2, &[])]);
        for path in ["tea", "team"] {
            next.groups.push(crate::snapshot::Group {
                of: node::Group {
                    path: path.to_owned(),
                    usage: usage(&[("compute.freeze", "1\n")]),
                    ..node::Group::default()
                },
                ..crate::snapshot::Group::default()
            });
        }
        let waits = waits(&last, &next);
        assert_eq!(waits.len(), 1);
        assert_eq!(
            (waits[0].percent, waits[0].kind, waits[0].causes[0].text.as_str()),
            (50, "frozen", "group /team is frozen")
        );
    }

    #[test]
    fn wait_names_the_processes_waited_for_since() {
        let pressure = |total| format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
        let (before, after) = (pressure(0), pressure(500_000));
        let wait = |pid, kind: &str, usec| node::Wait {
            pid,
            comm: "ended".to_owned(),
            gpu: 1,
            r#for: kind.to_owned(),
            usec,
            now: false,
            priority: None,
        };
        let mut last = snapshot(0, &[(1, &[("compute.pressure", &before)])]);
        let mut next = snapshot(1, &[(1, &[("compute.pressure", &after)]), (2, &[])]);
        next.processes[0].activity.state = State::Throttled;
        next.processes[1].of.comm = "train".to_owned();
        last.processes[0].of.waits = vec![wait(2, "turn", 3), wait(3, "turn", 4), wait(4, "turn", 0)];
        next.processes[0].of.waits = vec![
            wait(2, "turn", 9),
            wait(3, "turn", 4),
            wait(4, "turn", 1),
            wait(5, "memory", 1),
        ];
        let found = &waits(&last, &next)[0];
        let causes = found
            .causes
            .iter()
            .map(|it| (it.pid.as_deref(), it.comm.as_str(), it.text.as_str()));
        let text = "GPU 1 turn";
        assert_eq!(
            causes.collect::<Vec<_>>(),
            [(Some("2"), "train", text), (Some("4"), "ended", text)]
        );
        assert_eq!(found.kind, "turn");
    }
}
