//! Tests `gcgroup.waits`, which names the processes that are waited for, and what `explain` and `ls` show of
//! it.

use std::collections::BTreeMap;

use serde_json::Value;
use support::{Config, Governed, Mount, wait_until};

use crate::contended::{batch, goes_on};

#[track_caller]
fn shown(mount: &Mount, words: &[&str]) -> String {
    let output = mount.gcgroupfs(words).output().expect("gcgroupfs runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the time for which a process has waited for the turn of each other one.
fn waited(mount: &Mount, job: &Governed) -> BTreeMap<i32, u64> {
    let text = mount.read(job.pid(), "gcgroup.waits");
    let lines = text.lines().filter_map(|line| {
        let (pid, pairs) = line.split_once(" gpu=0 for=turn usec=")?;
        Some((pid.parse().ok()?, pairs.split(' ').next()?.parse().ok()?))
    });
    lines.collect()
}

/// Under the strict policy a job waits while one of higher priority has the GPU: by the simulator's account
/// that is for as long as the other one has used it.
#[test]
fn job_waits_for_the_one_of_higher_priority_while_that_works() {
    let mount = Mount::with(Config::default().arg("--policy").arg("strict"));
    let low = batch(&mount, 0, 10);
    goes_on(&mount, low.pid(), 0, 2_000);
    assert_eq!(waited(&mount, &low), BTreeMap::new());
    let high = batch(&mount, 0, 2);
    goes_on(&mount, high.pid(), 0, 20_000);
    let (waited_before, used_before) = (
        waited(&mount, &low).get(&high.pid()).copied().unwrap_or(0),
        mount.truth().usage_usec(high.pid(), 0),
    );
    goes_on(&mount, high.pid(), 0, 600_000);
    let used = mount.truth().usage_usec(high.pid(), 0) - used_before;
    let all = waited(&mount, &low);
    let for_high = all.get(&high.pid()).copied().unwrap_or(0) - waited_before;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(for_high > used / 2, "{for_high} of {used}");
    let total = all.values().sum::<u64>();
    let back = waited(&mount, &high).values().sum::<u64>();
    assert!(back < total / 2, "the other waits little: {back} of {total}");

    let (pid, name) = (
        low.pid().to_string(),
        format!("process {} (gcgroup-load", high.pid()),
    );
    wait_until("explain names the owner of the turn", || {
        let text = shown(&mount, &["explain", &pid]);
        text.contains(&format!(
            "{name}, priority 2) has the turn on GPU 0; waited for it "
        ))
    });
    wait_until("the table names the owner of the turn", || {
        let text = shown(&mount, &["ls", "--format", "pid,waits_for"]);
        let start = format!("{pid}  {}/gcgroup-load/turn/", high.pid());
        text.lines().any(|line| line.trim().starts_with(&start))
    });
    let json: Value = serde_json::from_str(&shown(&mount, &["ls", "--json"])).expect("JSON");
    let processes = json["processes"].as_array().expect("a list");
    let of = |job: &Governed| {
        let found = processes.iter().find(|process| process["pid"] == job.pid());
        found.expect("it is listed").clone()
    };
    let wait = &of(&low)["waits"][0];
    assert_eq!((&wait["pid"], &wait["priority"]), (&high.pid().into(), &2.into()));
    let percent = |of: &Value| of["rates"]["gpu_percent"].as_f64().expect("a rate");
    assert!(percent(&of(&high)) > percent(&of(&low)), "{json}");

    let ended = high.pid();
    drop(high);
    wait_until("nothing is waited for", || {
        let text = mount.read(low.pid(), "gcgroup.waits");
        text.lines().all(|line| line.contains(" now=0 ")) && !text.contains("priority=")
    });
    assert!(waited(&mount, &low).contains_key(&ended), "its time is kept");
}

#[test]
fn job_over_its_quota_waits_for_no_other() {
    let mount = Mount::new();
    let (other, bounded) = (batch(&mount, 0, 8), batch(&mount, 0, 8));
    mount.write(bounded.pid(), "compute.max", "1000 100000");
    goes_on(&mount, other.pid(), 0, 200_000);
    wait_until("the job waits for its quota", || {
        let text = shown(&mount, &["explain", &bounded.pid().to_string()]);
        text.contains("compute.max; 1 thread waits")
    });
    let before = waited(&mount, &bounded);
    goes_on(&mount, other.pid(), 0, 200_000);
    let more = waited(&mount, &bounded).values().sum::<u64>() - before.values().sum::<u64>();
    assert!(more < 20_000, "{more} us of 200000 of the other");
}
