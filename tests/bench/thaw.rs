//! Time from the write that thaws a process until its launch returns, as another process sees it.

use serde_json::json;
use support::{Mount, wait_until};

use crate::files::monotonic;
use crate::report::{Report, quantile};

const SAMPLES: usize = 200;

pub(crate) fn run(report: &mut Report) {
    let mount = Mount::new();
    let mut process = mount.obedient();
    let pid = process.pid();
    let mut took = Vec::new();
    for _ in 0..SAMPLES {
        let parked = mount.number(pid, "compute.stat", "nr_frozen");
        mount.write(pid, "compute.freeze", "1");
        wait_until("the process is frozen and drained", || {
            mount.number(pid, "gcgroup.events", "frozen") == 1
        });
        process.say("stamp");
        wait_until("the launch waits at the gate", || {
            mount.number(pid, "compute.stat", "nr_frozen") > parked
        });
        let before = monotonic();
        mount.write(pid, "compute.freeze", "0");
        let answer = process.line().unwrap_or_default();
        let after: f64 = answer
            .trim_start_matches("stamped ")
            .parse()
            .expect("a time stamp");
        took.push((after - before) / 1e3);
    }
    let detail =
        json!({ "p50": quantile(took.clone(), 0.5), "samples": SAMPLES, "of": "write to launch's return" });
    report.add("thaw, p99", quantile(took, 0.99), "usec", 100.0, detail);
}
