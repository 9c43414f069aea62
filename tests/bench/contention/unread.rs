//! Whether GPU time that nobody reads while it passes is the time of the completed work.

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::Job;
use crate::report::{Budget, Report};

/// Jobs by name: microseconds of each kernel, kernels of a graph (0: none), number of equal jobs at once.
const CASES: [(&str, &str, &str, usize); 7] = [
    ("kernels of 10 usec", "10", "0", 1),
    ("kernels of 100 usec", "100", "0", 1),
    ("kernels of 1 ms", "1000", "0", 1),
    ("kernels of 20 ms", "20000", "0", 1),
    ("kernels of 100 ms", "100000", "0", 1),
    ("graphs of 10 kernels of 500 usec", "500", "10", 1),
    ("two jobs with kernels of 1 ms", "1000", "0", 2),
];

/// Compares, at the end of each job, its line in `exited` with its completed kernels.
pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for (name, kernel, graph, number) in CASES {
        let mut ratios = Vec::new();
        for _ in 0..setting.repetitions {
            let daemon = Daemon::start(&setting.environment)?;
            let seconds = (4.0 * setting.scale).max(1.0).to_string();
            let fixed = [
                "throughput",
                "--kernel",
                "work",
                "--depth",
                "32",
                "--interval",
                "3600",
            ];
            let varied = ["--kernel-usec", kernel, "--graph", graph, "--duration", &seconds];
            let arguments = [&fixed[..], &varied].concat();
            let start = |_| daemon.load(Rule::Governed, &arguments);
            let jobs = (0..number).map(start).collect::<Result<Vec<Job>>>()?;
            for job in jobs {
                let pid = job.pid();
                let worked = job.report()?["busy_usec"].as_f64().context("no work")?;
                ratios.push(charged(&daemon, pid)? / worked);
            }
        }
        let name = format!("usage_usec over completed work, unread: {name}");
        report.add(name, "", Budget::About(1.0, 0.05), ratios, json!(null));
    }
    Ok(())
}

/// Returns the microseconds that were charged to a process that has ended.
pub(crate) fn charged(daemon: &Daemon<'_>, pid: u32) -> Result<f64> {
    let prefix = format!("{pid} ");
    for _ in 0..100 {
        let exited = daemon.read(".", "exited")?;
        if let Some(line) = exited.lines().find(|line| line.starts_with(&prefix)) {
            let time = line
                .split(' ')
                .find_map(|pair| pair.strip_prefix("compute.usage_usec="));
            return Ok(time.context("no GPU time")?.parse()?);
        }
        crate::job::pass(0.05);
    }
    anyhow::bail!("{pid} has not left")
}
