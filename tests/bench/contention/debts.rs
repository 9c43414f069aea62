//! Long kernels: whether what exceeds a turn or a quota is repaid.

use anyhow::Result;
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{Job, now, pass};
use crate::latency::batch;
use crate::report::{Budget, Report};

/// Measured time of a row, seconds: several times the repayment of the longest kernel.
const SHARES: f64 = 60.0;
const QUOTA: f64 = 30.0;

/// Kernel lengths, microseconds; `5000x30` are graphs of 30 kernels.
const KERNELS: [&str; 6] = ["100", "1000", "5000", "20000", "100000", "5000x30"];
/// Lengths that exceed a turn.
const LONG: [&str; 4] = ["20000", "100000", "150000", "5000x30"];

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for usec in LONG {
        let measure = || {
            let [high, low] = pair(setting, "strict", [(0, "1000"), (15, usec)])?;
            Ok(high / (high + low))
        };
        let name = format!("strict: share of kernels of 1 ms beside kernels of {usec} us");
        row(setting, report, name, Budget::Least(0.97), measure)?;
    }
    for usec in KERNELS {
        for (step, ratio) in [(1, 2.0), (2, 4.0), (4, 16.0)] {
            let measure = || {
                let [high, low] = pair(setting, "weighted", [(6, usec), (6 + step, usec)])?;
                Ok(high / low)
            };
            let name = format!("weighted: shares at p and p+{step}, kernels of {usec} us");
            row(setting, report, name, Budget::About(ratio, ratio / 10.0), measure)?;
        }
    }
    for usec in LONG {
        for percent in [5, 10, 25, 50] {
            let name = format!("compute.max {percent} %, kernels of {usec} us: share in %");
            let goal = Budget::About(f64::from(percent), 2.0);
            row(setting, report, name, goal, || quota(setting, percent, usec))?;
        }
    }
    Ok(())
}

pub(crate) fn row(
    setting: &Setting,
    report: &mut Report,
    name: String,
    budget: Budget,
    measure: impl Fn() -> Result<f64>,
) -> Result<()> {
    let values: Result<Vec<f64>> = (0..setting.repetitions).map(|_| measure()).collect();
    report.add(name, "", budget, values?, json!(null));
    Ok(())
}

/// Returns the shares of two busy jobs with these priorities and kernels.
pub(crate) fn pair(setting: &Setting, policy: &str, jobs: [(u32, &str); 2]) -> Result<[f64; 2]> {
    let daemon = Daemon::start(&setting.environment)?;
    daemon.policy(policy)?;
    let [first, second] = jobs.map(|(priority, usec)| start(&daemon, Rule::Ranked(priority), usec));
    let (first, second) = (first?, second?);
    pass(1.0);
    let began = now();
    pass(SHARES * setting.scale);
    let ended = now();
    Ok([used(&first, began, ended), used(&second, began, ended)])
}

/// Returns the share of the GPU, in percent, of a job with that quota.
fn quota(setting: &Setting, percent: u32, usec: &str) -> Result<f64> {
    let daemon = Daemon::start(&setting.environment)?;
    let job = start(&daemon, Rule::Governed, usec)?;
    pass(0.3);
    // What is queued before is charged, and repaid.
    let began = now();
    daemon.write(job.pid(), "compute.max", format!("{} 100000", percent * 1000))?;
    pass(QUOTA * setting.scale);
    Ok(100.0 * used(&job, began, now()))
}

/// Starts a busy job with such kernels or graphs.
pub(crate) fn start(daemon: &Daemon<'_>, rule: Rule, work: &str) -> Result<Job> {
    let mut arguments = match work.split_once('x') {
        Some((usec, count)) => [batch(usec), vec!["--graph", count]].concat(),
        None => batch(work),
    };
    if LONG.contains(&work) {
        // A completed submission is reported when its place in the queue is used again: with the default
        // depth, those of a process with a hundredth of the GPU would be reported after minutes.
        arguments.extend(["--depth", "2"]);
    }
    daemon.load(rule, &arguments)
}

/// Returns the job's share of the GPU between two times. A job that is held reports nothing meanwhile.
pub(crate) fn used(job: &Job, began: f64, ended: f64) -> f64 {
    let told = job.progress();
    let until = |when: f64| told.iter().rfind(|progress| progress.at <= when);
    let busy = |when| until(when).map_or(0.0, |progress| progress.busy);
    (busy(ended) - busy(began)) / (ended - began)
}
