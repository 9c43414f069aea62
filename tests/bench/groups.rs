//! Cost of a group limit for an allocation: within the grant, and where more must be requested.

use serde_json::{Value, json};
use support::{Config, Governed, Mount, artifacts};

use crate::calls::least;
use crate::report::{Report, quantile};

/// Number of runs of each kind, in turn; the minimum counts.
const TURNS: usize = 5;
const GROUP: &str = "group";

pub(crate) fn run(report: &mut Report) {
    let mount = Mount::with(Config::default().env("SIMGPU_NULL", 1));
    std::fs::create_dir(mount.path().join(GROUP)).expect("a group");
    mount.write(GROUP, "memory.limit", "1024T");
    within(report, &mount);
    beyond(report, &mount);
}

fn within(report: &mut Report, mount: &Mount) {
    let calls = ["--rounds", "50", "--calls", "2000", "--call", "alloc-free"];
    let (mut bares, mut hookeds, mut members) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let mut command = mount.bare_command(artifacts().load());
        command.args(["overhead", "--hold"]).args(calls);
        bares.push(least(&measured(Governed::spawn(command)), 0));
        hookeds.push(least(&measured(hooked(mount, &calls)), 0));
        members.push(least(&measured(member(mount, &calls)), 0));
    }
    let [bare, hooked, member] = [bares, hookeds, members].map(|values| quantile(values, 0.0));
    let detail = json!({ "bare": bare, "in no group": hooked, "in a group": member });
    let name = "alloc_free within what a group has granted, added";
    report.add(name, member - bare, "ns", 150.0, detail);
}

/// Measures blocks larger than what is granted in advance, so that each is requested.
fn beyond(report: &mut Report, mount: &Mount) {
    let calls = [
        "--rounds", "40", "--calls", "20", "--size", "1G", "--live", "0", "--call", "grow",
    ];
    let (mut hookeds, mut members) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let median = |result: &Value| result["ns"][0]["median"].as_f64().expect("nanoseconds") / 1e3;
        hookeds.push(median(&measured(hooked(mount, &calls))));
        members.push(median(&measured(member(mount, &calls))));
    }
    let (hooked, member) = (quantile(hookeds, 0.5), quantile(members, 0.5));
    let detail = json!({ "in no group": hooked, "in a group": member, "of": "median" });
    let name = "alloc that asks its group for more, added";
    report.add(name, member - hooked, "usec", 200.0, detail);
}

fn hooked(mount: &Mount, calls: &[&str]) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.args(["overhead", "--hold"]).args(calls);
    Governed::spawn(command)
}

fn member(mount: &Mount, calls: &[&str]) -> Governed {
    let mut load = hooked(mount, calls);
    load.expect("ready");
    mount.write(GROUP, "gcgroup.procs", &load.pid().to_string());
    load
}

/// Lets the program begin, and returns its report.
fn measured(mut load: Governed) -> Value {
    load.say("");
    let lines = load.finish();
    let last = lines.last().map_or("", String::as_str);
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last:?}"))
}
