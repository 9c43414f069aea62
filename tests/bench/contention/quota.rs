//! `compute.max`: whether jobs get their quota, and no more.

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{Job, now, pass};
use crate::latency::batch;
use crate::report::{Budget, Report};

/// Quota period, seconds, and number of measured periods.
const PERIOD: f64 = 0.1;
const PERIODS: f64 = 10.0;

/// Kernels and pauses of jobs that use less than their common quota, microseconds.
const BELOW: [&[(u64, u64)]; 3] = [
    &[(10, 300)],
    &[(10, 1000), (10, 1000)],
    &[(10, 1000), (100, 1000), (1000, 3000)],
];

/// A common quota, percent, and kernels and pauses of jobs that use more.
const ABOVE: [(u32, &[(u64, u64)]); 3] = [
    (20, &[(100, 100)]),
    (10, &[(10, 0), (100, 300)]),
    (50, &[(100, 100), (1000, 500)]),
];

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for percent in [25_u32, 50, 75] {
        let mut shares = Vec::new();
        for _ in 0..setting.repetitions {
            let daemon = Daemon::start(&setting.environment)?;
            let job = daemon.load(Rule::Governed, &batch("1000"))?;
            pass(0.3);
            daemon.write(job.pid(), "compute.max", format!("{} 100000", percent * 1000))?;
            // Measured from the second period on.
            pass(PERIOD);
            let began = now();
            pass(PERIOD * PERIODS + 0.05);
            shares.push(100.0 * job.share(began, now())?);
        }
        let goal = Budget::About(f64::from(percent), 3.0);
        report.add(
            format!("compute.max {percent} %: share"),
            "%",
            goal,
            shares,
            json!(null),
        );
    }
    if setting.environment.is_simulated {
        BELOW.iter().try_for_each(|jobs| below(setting, report, jobs))?;
        ABOVE
            .iter()
            .try_for_each(|(percent, jobs)| above(setting, report, *percent, jobs))?;
    }
    Ok(())
}

/// Starts jobs that launch, wait and pause, in a group with a quota.
fn start(daemon: &Daemon<'_>, quota: &str, jobs: &[(u64, u64)], seconds: &str) -> Result<Vec<Job>> {
    daemon.make_group("paced")?;
    let start = |(kernel, pause): &(u64, u64)| {
        let [kernel, pause] = [kernel, pause].map(u64::to_string);
        let fixed = ["paced", "--kernel", "work", "--duration", seconds];
        let varied = ["--kernel-usec", &kernel, "--pause-usec", &pause];
        let job = daemon.load(Rule::Governed, &[&fixed[..], &varied].concat())?;
        daemon.write("paced", "gcgroup.procs", job.pid())?;
        Ok(job)
    };
    let started = jobs.iter().map(start).collect::<Result<_>>()?;
    daemon.write("paced", "compute.max", quota)?;
    Ok(started)
}

/// Measures what each job keeps of its launches under a quota that the jobs do not use up.
fn below(setting: &Setting, report: &mut Report, jobs: &[(u64, u64)]) -> Result<()> {
    let seconds = (4.0 * setting.scale).max(1.0).to_string();
    let rates = |quota| {
        let daemon = Daemon::start(&setting.environment)?;
        let number = |job: Job| {
            let told = job.report()?;
            let steps = told["steps"].as_f64().zip(told["seconds"].as_f64());
            steps.map(|(steps, seconds)| steps / seconds).context("no steps")
        };
        let started = start(&daemon, quota, jobs, &seconds)?;
        started.into_iter().map(number).collect::<Result<Vec<f64>>>()
    };
    let mut kept = vec![Vec::new(); jobs.len()];
    for _ in 0..setting.repetitions {
        let (all, with) = (rates("max")?, rates("90000")?);
        for (kept, (all, with)) in kept.iter_mut().zip(all.into_iter().zip(with)) {
            kept.push(with / all);
        }
    }
    for ((kernel, pause), kept) in jobs.iter().zip(kept) {
        let name = format!(
            "quota of 90 % for {} jobs: {kernel}+{pause}: launches kept",
            jobs.len()
        );
        report.add(name, "", Budget::Least(0.98), kept, json!(null));
    }
    Ok(())
}

/// Measures the GPU time of jobs that use up their quota.
fn above(setting: &Setting, report: &mut Report, percent: u32, jobs: &[(u64, u64)]) -> Result<()> {
    let mut shares = Vec::new();
    for _ in 0..setting.repetitions {
        let daemon = Daemon::start(&setting.environment)?;
        let started = start(&daemon, &(percent * 1000).to_string(), jobs, "3600")?;
        pass(2.0 * PERIOD);
        let worked = || {
            started.iter().try_fold(0.0, |sum, job| {
                Ok::<f64, anyhow::Error>(sum + daemon.worked(job.pid())?.context("no work")?)
            })
        };
        let (began, before) = (now(), worked()?);
        pass(PERIOD * PERIODS + 0.05);
        shares.push((worked()? - before) / (now() - began) / 1e4);
    }
    let names: Vec<String> = jobs
        .iter()
        .map(|(kernel, pause)| format!("{kernel}+{pause}"))
        .collect();
    // 2 points, and 5 % of it or 5 usec of a kernel of 10 usec.
    let away = 2.0
        + f64::from(percent)
            * if jobs.iter().any(|job| job.0 < 100) {
                0.5
            } else {
                0.05
            };
    let name = format!("quota of {percent} % for {}: share", names.join(" and "));
    report.add(
        name,
        "%",
        Budget::About(f64::from(percent), away),
        shares,
        json!(null),
    );
    Ok(())
}
