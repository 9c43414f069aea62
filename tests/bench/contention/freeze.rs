//! Time until a freeze is drained, and until a thaw lets a launch through.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{Job, now, pass};
use crate::latency::batch;
use crate::report::{Budget, Report, median, quantile};

/// Budget, milliseconds: in-flight window, longest kernel, and time for the path.
const DRAIN: f64 = 0.5 + 1.0 + 2.0;

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let (mut drains, mut queued, mut thaws, mut middles) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut samples = Vec::new();
    for _ in 0..setting.repetitions {
        let daemon = Daemon::start(&setting.environment)?;
        let count = setting.count(60);
        // A process of higher priority is present, so that the queue is limited to the in-flight window.
        let mut other = daemon.load(Rule::Ranked(2), &["obey"])?;
        other.say("launch 1")?;
        let job = daemon.load(Rule::Ranked(10), &batch("1000"))?;
        // What was queued before is not measured.
        pass(0.5);
        let times = drained(&daemon, &job, count)?;
        drains.push(quantile(&times, 0.99));
        samples.push(times);
        drop(other);
        // Without it, the job's whole queue must drain.
        queued.push(quantile(&drained(&daemon, &job, count)?, 0.99));
        drop(job);
        let times = thawed(&daemon, count)?;
        middles.push(median(&times));
        thaws.push(quantile(&times, 0.99));
    }
    report.add(
        "freeze to drained, p99",
        "ms",
        Budget::Most(DRAIN),
        drains,
        json!({ "all": samples }),
    );
    report.add(
        "freeze to drained of 8 kernels of 1 ms, p99",
        "ms",
        Budget::None,
        queued,
        json!(null),
    );
    report.add(
        "thaw to first launch, p99",
        "usec",
        Budget::Most(200.0),
        thaws,
        json!({ "medians": middles }),
    );
    Ok(())
}

/// Returns the milliseconds from the write until all work has drained, for `count` freezes.
fn drained(daemon: &Daemon<'_>, job: &Job, count: u32) -> Result<Vec<f64>> {
    let mut events = Events::open(daemon, job)?;
    let mut times = Vec::new();
    for round in 0..count {
        // At a different moment of a kernel each time.
        pass(0.02 + f64::from(round % 7) * 0.0003);
        let began = now();
        daemon.write(job.pid(), "compute.freeze", 1)?;
        events.wait_for("frozen 1")?;
        times.push((now() - began) * 1e3);
        daemon.write(job.pid(), "compute.freeze", 0)?;
        events.wait_for("frozen 0")?;
    }
    Ok(times)
}

/// Returns the microseconds from the write until the return of a waiting launch.
fn thawed(daemon: &Daemon<'_>, count: u32) -> Result<Vec<f64>> {
    let mut job = daemon.load(Rule::Governed, &["obey"])?;
    let pid = job.pid();
    let mut events = Events::open(daemon, &job)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let parked = daemon.number(pid, "compute.stat", "nr_frozen")?;
        daemon.write(pid, "compute.freeze", 1)?;
        events.wait_for("frozen 1")?;
        job.say("stamp")?;
        while daemon.number(pid, "compute.stat", "nr_frozen")? == parked {
            pass(0.001);
        }
        let began = now();
        daemon.write(pid, "compute.freeze", 0)?;
        let stamp = job.expect("stamped ")?;
        let launched: f64 = stamp.trim_start_matches("stamped ").parse()?;
        times.push(launched / 1e3 - began * 1e6);
    }
    Ok(times)
}

/// `gcgroup.events` of a process: polled where it can be opened, otherwise read by a command.
struct Events<'d> {
    daemon: &'d Daemon<'d>,
    pid: u32,
    file: Option<File>,
}

impl<'d> Events<'d> {
    fn open(daemon: &'d Daemon<'d>, job: &Job) -> Result<Self> {
        let pid = job.pid();
        let path = daemon.mount().join(pid.to_string()).join("gcgroup.events");
        let file = daemon.is_mounted().then(|| File::open(path)).transpose()?;
        Ok(Self { daemon, pid, file })
    }

    fn wait_for(&mut self, line: &str) -> Result<()> {
        let begin = now();
        loop {
            let mut text = String::new();
            if let Some(file) = &mut self.file {
                file.rewind()?;
                file.read_to_string(&mut text)?;
            } else {
                text = self.daemon.read(self.pid, "gcgroup.events")?;
            }
            if text.lines().any(|shown| shown == line) {
                return Ok(());
            }
            if now() - begin > 20.0 {
                bail!("the events file did not show {line:?} within 20 s");
            }
            if let Some(file) = &self.file {
                let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
                poll(&mut fds, PollTimeout::from(1000_u16)).context("poll")?;
            }
        }
    }
}
