//! Rates and history of processes and groups, from one snapshot to the next.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::state::{Asked, Changes, State, state};
use super::{Device, Moving, Snapshot, Usage, Whereabouts, ancestors};

/// Points of a history: as many as fit in the widest sparkline.
pub const POINTS: usize = 60;

/// Time for which a refused allocation shows in the state.
const RECENT: Duration = Duration::from_secs(10);

/// Time for which a move of memory shows in the state.
const MOVING: Duration = Duration::from_secs(2);

/// Least part of the time for which a throttled process waits without work on a GPU, percent.
const STALLED: f64 = 5.0;

/// Names a process or a group from one snapshot to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    Process(u32),
    Group(String),
}

impl Target {
    /// Returns the path of the directory of control files.
    pub fn path(&self) -> String {
        match self {
            Self::Process(pid) => pid.to_string(),
            Self::Group(path) => path.clone(),
        }
    }
}

/// Rates and state of a process or a group.
#[derive(Debug, Default, Clone)]
pub struct Activity {
    pub state: State,
    /// GPU time per time, percent; of several GPUs the sum. `None` before the second snapshot.
    pub gpu: Option<f64>,
    /// Part of the time for which a GPU was kept free for it while others waited, percent.
    pub held: f64,
    /// Memory that has moved between GPUs and the host since the snapshot before.
    pub moving: Option<Moving>,
    /// Past values of `gpu`, rounded, the latest last.
    pub history: VecDeque<u64>,
    refused: Option<Instant>,
    moved: Option<Instant>,
    last: Counts,
}

/// State of a process or a group, and its rates since the snapshot before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub state: String,
    /// GPU time per time, percent; of several GPUs the sum.
    pub gpu_percent: f64,
    /// Part of the time for which a GPU was kept free for it while others waited, percent.
    pub held_percent: f64,
    /// Memory that has moved between GPUs and the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
}

/// Counts that only grow.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    usage_usec: u64,
    submissions: u64,
    refusals: u64,
    moves: u64,
    stalled_usec: u64,
    held_usec: u64,
    memory: Whereabouts,
}

impl Counts {
    fn of(usage: &Usage) -> Self {
        let pressure = usage.compute.pressure.as_ref();
        Self {
            usage_usec: usage.stat("usage_usec"),
            submissions: usage.submissions(),
            refusals: usage.refusals() + usage.event("max"),
            moves: usage.event("swap_in") + usage.event("swap_out"),
            stalled_usec: pressure.map_or(0, |pressure| pressure.full.total_usec),
            held_usec: usage.stat("held_usec"),
            memory: Whereabouts::from(&usage.memory),
        }
    }
}

/// Activities of all processes and groups, and past utilisations of the GPUs.
#[derive(Debug, Default)]
pub struct Activities {
    of: HashMap<Target, Activity>,
    devices: HashMap<usize, VecDeque<u64>>,
    /// Time of the last snapshot.
    last: Option<Instant>,
}

impl Activities {
    /// Compares a snapshot with the one before.
    pub fn update(&mut self, snapshot: &Snapshot) {
        let now = snapshot.at;
        let elapsed = self.last.map(|last| now.duration_since(last));
        let mut old = std::mem::take(&mut self.of);
        // Groups above processes that wait for a turn or a quota. The times of a group include those of its
        // frozen processes.
        let mut throttled = HashSet::new();
        for process in &snapshot.processes {
            let path = process.group.as_deref().unwrap_or_default();
            let above = Asked::above(snapshot, path);
            let asked = Asked {
                freeze: above.freeze || process.usage.compute.freeze,
                ..above
            };
            let target = Target::Process(process.pid);
            let (next, changes) = activity(old.remove(&target), &process.usage, (elapsed, now));
            let state = state(changes, &process.usage, &process.devices, asked);
            if state == State::Throttled {
                throttled.extend(ancestors(path));
            }
            self.of.insert(target, Activity { state, ..next });
        }
        for group in &snapshot.groups {
            let target = Target::Group(group.path.clone());
            let (next, mut changes) = activity(old.remove(&target), &group.usage, (elapsed, now));
            changes.is_throttled &= throttled.contains(group.path.as_str());
            let asked = Asked::above(snapshot, &group.path);
            let state = state(changes, &group.usage, &group.devices, asked);
            self.of.insert(target, Activity { state, ..next });
        }
        for Device {
            index, utilization, ..
        } in &snapshot.devices
        {
            push(self.devices.entry(*index).or_default(), utilization.unwrap_or(0));
        }
        self.last = Some(now);
    }

