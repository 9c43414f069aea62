//! Many processes of all priorities on one GPU: CPU time of the daemon, and whether any process starves.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{Job, Progress, now, pass};
use crate::report::{Budget, Report};

const PROCESSES: u32 = 64;

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for policy in ["weighted", "strict"] {
        let (mut cores, mut starved, mut least) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..setting.repetitions {
            let daemon = Daemon::start(&setting.environment)?;
            daemon.policy(policy)?;
            let jobs = (0..PROCESSES)
                .map(|number| daemon.load(Rule::Ranked(number % 16), &arguments()))
                .collect::<Result<Vec<Job>>>()?;
            pass(2.0);
            let seconds = setting.count(10);
            jobs.iter().for_each(|job| drop(job.progress()));
            let (began, before) = (now(), cpu_seconds(daemon.pid())?);
            pass(f64::from(seconds));
            let (after, ended) = (cpu_seconds(daemon.pid())?, now());
            cores.push(100.0 * (after - before) / (ended - began));
            // Time for the last lines to be read.
            pass(0.2);
            let told: Vec<Vec<Progress>> = jobs.iter().map(Job::progress).collect();
            starved.push(
                told.iter()
                    .map(|told| empty_seconds(told, began, seconds))
                    .sum::<u32>()
                    .into(),
            );
            least.push(told.iter().map(|told| told.len()).min().unwrap_or(0));
        }
        let name = format!("daemon with {PROCESSES} busy processes, {policy}");
        report.add(name, "%", Budget::Most(10.0), cores, json!("of one core"));
        let name = format!("seconds without progress of {PROCESSES}, {policy}");
        report.add(
            name,
            "",
            Budget::Most(0.0),
            starved,
            json!({ "fewest kernels of a process": least }),
        );
    }
    Ok(())
}

/// Returns the arguments of a batch job of short kernels that reports each. The kernels last by the clock:
/// among so many processes, calibrating work would take long.
fn arguments() -> [&'static str; 9] {
    [
        "throughput",
        "--kernel-usec",
        "500",
        "--depth",
        "2",
        "--duration",
        "3600",
        "--interval",
        "0",
    ]
}

/// Returns in how many of `seconds` seconds a job completed nothing.
fn empty_seconds(told: &[Progress], began: f64, seconds: u32) -> u32 {
    let is_empty = |second: &u32| {
        let from = began + f64::from(*second);
        !told
            .iter()
            .any(|progress| (from..from + 1.0).contains(&progress.at))
    };
    (0..seconds).filter(is_empty).map(|_| 1).sum()
}

/// Returns a process's CPU time, seconds.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // The first number is the CPU time, nanoseconds.
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let ran = text.split(' ').next().context("no time")?;
        sum += ran.parse::<f64>()? / 1e9;
    }
    Ok(sum)
}
