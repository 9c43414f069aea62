//! Two groups of which one has more processes: their shares, and the latency of bursts beside the larger one.
//! What groups cost where no process waits for another one.

use std::iter::repeat_n;

use anyhow::Result;
use serde_json::{Value, json};

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{Job, now, pass};
use crate::latency::{DECODE, batch};
use crate::report::{Budget, Report};
use crate::shares::waited;

/// Number of processes of the larger group.
const MANY: usize = 16;

/// Arguments for bursts of 20 ms that processes make so often that all together want more than the GPU.
const BURSTS: &[&str] = &[
    "latency",
    "--kernel",
    "work",
    "--burst",
    "100-200",
    "--burst-ms",
    "20",
    "--gap-ms",
    "30",
    "--count",
    "100000",
];

/// Groups that need no turns: a name, and the numbers of busy and of idle processes of each.
const OPEN: [(&str, [[usize; 2]; 2]); 3] = [
    ("two groups of one busy process", [[1, 0], [1, 0]]),
    ("two groups of two busy processes", [[2, 0], [2, 0]]),
    (
        "a busy group of one beside an idle group of two",
        [[1, 0], [0, 2]],
    ),
];

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    shares(setting, report)?;
    open(setting, report)
}

fn shares(setting: &Setting, report: &mut Report) -> Result<()> {
    let batch = batch("1000");
    for (what, arguments) in [
        ("batch jobs", batch.as_slice()),
        ("jobs with bursts of 20 ms", BURSTS),
    ] {
        for number in [1, MANY]
            .into_iter()
            .filter(|number| *number > 1 || arguments == batch)
        {
            let shares = (0..setting.repetitions).map(|_| {
                let daemon = Daemon::start(&setting.environment)?;
                let one = start(&daemon, "one", [batch.as_slice()])?;
                let many = start(&daemon, "many", repeat_n(arguments, number))?;
                pass(1.0);
                let used = || Ok::<_, anyhow::Error>([used(&daemon, &one)?, used(&daemon, &many)?]);
                let before = used()?;
                pass((4.0 * setting.scale).max(0.5));
                let after = used()?;
                let [one, many] = [0, 1].map(|at: usize| after[at] - before[at]);
                Ok(one / (one + many))
            });
            let shares = shares.collect::<Result<_>>()?;
            let name = format!("share of a group of one beside a group of {number} {what}");
            report.add(name, "", Budget::About(0.5, 0.03), shares, Value::Null);
        }
    }
    let mut ratios = Vec::new();
    for _ in 0..setting.repetitions {
        let p99 = [bursts(setting, 1)?, bursts(setting, MANY)?];
        ratios.push(p99[1] / p99[0]);
    }
    let name = format!("bursts of 20 ms beside a group of {MANY}: p99 over that beside one");
    report.add(name, "", Budget::Most(1.1), ratios, json!(null));
    Ok(())
}

/// Returns the microseconds of GPU time that jobs have used.
fn used(daemon: &Daemon<'_>, jobs: &[Job]) -> Result<f64> {
    let used = |job: &Job| match daemon.worked(job.pid())? {
        Some(usec) => Ok(usec),
        None => Ok(daemon.number(job.pid(), "compute.stat", "usage_usec")? as f64),
    };
    jobs.iter().map(used).sum()
}

/// Compares groups that need no turns with processes that are not governed.
fn open(setting: &Setting, report: &mut Report) -> Result<()> {
    for (what, groups) in OPEN {
        let (mut ratios, mut throttled) = (Vec::new(), Vec::new());
        for _ in 0..setting.repetitions {
            let [bare, governed] = [false, true].map(|is_governed| throughput(setting, groups, is_governed));
            let ((bare, _), (governed, waited)) = (bare?, governed?);
            ratios.push(governed / bare);
            throttled.push(waited);
        }
        let name = format!("throughput of {what}, over ungoverned ones");
        report.add(name, "", Budget::Least(0.995), ratios, Value::Null);
        let name = format!("submissions that waited in {what}");
        report.add(name, "", Budget::Most(0.0), throttled, Value::Null);
    }
    Ok(())
}

/// Returns which part of the time the GPU runs kernels of 100 us of two groups, or of such processes without
/// groups, and how many submissions waited at a gate.
fn throughput(setting: &Setting, groups: [[usize; 2]; 2], is_governed: bool) -> Result<(f64, f64)> {
    let daemon = Daemon::start(&setting.environment)?;
    let (mut busy, mut idle) = (Vec::new(), Vec::new());
    let batch = batch("100");
    for (group, [nr_busy, nr_idle]) in ["one", "other"].into_iter().zip(groups) {
        let jobs = repeat_n(batch.as_slice(), nr_busy).chain(repeat_n(&["obey"][..], nr_idle));
        let mut jobs = match is_governed {
            true => start(&daemon, group, jobs)?,
            false => jobs
                .map(|arguments| daemon.load(Rule::Ungoverned, arguments))
                .collect::<Result<_>>()?,
        };
        idle.extend(jobs.split_off(nr_busy));
        busy.extend(jobs);
    }
    pass(1.0);
    let count = || match is_governed {
        true => waited(&daemon, &busy),
        false => Ok(0.0),
    };
    let (began, before) = (now(), count()?);
    pass((4.0 * setting.scale).max(0.5));
    let (ended, after) = (now(), count()?);
    let shares = busy.iter().map(|job| job.share(began, ended));
    Ok((shares.sum::<Result<f64>>()?, after - before))
}

/// Returns the 99th percentile of bursts beside a group of that many batch jobs, microseconds.
fn bursts(setting: &Setting, number: usize) -> Result<f64> {
    let daemon = Daemon::start(&setting.environment)?;
    let _many = start(&daemon, "many", repeat_n(&batch("1000")[..], number))?;
    let count = setting.count(100).to_string();
    let arguments = [&["latency", "--kernel", "work", "--count", &count], DECODE].concat();
    let told = start(&daemon, "one", [arguments.as_slice()])?
        .remove(0)
        .report()?;
    Ok(told["p99_usec"].as_f64().unwrap_or(f64::NAN))
}

/// Starts jobs with these arguments and moves them into a new group.
fn start<'a>(
    daemon: &Daemon<'_>,
    group: &str,
    jobs: impl IntoIterator<Item = &'a [&'a str]>,
) -> Result<Vec<Job>> {
    daemon.make_group(group)?;
    let start = |arguments| {
        let job = daemon.load(Rule::Governed, arguments)?;
        daemon.write(group, "gcgroup.procs", job.pid())?;
        Ok(job)
    };
    jobs.into_iter().map(start).collect()
}
