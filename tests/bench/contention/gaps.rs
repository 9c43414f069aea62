//! A batch job beside a job of higher priority that launches, waits and pauses: what the batch job gets of
//! the pauses, and how much longer the other job's steps take.

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::now;
use crate::latency::batch;
use crate::report::{Budget, Report};

/// Microseconds of a step's kernel, of the pauses, and of the batch job's kernels.
const STEP: u64 = 1000;
const PAUSES: [u64; 4] = [300, 1000, 3000, 10_000];
const KERNELS: [u64; 4] = [50, 250, 1000, 5000];

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for pause in PAUSES {
        for kernel in KERNELS {
            for policy in ["weighted", "strict"] {
                cell(setting, report, (pause, kernel), policy)?;
            }
        }
    }
    Ok(())
}

fn cell(setting: &Setting, report: &mut Report, (pause, kernel): (u64, u64), policy: &str) -> Result<()> {
    let (mut kept, mut ratios, mut details) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..setting.repetitions {
        let daemon = Daemon::start(&setting.environment)?;
        daemon.policy(policy)?;
        // The first few pauses are not predicted: they are to be less than one in a hundred.
        let least = 600.0 * (STEP + pause) as f64 / 1e6;
        let seconds = (4.0 * setting.scale).max(least).to_string();
        let pause = pause.to_string();
        let step = STEP.to_string();
        let paced = || {
            let fixed = ["paced", "--kernel", "work", "--kernel-usec", &step];
            let rest = ["--pause-usec", &pause, "--duration", &seconds];
            daemon.load(Rule::Ranked(2), &[&fixed[..], &rest].concat())
        };
        let alone = paced()?.report()?;
        let usec = kernel.to_string();
        let other = daemon.load(Rule::Ranked(10), &batch(&usec))?;
        let job = paced()?;
        let (began, before) = (now(), daemon.worked(other.pid())?);
        let beside = job.report()?;
        let (ended, after) = (now(), daemon.worked(other.pid())?);
        let share = match before.zip(after) {
            Some((before, after)) => (after - before) / 1e6 / (ended - began),
            None => other.share(began, ended)?,
        };
        let number = |key: &str| beside[key].as_f64().context("no such number");
        let idle = 1.0 - number("busy_usec")? / 1e6 / number("seconds")?;
        kept.push(share / idle);
        ratios.push(number("step_p99_usec")? / alone["step_p99_usec"].as_f64().context("no step")?);
        details.push(json!([alone, beside]));
    }
    let is_given = pause >= 1000 && kernel * 4 <= pause;
    let budget = |budget| if is_given { budget } else { Budget::None };
    let name = format!("pauses of {pause} us, kernels of {kernel} us, {policy}");
    let least = budget(Budget::Least(0.85));
    report.add(format!("{name}: idle time kept"), "", least, kept, json!(null));
    let most = budget(Budget::Most(1.1));
    report.add(
        format!("{name}: p99 step over alone"),
        "",
        most,
        ratios,
        json!(details),
    );
    Ok(())
}
