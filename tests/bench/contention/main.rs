//! gcgroup-contention: measures priorities, freezes and quotas on a contended GPU against budgets.
//!
//! Needs only the built programs, and so runs where nothing can be built. The jobs are `gcgroup-load`; their
//! GPU time is computed from the kernels that they completed, whose length is an amount of work and not a
//! clock. Cases that are compared run in turn in one run, so that the machine's speed cancels out. JSON on
//! stdout, a table on stderr.

#![allow(clippy::too_many_arguments, reason = "a report's row")]

mod cost;
mod crowd;
mod daemon;
mod debts;
mod freeze;
mod gaps;
mod job;
mod latency;
mod paced;
mod quota;
mod report;
mod shares;
mod tenants;
mod unequal;
mod unread;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;

use daemon::Environment;
use report::Report;

/// Measures a contended GPU.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Directory of the built programs
    #[arg(long, env = "DIST", default_value = "target/dist")]
    dist: PathBuf,
    /// Directory of gc-autopreempt
    #[arg(long, default_value = "scripts")]
    scripts: PathBuf,
    /// Use the real driver instead of the simulated one
    #[arg(long)]
    gpu: bool,
    /// Number of runs of each arm
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Factor for the duration of each run
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Arms to run; default: all
    #[arg(value_name = "ARM")]
    arms: Vec<String>,
}

/// Settings for all arms.
#[derive(Debug)]
pub struct Setting {
    pub environment: Environment,
    pub repetitions: u32,
    pub scale: f64,
}

impl Setting {
    /// Returns `many` times `scale`, at least 5.
    pub fn count(&self, many: u32) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let scaled = (f64::from(many) * self.scale) as u32;
        scaled.max(5)
    }
}

type Arm = (&'static str, fn(&Setting, &mut Report) -> Result<()>);

/// Arms in the order in which they run.
const ARMS: [Arm; 16] = [
    ("bursts", latency::bursts),
    ("single", latency::single),
    ("long", latency::long),
    ("gaps", gaps::run),
    ("shares", shares::run),
    ("tenants", tenants::run),
    ("unread", unread::run),
    ("paced", paced::run),
    ("brief", paced::brief),
    ("cost", cost::run),
    ("idle", cost::idle),
    ("freeze", freeze::run),
    ("quota", quota::run),
    ("debts", debts::run),
    ("unequal", unequal::run),
    ("crowd", crowd::run),
];

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gcgroup-contention: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the arms; returns whether all budgets were kept.
fn run(arguments: Arguments) -> Result<bool> {
    for name in &arguments.arms {
        if !ARMS.iter().any(|(known, _)| known == name) {
            let known: Vec<&str> = ARMS.iter().map(|(known, _)| *known).collect();
            bail!("no arm is called {name}; there are {}", known.join(", "));
        }
    }
    let mut environment = Environment {
        dist: arguments.dist.canonicalize()?,
        scripts: arguments.scripts.canonicalize()?,
        is_simulated: !arguments.gpu,
        rate: None,
    };
    environment.measure()?;
    let setting = Setting {
        environment,
        repetitions: arguments.repetitions,
        scale: arguments.scale,
    };
    let mut report = Report::default();
    for (name, arm) in ARMS {
        if arguments.arms.is_empty() || arguments.arms.iter().any(|wanted| wanted == name) {
            eprintln!("{name} ...");
            if let Err(error) = arm(&setting, &mut report) {
                report.failed(name, &error);
            }
        }
    }
    report.print(&setting);
    Ok(report.is_kept())
}
