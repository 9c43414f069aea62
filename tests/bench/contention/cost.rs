//! Cost of governing for a job that has the GPU to itself.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::job::{now, pass};
use crate::report::{Budget, Report};

/// Ways to govern the job, in upper case by its gate. At the open gate its GPU time is measured too.
const KINDS: [&str; 3] = ["ungoverned", "governed", "ARBITRATE"];

/// Measures kernels per second of the same job, governed in each way in turn.
pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    for kernel in ["10", "100", "1000"] {
        let mut rates: [Vec<f64>; KINDS.len()] = Default::default();
        for _ in 0..setting.repetitions {
            for (kind, rates) in KINDS.iter().zip(&mut rates) {
                rates.push(rate(kind, kernel, setting)?);
            }
        }
        let [bare, held @ ..] = rates;
        let budgets = [Budget::Least(0.995), Budget::Least(0.965)];
        for ((kind, rates), budget) in KINDS[1..].iter().zip(held).zip(budgets) {
            let ratios = rates.iter().zip(&bare).map(|(held, bare)| held / bare).collect();
            let name = format!("throughput of {kernel} usec kernels, {kind} over bare");
            report.add(name, "", budget, ratios, json!({ "held": rates, "bare": bare }));
        }
    }
    Ok(())
}

fn rate(kind: &str, kernel: &str, setting: &Setting) -> Result<f64> {
    let daemon = Daemon::start(&setting.environment)?;
    let seconds = (3.0 * setting.scale).max(0.5).to_string();
    // An idle process is present in each case, so that the GPU is shared equally.
    let rule = |priority| match kind {
        "ungoverned" => Rule::Ungoverned,
        "ARBITRATE" => Rule::Ranked(priority),
        _ => Rule::Governed,
    };
    let mut other = daemon.load(rule(2), &["obey"])?;
    other.say("launch 1")?;
    other.expect("launched")?;
    let arguments = [
        "throughput",
        "--kernel",
        "work",
        "--kernel-usec",
        kernel,
        "--depth",
        "16",
        "--interval",
        "3600",
        "--duration",
        &seconds,
    ];
    let job = daemon.load(rule(10), &arguments)?;
    let told = job.report()?;
    told["kernels_per_second"].as_f64().context("no rate")
}

/// Measures how often the daemon's threads sleep while it has idle processes of several priorities.
pub(crate) fn idle(setting: &Setting, report: &mut Report) -> Result<()> {
    let (mut arbiter, mut details) = (Vec::new(), Vec::new());
    for _ in 0..setting.repetitions {
        let daemon = Daemon::start(&setting.environment)?;
        let _jobs = [
            daemon.load(Rule::Ranked(2), &["obey"])?,
            daemon.load(Rule::Ranked(10), &["obey"])?,
        ];
        // Time for the activity after the start to end.
        pass(3.0);
        let (began, before) = (now(), sleeps(daemon.pid())?);
        pass(5.0);
        let (after, ended) = (sleeps(daemon.pid())?, now());
        let each_second: BTreeMap<_, _> = after
            .into_iter()
            .map(|(thread, count)| {
                let count = count - before.get(&thread).copied().unwrap_or(0);
                (thread, count as f64 / (ended - began))
            })
            .collect();
        arbiter.push(each_second.get("arbiter").copied().context("no arbiter")?);
        details.push(each_second);
    }
    let detail = json!({ "by thread": details });
    report.add(
        "wake-ups of the arbiter, all idle",
        "/s",
        Budget::Most(0.0),
        arbiter,
        detail,
    );
    Ok(())
}

/// Returns how often each thread of a process has gone to sleep, by thread name.
fn sleeps(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let find = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let name = find("Name:").context("no name")?.trim().to_owned();
        let count = find("voluntary_ctxt_switches:").context("no count of sleeps")?;
        *all.entry(name).or_default() += count.trim().parse::<u64>()?;
    }
    Ok(all)
}