    pub fn of(&self, target: &Target) -> Activity {
        self.of.get(target).cloned().unwrap_or_default()
    }

    /// Sets the rates of all processes and groups that were also in the snapshot before.
    pub fn rate(&self, snapshot: &mut Snapshot) {
        let rates = |target: Target| {
            let activity = self.of.get(&target)?;
            Some(Rates {
                state: activity.state.name().to_owned(),
                gpu_percent: activity.gpu?,
                held_percent: activity.held,
                moving: activity.moving,
            })
        };
        for group in &mut snapshot.groups {
            group.rates = rates(Target::Group(group.path.clone()));
        }
        for process in &mut snapshot.processes {
            process.rates = rates(Target::Process(process.pid));
        }
    }

    /// Returns past utilisations of a GPU, percent, the latest last.
    pub fn device(&self, index: usize) -> impl Iterator<Item = u64> {
        self.devices.get(&index).into_iter().flatten().copied()
    }
}

/// Returns the new activity without its state, and what has changed.
fn activity(
    before: Option<Activity>,
    usage: &Usage,
    (elapsed, now): (Option<Duration>, Instant),
) -> (Activity, Changes) {
    let counts = Counts::of(usage);
    let Some((before, elapsed)) = before.zip(elapsed) else {
        let activity = Activity {
            last: counts,
            ..Activity::default()
        };
        return (activity, Changes::default());
    };
    let last = before.last;
    let percent = |usec: u64| usec as f64 / elapsed.as_micros().max(1) as f64 * 100.0;
    let gpu = percent(counts.usage_usec.saturating_sub(last.usage_usec));
    let is_throttled = percent(counts.stalled_usec.saturating_sub(last.stalled_usec)) > STALLED;
    let when = |is: bool, earlier: Option<Instant>| if is { Some(now) } else { earlier };
    let mut activity = Activity {
        gpu: Some(gpu),
        held: percent(counts.held_usec.saturating_sub(last.held_usec)),
        moving: Moving::between(last.memory, counts.memory, elapsed),
        refused: when(counts.refusals > last.refusals, before.refused),
        moved: when(counts.moves > last.moves, before.moved),
        last: counts,
        ..before
    };
    let past = |time: Option<Instant>, most: Duration| time.filter(|time| now.duration_since(*time) < most);
    activity.refused = past(activity.refused, RECENT);
    activity.moved = past(activity.moved, MOVING);
    push(&mut activity.history, format!("{gpu:.0}").parse().unwrap_or(0));
    let changes = Changes {
        is_refused: activity.refused.is_some(),
        is_moved: activity.moved.is_some(),
        is_throttled,
        is_working: counts.submissions > last.submissions || counts.usage_usec > last.usage_usec,
    };
    (activity, changes)
}

