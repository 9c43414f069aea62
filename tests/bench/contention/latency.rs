//! An interactive job beside a batch job: latency of the former, and the share that the latter keeps.

use anyhow::Result;
use serde_json::{Value, json};

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{Job, now};
use crate::report::{Budget, Report, median};

/// The daemon's default in-flight window, microseconds.
const WINDOW: f64 = 500.0;

/// A pair of jobs.
struct Case {
    name: &'static str,
    /// Arguments of `gcgroup-load latency`, and the number of bursts.
    interactive: &'static [&'static str],
    bursts: u32,
    /// Kernel lengths of the batch job, microseconds.
    batch: &'static str,
    longest: f64,
    /// Budget for the governed job's 99th percentile, relative to that of the job alone.
    ratio: Budget,
}

/// Ways to run the two jobs.
const ARMS: [&str; 5] = [
    "alone",
    "ungoverned",
    "weighted 2:10",
    "strict 2:10",
    "freeze by script",
];

/// Arguments for bursts of 20 ms with pauses of 30 ms.
pub(crate) const DECODE: &[&str] = &[
    "--burst",
    "100-200",
    "--burst-ms",
    "20",
    "--prefill-ms",
    "80",
    "--gap-ms",
    "30",
];

/// Bursts of 20 ms beside kernels of 1 ms.
pub(crate) fn bursts(setting: &Setting, report: &mut Report) -> Result<()> {
    let case = Case {
        name: "bursts of 20 ms",
        interactive: DECODE,
        bursts: 100,
        batch: "1000",
        longest: 1000.0,
        ratio: Budget::Most(1.1),
    };
    case.run(setting, report)
}

/// Single kernels of 5 ms beside kernels of 1 ms.
pub(crate) fn single(setting: &Setting, report: &mut Report) -> Result<()> {
    let case = Case {
        name: "single 5 ms kernels",
        interactive: &["--burst", "1", "--kernel-usec", "5000", "--gap-ms", "25"],
        bursts: 150,
        batch: "1000",
        longest: 1000.0,
        ratio: Budget::Most(1.3),
    };
    case.run(setting, report)
}

/// Bursts of 20 ms beside kernels of 1 to 10 ms.
pub(crate) fn long(setting: &Setting, report: &mut Report) -> Result<()> {
    let case = Case {
        name: "beside 1-10 ms kernels",
        interactive: DECODE,
        bursts: 100,
        batch: "1000-10000",
        longest: 10_000.0,
        ratio: Budget::None,
    };
    case.run(setting, report)
}

/// Result of one run.
#[derive(Debug)]
struct Run {
    p99: f64,
    report: Value,
    /// The batch job's share of the GPU time that the interactive job left.
    kept: Option<f64>,
}

impl Case {
    fn run(&self, setting: &Setting, report: &mut Report) -> Result<()> {
        let mut runs: [Vec<Run>; ARMS.len()] = Default::default();
        let mut arms = ARMS.to_vec();
        if !Daemon::start(&setting.environment)?.is_mounted() {
            arms.pop();
            report.skip(
                &format!("{}: freeze by script", self.name),
                "nothing can be mounted here",
            );
        }
        for _ in 0..setting.repetitions {
            for (arm, runs) in arms.iter().zip(&mut runs) {
                runs.push(self.once(arm, setting)?);
            }
        }
        let alone: Vec<f64> = runs[0].iter().map(|run| run.p99).collect();
        for (arm, runs) in arms.iter().zip(&runs) {
            let p99: Vec<f64> = runs.iter().map(|run| run.p99).collect();
            let is_governed = arm.contains(':');
            // Compared with the run alone of the same repetition.
            let bound = median(&alone) + WINDOW + self.longest;
            let budget = if is_governed {
                Budget::Most(bound)
            } else {
                Budget::None
            };
            let told: Vec<&Value> = runs.iter().map(|run| &run.report).collect();
            report.add(
                format!("{}: p99, {arm}", self.name),
                "usec",
                budget,
                p99.clone(),
                json!(told),
            );
            if *arm != "alone" {
                let ratios = p99.iter().zip(&alone).map(|(p99, alone)| p99 / alone).collect();
                let budget = if is_governed { self.ratio } else { Budget::None };
                report.add(
                    format!("{}: p99 over alone, {arm}", self.name),
                    "",
                    budget,
                    ratios,
                    Value::Null,
                );
                let kept = runs.iter().filter_map(|run| run.kept).collect();
                let budget = if is_governed {
                    Budget::Least(0.9)
                } else {
                    Budget::None
                };
                report.add(
                    format!("{}: idle time kept, {arm}", self.name),
                    "",
                    budget,
                    kept,
                    Value::Null,
                );
            }
        }
        Ok(())
    }

    fn once(&self, arm: &str, setting: &Setting) -> Result<Run> {
        let daemon = Daemon::start(&setting.environment)?;
        let (policy, [first, second]) = rules(arm);
        if let Some(policy) = policy {
            daemon.policy(policy)?;
        }
        // The batch job starts first: its priority is known when the other begins.
        let batch = if arm == "alone" {
            None
        } else {
            Some(daemon.load(second, &batch(self.batch))?)
        };
        let count = setting.count(self.bursts).to_string();
        let arguments = [
            &["latency", "--kernel", "work", "--count", &count],
            self.interactive,
        ]
        .concat();
        let interactive = daemon.load(first, &arguments)?;
        let mut script = None;
        if let Some(batch) = &batch {
            let pids = [interactive.pid().to_string(), batch.pid().to_string()];
            if arm == "freeze by script" {
                script = Some(daemon.script("gc-autopreempt", &pids)?);
            }
        }
        let began = now();
        let told = interactive.report()?;
        let ended = now();
        if let Some(script) = script {
            script.end();
        }
        let number = |key: &str| told[key].as_f64().unwrap_or(f64::NAN);
        let left = 1.0 - number("busy_usec") / 1e6 / number("seconds");
        let kept = batch.map(|batch: Job| -> Result<f64> { Ok(batch.share(began, ended)? / left) });
        Ok(Run {
            p99: number("p99_usec"),
            kept: kept.transpose()?,
            report: told,
        })
    }
}

/// Returns the policy of an arm, and how the interactive job and the batch job are governed.
fn rules(arm: &str) -> (Option<&'static str>, [Rule; 2]) {
    match arm {
        "weighted 2:10" => (Some("weighted"), [Rule::Ranked(2), Rule::Ranked(10)]),
        "strict 2:10" => (Some("strict"), [Rule::Ranked(2), Rule::Ranked(10)]),
        "freeze by script" => (None, [Rule::Governed; 2]),
        _ => (None, [Rule::Ungoverned; 2]),
    }
}

/// Returns the arguments of a batch job with the given kernel lengths that runs until it is ended.
pub(crate) fn batch(usec: &str) -> Vec<&str> {
    vec![
        "throughput",
        "--kernel",
        "work",
        "--duration",
        "3600",
        "--interval",
        "0.02",
        "--kernel-usec",
        usec,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_govern_as_their_names_say() {
        for arm in ARMS {
            let (policy, [first, second]) = rules(arm);
            let is_ranked = first == Rule::Ranked(2) && second == Rule::Ranked(10);
            assert_eq!(arm.contains("2:10"), is_ranked, "{arm}");
            assert_eq!(policy, arm.split_once(" 2:10").map(|(policy, _)| policy), "{arm}");
            let is_governed = first != Rule::Ungoverned || second != Rule::Ungoverned;
            assert_eq!(["alone", "ungoverned"].contains(&arm), !is_governed, "{arm}");
        }
    }
}
