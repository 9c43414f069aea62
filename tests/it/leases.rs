//! Tests leases of groups, by `gcgroupfs run --for` and `gcgroup.lease`.

use std::process::Command;

use nix::time::{ClockId, clock_gettime};
use support::{Governed, Mount, artifacts, wait_until};

/// Starts a job with a lease, and waits until its program has registered.
fn job(mount: &Mount, options: &[&str]) -> Governed {
    let mut command = mount.gcgroupfs(&["run", "--name", "job"]);
    command
        .args(options)
        .arg("--")
        .arg(artifacts().load())
        .arg("obey");
    let mut job = Governed::spawn(command);
    job.expect("ready");
    job
}

#[track_caller]
fn ok(mount: &Mount, arguments: &[&str]) -> String {
    let output = mount.gcgroupfs(arguments).output().expect("the command starts");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the time since boot in milliseconds.
fn since_boot() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the clock");
    now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000
}

#[test]
fn job_is_frozen_when_its_lease_ends_until_renewed() {
    let mount = Mount::new();
    let mut job = job(&mount, &["--for", "1s"]);
    assert_eq!(mount.read("job", "gcgroup.lease.action"), "freeze");
    ok(
        &mount,
        &["wait", "job/gcgroup.events", "lease_expired=1", "frozen=1"],
    );
    assert_eq!(mount.read("job", "gcgroup.lease"), "0");
    assert_eq!(mount.number(job.pid(), "gcgroup.events", "frozen"), 1);
    let tree = ok(&mount, &["ls", "--tree"]);
    assert!(tree.contains("LEASE") && tree.contains("expired"), "{tree}");
    let told = ok(&mount, &["explain", &job.pid().to_string()]);
    assert!(told.contains("the lease of /job has expired"), "{told}");
    ok(&mount, &["set", "job/gcgroup.lease", "3600"]);
    assert_eq!(mount.number("job", "gcgroup.events", "lease_expired"), 0);
    assert_eq!(job.ask("launch 1"), "launched 1");
    let json: serde_json::Value = serde_json::from_str(&ok(&mount, &["ls", "--json"])).expect("JSON");
    assert_eq!(json["groups"][0]["lease"]["action"], "freeze");
    assert_eq!(json["groups"][0]["lease"]["expired"], false);
    let left = json["groups"][0]["lease"]["seconds"].as_u64();
    assert!(left.is_some_and(|left| left <= 3600), "{json}");
    ok(&mount, &["set", "job/gcgroup.lease", "max"]);
    assert_eq!(mount.read("job", "gcgroup.lease"), "max");
}

#[test]
fn job_is_killed_when_its_lease_ends() {
    use std::os::unix::process::ExitStatusExt;

    let mount = Mount::new();
    let mut job = job(&mount, &["--for", "1h", "--then", "kill"]);
    mount.write("job", "gcgroup.lease", "1");
    // Its standard input stays open.
    wait_until("the job has ended", || !job.is_running());
    assert_eq!(job.wait().signal(), Some(9));
    wait_until("the job's group is removed", || {
        !mount.path().join("job").exists()
    });
}

#[test]
fn process_that_enters_after_the_end_is_killed() {
    let mount = Mount::new();
    ok(&mount, &["mkdir", "team"]);
    mount.write("team", "gcgroup.lease.action", "kill");
    mount.write("team", "gcgroup.lease", "0");
    let mut process = mount.obedient();
    mount.write("team", "gcgroup.procs", &process.pid().to_string());
    wait_until("the process has ended", || !process.is_running());
    let killed = format!("{} was killed: by gcgroup.lease of its group", process.pid());
    wait_until("the log says why", || mount.log().contains(&killed));
}

#[test]
fn lease_counts_on_without_a_daemon() {
    for (action, seconds) in [("freeze", 2), ("kill", 2)] {
        let mut mount = Mount::new();
        ok(&mount, &["mkdir", "team"]);
        let mut process = mount.obedient();
        mount.write("team", "gcgroup.procs", &process.pid().to_string());
        mount.write("team", "gcgroup.lease.action", action);
        mount.write("team", "gcgroup.lease", &seconds.to_string());
        let end = since_boot() + i64::from(seconds) * 1000;
        mount.kill9();
        wait_until("the lease is over", || since_boot() > end);
        mount.restart();
        assert_eq!(
            mount.number("team", "gcgroup.events", "lease_expired"),
            1,
            "{action}"
        );
        match action {
            "kill" => wait_until("the process has ended", || !process.is_running()),
            _ => wait_until("the process is frozen", || {
                mount.governs(process.pid()) && mount.number(process.pid(), "gcgroup.events", "frozen") == 1
            }),
        }
    }
}

#[test]
fn lease_goes_on_under_the_next_daemon() {
    let mut mount = Mount::new();
    ok(&mount, &["mkdir", "team"]);
    mount.write("team", "gcgroup.lease", "3600");
    mount.kill9();
    mount.restart();
    let left: u64 = mount.read("team", "gcgroup.lease").parse().expect("a number");
    assert!((1..=3600).contains(&left), "{left}");
    assert_eq!(mount.number("team", "gcgroup.events", "lease_expired"), 0);
}

#[test]
fn invalid_leases_start_nothing() {
    let mount = Mount::new();
    for options in [
        &["--for", "0"][..],
        &["--for", "soon"],
        &["--then", "kill"],
        &["--for", "2h", "--then", "resume"],
    ] {
        let mut command: Command = mount.gcgroupfs(&["run"]);
        let output = command.args(options).args(["--", "echo", "ran"]).output();
        let output = output.expect("the command starts");
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(output.stdout.is_empty(), "{options:?}");
    }
}