fn push(history: &mut VecDeque<u64>, value: u64) {
    history.push_back(value);
    if history.len() > POINTS {
        history.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::fixture;

    const TARGET: Target = Target::Process(7);

    /// Updates with a snapshot whose process was changed, `seconds` after the first.
    fn update(
        activities: &mut Activities,
        start: Instant,
        seconds: u64,
        change: impl FnOnce(&mut Usage),
    ) -> State {
        let mut snapshot = fixture::snapshot();
        let found = snapshot.processes.iter_mut().find(|process| process.pid == 7);
        change(&mut found.unwrap().usage);
        snapshot.at = start + Duration::from_secs(seconds);
        activities.update(&snapshot);
        activities.of(&TARGET).state
    }

    #[test]
    fn group_is_throttled_by_what_waits_for_a_turn_and_not_by_frozen_processes() {
        let (mut activities, start) = (Activities::default(), Instant::now());
        let mut at = |seconds: u64, is_process: bool| {
            let mut snapshot = fixture::snapshot();
            snapshot.at = start + Duration::from_secs(seconds);
            let stall = |usage: &mut Usage| {
                let pressure = usage.compute.pressure.get_or_insert_default();
                pressure.full.total_usec = seconds * 900_000;
            };
            stall(&mut snapshot.groups[1].usage);
            if is_process {
                stall(&mut snapshot.processes[0].usage);
            }
            activities.update(&snapshot);
            activities.of(&Target::Group("a/b".to_owned())).state
        };
        assert_eq!(at(0, true), State::Idle);
        assert_eq!(at(1, true), State::Throttled);
        assert_eq!(at(2, false), State::Idle);
    }

    #[test]
    fn state_follows_counts_and_time() {
        let (mut activities, start) = (Activities::default(), Instant::now());
        let mut at = |seconds, change: &dyn Fn(&mut Usage)| update(&mut activities, start, seconds, change);
        let count = |key: &str, number: u64| {
            let key = key.to_owned();
            move |usage: &mut Usage| {
                usage.compute.stat.insert(&key, number);
            }
        };
        let event = |key: &str, number: u64| {
            let key = key.to_owned();
            move |usage: &mut Usage| {
                usage.memory.events.insert(&key, number);
            }
        };
        assert_eq!(
            at(0, &count("nr_launches", 5)),
            State::Idle,
            "the first snapshot has no rates"
        );
        assert_eq!(at(1, &count("nr_launches", 5)), State::Idle);
        assert_eq!(at(2, &count("nr_launches", 6)), State::Running);
        let waited = |some: u64, full: u64| {
            move |usage: &mut Usage| {
                let pressure = usage.compute.pressure.get_or_insert_default();
                (pressure.some.total_usec, pressure.full.total_usec) = (some, full);
                usage.compute.stat.insert("nr_launches", some);
            }
        };
        assert_eq!(
            at(3, &waited(900_000, 40_000)),
            State::Running,
            "it waits for its own work"
        );
        assert_eq!(at(4, &waited(1_000_000, 100_000)), State::Throttled);
        assert_eq!(at(4, &|_| ()), State::Idle);
        assert_eq!(at(4, &event("oom", 1)), State::Refused);
        assert_eq!(at(13, &event("oom", 1)), State::Refused);
        assert_eq!(at(15, &event("oom", 1)), State::Idle);
        assert_eq!(at(16, &event("swap_out", 1)), State::Swapping);
        assert_eq!(at(19, &event("swap_out", 1)), State::Idle);
        assert_eq!(at(20, &|usage| usage.compute.freeze = true), State::Freezing);
        assert_eq!(at(21, &|usage| usage.events.frozen = true), State::Frozen);
        assert_eq!(
            at(22, &|usage| {
                usage.suspend = Some(true);
                usage.events.frozen = true;
            }),
            State::Suspending
        );
        assert_eq!(
            at(22, &|usage| {
                usage.events.away = true;
                usage.events.frozen = true;
            }),
            State::Away
        );
        assert_eq!(at(23, &|usage| usage.events.suspended = true), State::Suspended);
        assert_eq!(
            at(24, &|usage| usage.events.hook = Some("lost".into())),
            State::Lost
        );
    }

    #[test]
    fn gpu_share_is_measured_and_kept() {
        let (mut activities, start) = (Activities::default(), Instant::now());
        for (seconds, usec) in [(0, 0), (1, 250_000), (3, 1_250_000)] {
            update(&mut activities, start, seconds, |usage| {
                usage.compute.stat.insert("usage_usec", usec);
                usage.compute.stat.insert("held_usec", usec / 2);
            });
        }
        let activity = activities.of(&TARGET);
        assert_eq!(activity.held.round(), 25.0);
        let mut snapshot = fixture::snapshot();
        activities.rate(&mut snapshot);
        let rates = snapshot.processes[0].rates.clone().unwrap();
        assert_eq!((rates.gpu_percent, rates.held_percent.round()), (50.0, 25.0));
        assert_eq!(rates.state, "running");
        assert!(snapshot.groups[0].rates.is_some());
        assert_eq!((activity.gpu, activity.history), (Some(50.0), [25, 50].into()));
        assert_eq!(activities.device(0).collect::<Vec<_>>(), [45, 45, 45]);
        for seconds in 4..200 {
            update(&mut activities, start, seconds, |_| ());
        }
        assert_eq!(activities.of(&TARGET).history.len(), POINTS);
    }
}
