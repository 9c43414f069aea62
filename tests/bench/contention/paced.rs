//! Programs that launch, wait and pause: whether the GPU time that they are charged is the time for which the
//! GPU ran their kernels.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::Setting;
use crate::daemon::{Daemon, Rule};
use crate::report::{Budget, Report};
use crate::unread::charged;

/// Microseconds of a kernel and of a pause, all of which are combined.
const KERNELS: [u64; 7] = [5, 10, 50, 100, 1000, 20_000, 100_000];
const PAUSES: [u64; 7] = [0, 20, 100, 300, 1000, 3000, 10_000];

/// Combinations that are measured for each [`VARIANTS`].
const CELLS: [(u64, u64); 4] = [(10, 20), (10, 300), (100, 1000), (1000, 1000)];

/// Combinations that [`brief`] measures.
const BRIEF: [(u64, u64); 8] = [
    (5, 20),
    (10, 0),
    (10, 300),
    (10, 3000),
    (50, 100),
    (100, 1000),
    (1000, 1000),
    (20_000, 3000),
];

/// Other ways to launch, to wait, and to be governed: name, arguments of `gcgroup-load paced`, neighbour.
const VARIANTS: [(&str, &[&str], Beside); 12] = [
    ("8 streams", &["--streams", "8"], Beside::Nothing),
    ("graphs of 10", &["--graph", "10"], Beside::Nothing),
    ("per-thread stream", &["--per-thread"], Beside::Nothing),
    ("event", &["--way", "event"], Beside::Nothing),
    ("polled event", &["--way", "poll"], Beside::Nothing),
    ("pageable copy", &["--way", "copy"], Beside::Nothing),
    ("host function", &["--way", "host"], Beside::Nothing),
    ("beside an equal job", &[], Beside::Equal),
    ("beside a busy job", &[], Beside::Batch),
    ("TRACK", &[], Beside::Idle(2, 10)),
    ("ARBITRATE", &[], Beside::Idle(10, 2)),
    ("quota of 90 %", &[], Beside::Quota(90)),
];

/// Neighbour of the job, or its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// A job with equal arguments.
    Equal,
    /// A job with kernels of 1 ms and no pauses.
    Batch,
    /// An idle process. Priorities of the job and of this process.
    Idle(u32, u32),
    /// A quota of the job, percent.
    Quota(u64),
}

pub(crate) fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let all = KERNELS
        .iter()
        .flat_map(|kernel| PAUSES.map(|pause| (*kernel, pause)));
    for cell in all {
        row(setting, report, cell, ("", &[], Beside::Nothing))?;
    }
    for variant in VARIANTS {
        for cell in CELLS {
            row(setting, report, cell, variant)?;
        }
    }
    Ok(())
}

/// Measures a dozen combinations, for a real GPU: 20 s with one repetition at a quarter of the time.
pub(crate) fn brief(setting: &Setting, report: &mut Report) -> Result<()> {
    for cell in BRIEF {
        row(setting, report, cell, ("", &[], Beside::Nothing))?;
    }
    for variant in [0, 1, 3, 5].map(|index| VARIANTS[index]) {
        row(setting, report, (10, 300), variant)?;
    }
    Ok(())
}

fn row(
    setting: &Setting,
    report: &mut Report,
    (kernel, pause): (u64, u64),
    (variant, arguments, beside): (&str, &[&str], Beside),
) -> Result<()> {
    let (mut ratios, mut details) = (Vec::new(), Vec::new());
    for _ in 0..setting.repetitions {
        let (ratio, detail) = once(setting, (kernel, pause), arguments, beside)?;
        ratios.push(ratio);
        details.push(detail);
    }
    // 5 % or, where kernels are shorter, 5 usec for each.
    let away = 0.05_f64.max(if kernel < 100 { 5.0 / kernel as f64 } else { 0.0 });
    let name = format!("charged over true: {kernel}+{pause} {variant}");
    report.add(
        name.trim_end(),
        "",
        Budget::About(1.0, away),
        ratios,
        json!(details),
    );
    Ok(())
}

/// Returns the charged over the true GPU time of a job, and the job's report.
fn once(
    setting: &Setting,
    (kernel, pause): (u64, u64),
    arguments: &[&str],
    beside: Beside,
) -> Result<(f64, Value)> {
    let daemon = Daemon::start(&setting.environment)?;
    let step = (kernel + pause) as f64 / 1e6;
    let seconds = (2.0 * setting.scale).max(0.5).max(12.0 * step).to_string();
    let (kernel, pause) = (kernel.to_string(), pause.to_string());
    let fixed = [
        "paced",
        "--kernel",
        "work",
        "--kernel-usec",
        &kernel,
        "--pause-usec",
        &pause,
    ];
    let job = [&fixed, arguments, &["--duration", &seconds]].concat();
    let (rule, _other) = match beside {
        Beside::Idle(own, other) => (
            Rule::Ranked(own),
            Some(daemon.load(Rule::Ranked(other), &["obey"])?),
        ),
        Beside::Equal => (Rule::Governed, Some(daemon.load(Rule::Governed, &job)?)),
        Beside::Batch => (
            Rule::Governed,
            Some(daemon.load(Rule::Governed, &crate::latency::batch("1000"))?),
        ),
        Beside::Nothing | Beside::Quota(_) => (Rule::Governed, None),
    };
    let job = daemon.load(rule, &job)?;
    if let Beside::Quota(percent) = beside {
        daemon.write(job.pid(), "compute.max", format!("{} 100000", percent * 1000))?;
    }
    let pid = job.pid();
    let told = job.report()?;
    let worked = match daemon.worked(pid)? {
        Some(usec) => usec,
        None => told["busy_usec"].as_f64().context("no work")?,
    };
    Ok((charged(&daemon, pid)? / worked, told))
}
