//! Instructions that the hook adds to a launch whose gate is open, counted by callgrind.

use std::process::Command;

use serde_json::json;
use support::{Config, Mount, artifacts, instructions};

use crate::report::Report;

/// A bare jump to the driver would be ten. The mark on the way out makes it a call: cuLaunchKernel's five arguments on
/// the stack are pushed again, eighteen in all (ARCHITECTURE.md says what that buys). The half is the count's noise.
const BUDGET: f64 = 18.5;
const NAME: &str = "launch, added instructions";

pub fn run(report: &mut Report) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return report.skip(NAME, "no valgrind here");
    }
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1));
    let bare = launch(&mount.bare_command(artifacts().load()));
    let hooked = launch(&mount.command(artifacts().load()));
    report.add(
        NAME,
        hooked - bare,
        "instructions",
        BUDGET,
        json!({ "bare": bare, "hooked": hooked }),
    );
}

/// Instructions of one more launch: those of a longer run less those of a shorter one.
fn launch(command: &Command) -> f64 {
    let (few, many) = (1_000, 11_000);
    (count(command, many) - count(command, few)) / f64::from(many - few)
}

/// Instructions of a whole run with so many launches.
fn count(command: &Command, launches: u32) -> f64 {
    let mut run = Command::new(command.get_program());
    // One round; the warming one takes at most a hundred.
    run.args(["overhead", "--call", "launch", "--rounds", "1"]);
    run.args(["--calls", &launches.to_string()]);
    for (name, value) in command.get_envs() {
        value.map(|value| run.env(name, value));
    }
    instructions(&run) as f64
}
