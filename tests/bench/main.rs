//! Costs of the library and the daemon against their budgets: `scripts/bench.sh`.
//!
//! Prints one JSON object. Values are ratios or differences of hooked and bare calls, or of mount and kernel,
//! measured in one run on one CPU, so that the machine's speed cancels out. The driver is the simulated one
//! in null mode, whose calls check nothing and return at once, so that its time does not hide ours.

#![allow(clippy::too_many_arguments, reason = "a report's row")]

mod apis;
mod calls;
mod connections;
mod crowd;
mod events;
mod exec;
mod files;
mod greedy;
mod groups;
mod hierarchy;
mod idle;
mod instructions;
mod report;
mod swap;
mod thaw;
mod turns;

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use report::Report;

fn main() {
    // `cargo bench` passes `--bench`.
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let (all, one) = cpus();
    let mut report = Report::default();
    type Subject = (&'static str, fn(&mut Report));
    let subjects: [Subject; 15] = [
        ("calls", calls::run),
        ("apis", apis::run),
        ("instructions", instructions::run),
        ("exec", exec::run),
        ("thaw", thaw::run),
        ("files", files::run),
        ("crowd", crowd::run),
        ("groups", groups::run),
        ("swap", swap::run),
        ("turns", turns::run),
        ("idle", idle::run),
        ("hierarchy", hierarchy::run),
        ("events", events::run),
        ("greedy", greedy::run),
        ("connections", connections::run),
    ];
    for (name, run) in subjects {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            eprintln!("{name} ...");
            // Benchmarks of waiting threads compare nothing, and so may use all CPUs.
            stay_on(
                if ["events", "greedy", "connections", "turns", "idle"].contains(&name) {
                    all
                } else {
                    one
                },
            );
            run(&mut report);
        }
    }
    report.print();
    if !report.all_within() {
        std::process::exit(1);
    }
}

/// Returns all CPUs that this process may use, and one of them.
fn cpus() -> &'static (CpuSet, CpuSet) {
    static CPUS: OnceLock<(CpuSet, CpuSet)> = OnceLock::new();
    CPUS.get_or_init(find_cpus)
}

/// Runs `body` on all available CPUs, and passes their number.
fn on_all_cpus(body: impl FnOnce(usize)) {
    let (all, one) = cpus();
    stay_on(all);
    body(
        (0..CpuSet::count())
            .filter(|cpu| all.is_set(*cpu).unwrap_or(false))
            .count(),
    );
    stay_on(one);
}

fn find_cpus() -> (CpuSet, CpuSet) {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("every process has an affinity");
    let last = (0..CpuSet::count())
        .rev()
        .find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(last.expect("one CPU is allowed"))
        .expect("the CPU number is valid");
    (allowed, one)
}

/// Pins this process and its children: compared runs then use the same CPU.
fn stay_on(cpus: &CpuSet) {
    sched_setaffinity(Pid::from_raw(0), cpus).expect("a subset of what is allowed");
}
