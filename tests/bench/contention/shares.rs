//! Two jobs that are always busy: whether their shares match their priorities.

use anyhow::Result;
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{Job, now, pass};
use crate::latency::batch;
use crate::report::{Budget, Report};

/// Priority number of the job of higher priority.
const FIRST: u32 = 6;

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let mut errors = Vec::new();
    let mut detail = serde_json::Map::new();
    for (step, ratio) in [(0_u32, 1.0), (1, 2.0), (2, 4.0), (4, 16.0)] {
        let (mut ratios, mut throttled, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        let mut off = Vec::new();
        for _ in 0..setting.repetitions {
            let daemon = Daemon::start(&setting.environment)?;
            daemon.policy("weighted")?;
            let jobs = [
                daemon.load(Rule::Ranked(FIRST), &batch("1000"))?,
                daemon.load(Rule::Ranked(FIRST + step), &batch("1000"))?,
            ];
            let usage = || -> Result<Vec<u64>> {
                jobs.iter()
                    .map(|job| daemon.number(job.pid(), "compute.stat", "usage_usec"))
                    .collect()
            };
            pass(1.0);
            let (began, before, waited_before) = (now(), usage()?, waited(&daemon, &jobs)?);
            pass((4.0 * setting.scale).max(0.5));
            let (after, ended) = (usage()?, now());
            let shares = jobs
                .iter()
                .map(|job| job.share(began, ended))
                .collect::<Result<Vec<f64>>>()?;
            ratios.push(shares[0] / shares[1]);
            sums.push(shares[0] + shares[1]);
            for (index, share) in shares.iter().enumerate() {
                let charged = (after[index] - before[index]) as f64 / 1e6 / (ended - began);
                off.push(100.0 * (charged / share - 1.0));
            }
            throttled.push(waited(&daemon, &jobs)? - waited_before);
        }
        let (name, budget) = match step {
            0 => ("shares at equal priorities".to_owned(), Budget::None),
            _ => (
                format!("shares at p and p+{step}"),
                Budget::About(ratio, ratio / 10.0),
            ),
        };
        report.add(name, "", budget, ratios, json!({ "of the GPU together": sums }));
        errors.extend(off.iter().map(|percent| percent.abs()));
        detail.insert(format!("p+{step}: each by turns"), json!(off));
        if step == 0 {
            let name = "submissions that waited at equal priorities";
            report.add(name, "", Budget::Most(0.0), throttled, json!(null));
        }
    }
    report.add(
        "usage_usec, deviation from the completed work",
        "%",
        Budget::Most(5.0),
        errors,
        json!(detail),
    );
    Ok(())
}

/// Returns the number of submissions that waited at a gate.
pub(crate) fn waited(daemon: &Daemon<'_>, jobs: &[Job]) -> Result<f64> {
    let mut sum = 0;
    for job in jobs {
        sum += daemon.number(job.pid(), "compute.stat", "nr_throttled")?;
    }
    Ok(sum as f64)
}
