//! Tests lies about GPU work: a liar that never uses the GPU is charged nothing and delays no other process.

use std::fs;

use support::{Config, Governed, Mount, wait_until};

use super::{liar, tell};
use crate::contended::{batch, goes_on};

fn shared(policy: &str) -> Mount {
    Mount::with(Config::default().arg("--allow-other").arg("--policy").arg(policy))
}

/// Waits until the honest process has used 200 ms of GPU time, as measured by the simulated GPU, while
/// `count` has not changed.
#[track_caller]
fn goes_on_while(mount: &Mount, honest: &Governed, what: &str, count: impl Fn() -> u64) {
    wait_until(what, || {
        let before = count();
        goes_on(mount, honest.pid(), 0, 200_000);
        count() == before
    });
}

/// Waits until the honest process runs without being throttled.
#[track_caller]
fn is_not_held(mount: &Mount, honest: &Governed) {
    goes_on_while(mount, honest, "the honest process is not throttled", || {
        mount.number(honest.pid(), "compute.stat", "nr_throttled")
    });
}

/// Returns whether `unmanaged` lists the liar.
fn is_reported(mount: &Mount, liar: &Governed) -> bool {
    let list = mount.read("", "unmanaged");
    let begin = format!("{} gpu=0 ", liar.pid());
    list.lines()
        .any(|line| line.starts_with(&begin) && line.ends_with("reason=claims_use"))
}

#[test]
fn claimed_work_uses_no_quota() {
    let mount = shared("weighted");
    for group in ["team", "team/liar", "team/honest"] {
        fs::create_dir(mount.path().join(group)).expect("root may create a group");
    }
    mount.write("team", "compute.max", "50000 100000");
    mount.write("team/liar", "compute.max", "10000 100000");
    let honest = batch(&mount, 0, 8);
    mount.write("team/honest", "gcgroup.procs", &honest.pid().to_string());
    goes_on(&mount, honest.pid(), 0, 20_000);
    let mut liar = liar(&mount, &[]);
    mount.write("team/liar", "gcgroup.procs", &liar.pid().to_string());
    tell(&mut liar, "set busy_since 0 now");
    goes_on_while(&mount, &honest, "the lying process is charged no more", || {
        mount.number("team/liar", "compute.stat", "usage_usec")
    });
    wait_until("the false claim is reported", || is_reported(&mount, &liar));
    wait_until("the false claim is logged", || {
        mount.log().contains("claims to use device 0 without evidence")
    });
    assert!(!is_reported(&mount, &honest));
}

#[test]
fn liar_of_highest_priority_delays_no_other() {
    for policy in ["weighted", "strict"] {
        let mount = shared(policy);
        let honest = batch(&mount, 0, 8);
        goes_on(&mount, honest.pid(), 0, 20_000);
        let join = |lie: &str| {
            let mut liar = liar(&mount, &[]);
            mount.write(liar.pid(), "compute.priority", "0");
            liar.say(lie);
            liar
        };
        for lie in [
            "set busy_since 0 now",
            "toggle busy_since 0 now 0 1000000 3000",
            "toggle nr_waiting 0 1 2 1000000 1000",
            "random 7 1000000000",
        ] {
            let liar = join(lie);
            is_not_held(&mount, &honest);
            drop(liar);
        }
        let _all: Vec<Governed> = ["set nr_waiting 0 7", "set nr_contexts 0 1", "set busy_since 0 1"]
            .map(join)
            .into();
        is_not_held(&mount, &honest);
    }
}

#[test]
fn idle_context_and_forged_launch_count_support_no_claim() {
    let mount = shared("strict");
    let honest = batch(&mount, 0, 8);
    goes_on(&mount, honest.pid(), 0, 20_000);
    let mut liar = liar(&mount, &[]);
    mount.write(liar.pid(), "compute.priority", "0");
    tell(&mut liar, "context");
    tell(&mut liar, "set exited.0 0 1000");
    tell(&mut liar, "set exited.0 0 1000");
    tell(&mut liar, "set busy_since 0 now");
    wait_until("the false claim is reported", || is_reported(&mount, &liar));
    is_not_held(&mount, &honest);
}
