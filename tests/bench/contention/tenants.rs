//! Two groups of which one has more processes: their shares, and the latency of bursts beside the larger one.

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

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for number in [1, MANY] {
        let (mut shares, mut throttled) = (Vec::new(), Vec::new());
        for _ in 0..setting.repetitions {
            let daemon = Daemon::start(&setting.environment)?;
            let one = start(&daemon, "one", 1, &batch("1000"))?;
            let many = start(&daemon, "many", number, &batch("1000"))?;
            pass(1.0);
            let (began, before) = (now(), waited(&daemon, &one)?);
            pass((4.0 * setting.scale).max(0.5));
            throttled.push(waited(&daemon, &one)? - before);
            let sum = |jobs: &[Job]| -> Result<f64> {
                let shares = jobs.iter().map(|job| job.share(began, now()));
                Ok(shares.collect::<Result<Vec<f64>>>()?.iter().sum())
            };
            let (one, many) = (sum(&one)?, sum(&many)?);
            shares.push(one / (one + many));
        }
        let name = format!("share of a group of one beside a group of {number}");
        report.add(name, "", Budget::About(0.5, 0.03), shares, Value::Null);
        if number == 1 {
            let name = "submissions that waited in equal groups";
            report.add(name, "", Budget::Most(0.0), throttled, Value::Null);
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

/// Returns the 99th percentile of bursts beside a group of that many batch jobs, microseconds.
fn bursts(setting: &Setting, number: usize) -> Result<f64> {
    let daemon = Daemon::start(&setting.environment)?;
    let _many = start(&daemon, "many", number, &batch("1000"))?;
    let count = setting.count(100).to_string();
    let arguments = [&["latency", "--kernel", "work", "--count", &count], DECODE].concat();
    let told = start(&daemon, "one", 1, &arguments)?.remove(0).report()?;
    Ok(told["p99_usec"].as_f64().unwrap_or(f64::NAN))
}

/// Starts jobs and moves them into a new group.
fn start(daemon: &Daemon<'_>, group: &str, number: usize, arguments: &[&str]) -> Result<Vec<Job>> {
    daemon.make_group(group)?;
    let start = |_| {
        let job = daemon.load(Rule::Governed, arguments)?;
        daemon.write(group, "gcgroup.procs", job.pid())?;
        Ok(job)
    };
    (0..number).map(start).collect()
}
