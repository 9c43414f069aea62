//! Instructions that the hook adds to a launch with an open gate, and to an allocation with its free for
//! every API, counted by callgrind.

use std::process::Command;

use serde_json::json;
use support::{Config, Mount, artifacts, instructions};

use crate::apis::ARMS;
use crate::report::Report;

/// A bare jump to the driver would need ten instructions. Counting the exit requires a call, which pushes
/// cuLaunchKernel's five stack arguments again, and the result is tested: twenty in all
/// (hook/src/compute/freezing.md gives the reasons). The half is measurement noise.
const LAUNCH: f64 = 20.5;
/// Per call that is part of an allocation or its free, with two to six atomic instructions.
const CALL: f64 = 800.0;
/// Per call after which the driver is asked what a pool has reserved: only that finds growth that was not
/// expected, so none is left out.
const MEASURE: f64 = 400.0;

pub(crate) fn run(report: &mut Report) {
    // Samples of GPU time are taken at intervals: callgrind is so slow that it would count many of them.
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1).measured_when_read());
    if Command::new("valgrind").arg("--version").output().is_err() {
        return report.skip("added instructions", "no valgrind here");
    }
    let launch = (vec!["--call", "launch"], "launch".to_owned(), LAUNCH);
    let apis = ARMS.map(|arm| {
        let budget = CALL * f64::from(arm.calls) + MEASURE * f64::from(arm.measures);
        (arm.arguments().to_vec(), arm.to_string(), budget)
    });
    for (call, name, budget) in std::iter::once(launch).chain(apis) {
        let bare = each(&mount.bare_command(artifacts().load()), &call);
        let hooked = each(&mount.command(artifacts().load()), &call);
        report.add(
            &format!("{name}, added instructions"),
            hooked - bare,
            "instructions",
            budget,
            json!({ "bare": bare, "hooked": hooked }),
        );
    }
}

/// Returns the instructions of one call: a longer run less a shorter one.
fn each(command: &Command, call: &[&str]) -> f64 {
    let (few, many) = (1_000, 11_000);
    (count(command, call, many) - count(command, call, few)) / f64::from(many - few)
}

/// Returns the instructions of a run with `calls` calls.
fn count(command: &Command, call: &[&str], calls: u32) -> f64 {
    let mut run = Command::new(command.get_program());
    // One round; the discarded first round has at most a hundred calls.
    run.args(["overhead", "--rounds", "1"]).args(call);
    run.args(["--calls", &calls.to_string()]);
    for (name, value) in command.get_envs() {
        value.map(|value| run.env(name, value));
    }
    instructions(&run) as f64
}
