//! `compute.max`: whether a job gets its quota, and no more.

use anyhow::Result;
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{now, pass};
use crate::latency::batch;
use crate::report::{Budget, Report};

/// Quota period, seconds, and number of measured periods.
const PERIOD: f64 = 0.1;
const PERIODS: f64 = 10.0;

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
    Ok(())
}
