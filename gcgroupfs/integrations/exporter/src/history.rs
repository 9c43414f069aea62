//! Past GPU time and memory of GPUs, groups and processes, for the curves of the page.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use gcgroup_client::node::Target;
use serde::Serialize;

use crate::snapshot::Snapshot;

/// Interval of the points.
pub(crate) const STEP: Duration = Duration::from_secs(5);

/// Number of points of a curve: half an hour.
const MAX_POINTS: usize = 360;

/// Time in seconds since 1970, percent of the GPU time since the point before, and bytes; `None`: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Point(u64, Option<u64>, Option<u64>);

/// Curve of a GPU, a group or a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curve {
    points: VecDeque<Point>,
    /// GPU time up to the last point, microseconds.
    usage_usec: u64,
}

/// Curves of what the last snapshot shows.
#[derive(Debug, Default)]
pub(crate) struct History {
    gpus: HashMap<String, Curve>,
    rows: HashMap<Target, Curve>,
    /// Time of the last points, since 1970.
    last: Option<Duration>,
}

impl History {
    /// Adds a point to each curve, if the last ones are old enough.
    pub(crate) fn add(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time;
        let elapsed = self.last.map_or(STEP, |last| now.abs_diff(last));
        if elapsed < STEP {
            return;
        }
        self.last = Some(now);
        let mut old = std::mem::take(&mut self.gpus);
        for gpu in &snapshot.gpus {
            let mut curve = old.remove(&gpu.uuid).unwrap_or_default();
            curve.push(Point(now.as_secs(), gpu.utilization, gpu.memory.used));
            self.gpus.insert(gpu.uuid.clone(), curve);
        }
        let mut old = std::mem::take(&mut self.rows);
        for (target, usage) in snapshot.targets() {
            let known = old.remove(&target);
            let is_known = known.is_some();
            let mut curve = known.unwrap_or_default();
            let usage_usec = usage.stat("usage_usec");
            let used = u128::from(usage_usec.saturating_sub(curve.usage_usec));
            let percent = u64::try_from(used * 100 / elapsed.as_micros()).unwrap_or(u64::MAX);
            curve.usage_usec = usage_usec;
            let percent = is_known.then_some(percent);
            curve.push(Point(now.as_secs(), percent, Some(usage.memory.current)));
            self.rows.insert(target, curve);
        }
    }

    pub(crate) fn gpu(&self, uuid: &str) -> Option<&VecDeque<Point>> {
        Some(&self.gpus.get(uuid)?.points)
    }

    pub(crate) fn row(&self, target: &Target) -> Option<&VecDeque<Point>> {
        Some(&self.rows.get(target)?.points)
    }

    /// Returns the last `count` percentages of a row, the latest last.
    pub(crate) fn percents(&self, target: &Target, count: usize) -> Vec<Option<u64>> {
        let points = self.row(target).map_or(0, VecDeque::len);
        let last = self
            .row(target)
            .into_iter()
            .flatten()
            .skip(points.saturating_sub(count));
        last.map(|point| point.1).collect()
    }
}

impl Curve {
    fn push(&mut self, point: Point) {
        self.points.push_back(point);
        if self.points.len() > MAX_POINTS {
            self.points.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use gcgroup_client::node::{self, Device};

    use super::*;
    use crate::snapshot::Process;

    fn snapshot(seconds: u64, usage_usec: u64) -> Snapshot {
        let mut process = Process::default();
        process.of.pid = 7;
        process.of.usage.memory.current = 5;
        let stat = &mut process.of.usage.compute.stat;
        stat.insert("usage_usec", usage_usec);
        Snapshot {
            time: Duration::from_secs(seconds),
            gpus: vec![Device {
                uuid: "GPU-a".to_owned(),
                utilization: Some(9),
                memory: node::DeviceMemory {
                    used: Some(6),
                    ..node::DeviceMemory::default()
                },
                ..Device::default()
            }],
            processes: vec![process],
            ..Snapshot::default()
        }
    }

    #[test]
    fn points_have_the_gpu_time_between_them() {
        let (mut history, target) = (History::default(), Target::Process(7));
        history.add(&snapshot(100, 50_000_000));
        history.add(&snapshot(103, 60_000_000));
        history.add(&snapshot(110, 54_000_000));
        let expected = [Point(100, None, Some(5)), Point(110, Some(40), Some(5))];
        assert_eq!(history.row(&target).unwrap(), &expected, "3 s are too early");
        assert_eq!(history.percents(&target, 1), [Some(40)]);
        assert_eq!(history.gpu("GPU-a").unwrap()[1], Point(110, Some(9), Some(6)));
        for seconds in 1..1000 {
            history.add(&snapshot(110 + 5 * seconds, 0));
        }
        assert_eq!(history.row(&target).unwrap().len(), MAX_POINTS);
        history.add(&Snapshot {
            time: Duration::from_secs(9000),
            ..Snapshot::default()
        });
        assert!(history.row(&target).is_none() && history.gpu("GPU-a").is_none());
    }
}
