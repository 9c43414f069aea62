//! Tests GPU time sharing: real processes on a simulated GPU, scheduled by the daemon's arbiter.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use support::{Config, Governed, Mount, wait_until};

use crate::contended::{batch, goes_on};
use crate::driver::{Dir, DriverShell};

/// Returns how often the daemon's arbiter thread has gone to sleep.
fn sleeps(mount: &Mount) -> u64 {
    let daemon = mount.daemon().expect("the daemon runs");
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).expect("the daemon runs");
    let is_arbiter =
        |task: &Path| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == "arbiter\n");
    let task = tasks
        .flatten()
        .map(|entry| entry.path())
        .find(|task| is_arbiter(task))
        .expect("one thread is the arbiter");
    let status = fs::read_to_string(task.join("status")).expect("the thread lives");
    status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .and_then(|number| number.trim().parse().ok())
        .expect("a number")
}

/// Waits until the arbiter wakes at most `woken` times while `something` runs. Retries, because earlier
/// notifications may reach the arbiter late.
fn sleeps_through(mount: &Mount, woken: u64, something: impl Fn()) {
    wait_until("the arbiter sleeps", || {
        let before = sleeps(mount);
        something();
        sleeps(mount) <= before + woken
    });
}

/// Waits until `other` uses less than half of `usec` microseconds of GPU time while `first` uses `usec`.
/// Without turns both would use the same; with turns the first uses most of the GPU whenever the machine lets
/// it submit in time.
fn has_most(mount: &Mount, [first, other]: [&Governed; 2], usec: u64) {
    wait_until("the first process uses most of the GPU", || {
        let before = used(mount, other);
        goes_on(mount, first.pid(), 0, usec);
        used(mount, other) - before < usec / 2
    });
}

fn throttled(mount: &Mount, job: &Governed) -> u64 {
    mount.number(job.pid(), "compute.stat", "nr_throttled")
}

fn used(mount: &Mount, job: &Governed) -> u64 {
    mount.truth().usage_usec(job.pid(), 0)
}

#[test]
fn equal_priorities_close_no_gate_and_arbiter_sleeps() {
    let mount = Mount::with(Config::default().measured_when_read());
    let jobs = [batch(&mount, 0, 8), batch(&mount, 0, 8)];
    for job in &jobs {
        goes_on(&mount, job.pid(), 0, 2_000);
    }
    sleeps_through(&mount, 0, || {
        for job in &jobs {
            goes_on(&mount, job.pid(), 0, 50_000);
        }
    });
    for job in &jobs {
        assert_eq!(throttled(&mount, job), 0);
    }
}

#[test]
fn arbiter_sleeps_beside_an_idle_process() {
    let mount = Mount::new();
    let neighbour = DriverShell::start(&mount);
    Dir::of(&mount, neighbour.pid()).write("compute.priority", 12);
    let job = batch(&mount, 0, 2);
    goes_on(&mount, job.pid(), 0, 2_000);
    // A process reports that it is busy once, and again only after it was seen idle.
    sleeps_through(&mount, 3, || goes_on(&mount, job.pid(), 0, 100_000));
}

#[test]
fn strict_policy_runs_higher_priority_first() {
    let mount = Mount::with(Config::default().arg("--policy").arg("strict"));
    assert_eq!(mount.read("", "compute.policy"), "strict");
    let low = batch(&mount, 0, 10);
    goes_on(&mount, low.pid(), 0, 2_000);
    let high = batch(&mount, 0, 2);
    goes_on(&mount, high.pid(), 0, 20_000);
    has_most(&mount, [&high, &low], 400_000);
    assert_eq!(throttled(&mount, &high), 0);
    assert!(throttled(&mount, &low) > 0);
    drop(high);
    goes_on(&mount, low.pid(), 0, 50_000);
}

#[test]
fn weights_divide_time_and_lowest_priority_progresses() {
    let mount = Mount::new();
    let (high, low) = (batch(&mount, 0, 3), batch(&mount, 0, 9));
    goes_on(&mount, high.pid(), 0, 20_000);
    has_most(&mount, [&high, &low], 600_000);
    goes_on(&mount, low.pid(), 0, 2_000);
}

#[test]
fn written_priority_and_policy_apply_at_once() {
    let mount = Mount::new();
    let (one, other) = (batch(&mount, 0, 8), batch(&mount, 0, 8));
    goes_on(&mount, one.pid(), 0, 2_000);
    mount.write("", "compute.policy", "strict");
    mount.write(one.pid(), "compute.priority", "9");
    wait_until("the first process is throttled", || throttled(&mount, &one) > 0);
    mount.write(one.pid(), "compute.priority", "7");
    wait_until("the second process is throttled", || {
        throttled(&mount, &other) > 0
    });
    mount.write(one.pid(), "compute.priority", "8");
    goes_on(&mount, one.pid(), 0, 20_000);
    goes_on(&mount, other.pid(), 0, 20_000);
}

#[test]
fn quota_bounds_gpu_time_of_a_process() {
    let mount = Mount::new();
    let job = batch(&mount, 0, 8);
    mount.write(job.pid(), "compute.max", "20000 100000");
    assert_eq!(mount.read(job.pid(), "compute.max"), "20000 100000");
    wait_until("the process is throttled by its quota", || {
        throttled(&mount, &job) > 5
    });
    let (before, began) = (used(&mount, &job), std::time::Instant::now());
    goes_on(&mount, job.pid(), 0, 200_000);
    // Ten periods' quota takes at least nine periods, in addition to the initial quota.
    let took = u64::try_from(began.elapsed().as_micros()).expect("the duration fits");
    let had = used(&mount, &job) - before;
    assert!(had <= took / 5 + 40_000, "{had} in {took}");
    mount.write(job.pid(), "compute.max", "max");
    let waited = || mount.number(job.pid(), "compute.stat", "throttled_usec");
    goes_on(&mount, job.pid(), 0, 20_000);
    let before = waited();
    goes_on(&mount, job.pid(), 0, 100_000);
    assert_eq!(waited(), before, "the process is throttled without a quota");
}

#[test]
fn group_quota_bounds_sum_of_members_gpu_time() {
    let mount = Mount::new();
    fs::create_dir(mount.path().join("team")).expect("root may create a group");
    let jobs = [batch(&mount, 0, 8), batch(&mount, 0, 8)];
    for job in &jobs {
        mount.write("team", "gcgroup.procs", &job.pid().to_string());
    }
    mount.write("team", "compute.max", "20000 100000");
    for job in &jobs {
        wait_until("each member is throttled by the group's quota", || {
            throttled(&mount, job) > 5
        });
    }
    let all = || jobs.iter().map(|job| used(&mount, job)).sum::<u64>();
    let (before, began) = (all(), std::time::Instant::now());
    wait_until("the members have used ten periods' quota", || {
        all() - before >= 200_000
    });
    let took = u64::try_from(began.elapsed().as_micros()).expect("the duration fits");
    let had = all() - before;
    assert!(had <= took / 5 + 40_000, "{had} in {took}");
    // A process outside the group is not bounded.
    let other = batch(&mount, 0, 8);
    wait_until("the process outside uses more than the quota", || {
        let before = [used(&mount, &other), all()];
        goes_on(&mount, other.pid(), 0, 200_000);
        used(&mount, &other) - before[0] > all() - before[1]
    });
}

#[test]
fn work_queued_before_quota_is_counted() {
    let mount = Mount::new();
    let mut job = mount.obedient();
    assert_eq!(job.ask("launch 50 10000"), "launched 50");
    mount.write(job.pid(), "compute.max", "100000 1000000");
    assert_eq!(job.ask("sync"), "synchronised");
    // Usage includes what was measured while no process read the file; the last kernels are charged a moment
    // after they have ended.
    wait_until("500 ms of kernels are charged", || {
        mount.number(job.pid(), "compute.stat", "usage_usec") >= 450_000
    });
}

#[test]
fn quota_on_one_gpu_does_not_affect_another() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let jobs = [batch(&mount, 0, 8), batch(&mount, 1, 8)];
    for job in &jobs {
        mount.write(format!("{}/0", job.pid()), "compute.max", "1000 1000000");
    }
    wait_until("the process with a quota is throttled", || {
        throttled(&mount, &jobs[0]) > 0
    });
    goes_on(&mount, jobs[1].pid(), 1, 100_000);
    assert_eq!(throttled(&mount, &jobs[1]), 0);
}

#[test]
fn gpu_time_is_measured_while_it_is_read() {
    let mount = Mount::new();
    let job = batch(&mount, 0, 8);
    let usage = || mount.number(job.pid(), "compute.stat", "usage_usec");
    usage();
    wait_until("GPU time is charged", || usage() > 0);
    let (measured, truly) = (usage(), used(&mount, &job));
    goes_on(&mount, job.pid(), 0, 300_000);
    let truly = used(&mount, &job) - truly;
    wait_until("nine tenths of the GPU time are charged", || {
        usage() - measured >= truly / 10 * 9
    });
    let (pid, charged) = (job.pid(), usage());
    assert_eq!(
        mount.number(format!("{pid}/0"), "compute.stat", "usage_usec") / 1_000_000,
        charged / 1_000_000
    );
    drop(job);
    wait_until("the process is no longer governed", || !mount.governs(pid));
    assert!(
        mount.number("", "compute.stat", "usage_usec") >= charged,
        "the totals lost the ended process's GPU time"
    );
}

#[test]
fn throttled_process_runs_without_daemon_and_is_held_after() {
    let mut mount = Mount::with(Config::default().arg("--grace").arg("100"));
    mount.write("", "compute.policy", "strict");
    let (high, low) = (batch(&mount, 0, 2), batch(&mount, 0, 10));
    wait_until("the low-priority process is throttled", || {
        throttled(&mount, &low) > 0
    });
    goes_on(&mount, high.pid(), 0, 20_000);
    let charged = mount.number(high.pid(), "compute.stat", "usage_usec");
    mount.kill9();
    // Far more time than occasional turns by patience give, so it is no longer held.
    goes_on(&mount, low.pid(), 0, 100_000);
    mount.restart();
    assert_eq!(
        mount.read("", "compute.policy"),
        "strict",
        "the written policy was lost"
    );
    wait_until("both processes have registered again", || {
        mount.governs(high.pid()) && mount.governs(low.pid())
    });
    let before = throttled(&mount, &low);
    wait_until("the low-priority process is throttled again", || {
        throttled(&mount, &low) > before
    });
    assert!(mount.number(high.pid(), "compute.stat", "usage_usec") >= charged);
}

#[test]
fn policy_comes_from_command_line_file_or_configuration() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("gcgroupfs.toml");
    let name = path.to_str().expect("the path is UTF-8");
    fs::write(&path, "[compute]\npolicy = \"strict\"\n").expect("the file is writable");
    let mut mount = Mount::with(Config::default().arg("--config").arg(name));
    let policy = |mount: &Mount| mount.read("", "compute.policy");
    let reload = |mount: &Mount| {
        kill(mount.daemon().expect("the daemon runs"), Signal::SIGHUP).expect("the daemon runs")
    };
    assert_eq!(policy(&mount), "strict");

    fs::write(&path, "[compute]\nwindow_usec = 1000\n").expect("the file is writable");
    reload(&mount);
    wait_until("the policy of the new configuration applies", || {
        policy(&mount) == "weighted"
    });

    fs::write(&path, "[compute]\npolicy = 7\n").expect("the file is writable");
    reload(&mount);
    wait_until("the daemon logs the configuration error", || {
        mount.log().contains(&format!("{name}:2:10: "))
    });
    assert_eq!(
        policy(&mount),
        "weighted",
        "the policy changed with an invalid configuration"
    );

    fs::write(&path, "[compute]\npolicy = \"weighted\"\n").expect("the file is writable");
    mount.write("", "compute.policy", "strict");
    reload(&mount);
    wait_until("the configuration is read again", || {
        mount.log().matches("read again").count() == 2
    });
    assert_eq!(
        policy(&mount),
        "strict",
        "the configuration overrode the written policy"
    );
    mount.restart();
    assert_eq!(policy(&mount), "strict", "the restart lost the written policy");
}

#[test]
fn invalid_configuration_is_refused_with_its_position() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("wrong.toml");
    fs::write(&path, "[compute]\ncycle_usec = 1\n").expect("the file is writable");
    let mount = Mount::new();
    let check = |arguments: &[&str]| {
        let output = mount.gcgroupfs(arguments).output().expect("the command runs");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let name = path.to_str().expect("the path is UTF-8");
    let position = format!("{name}:2:14: ");
    let (ok, said) = check(&["check-config", name]);
    assert!(!ok && said.contains(&position), "{said}");
    let (ok, said) = check(&[
        "mount",
        "--config",
        name,
        directory.path().to_str().expect("the path is UTF-8"),
    ]);
    assert!(!ok && said.contains(&position), "{said}");
    fs::write(&path, "[compute]\ncycle_usec = 10_000\n").expect("the file is writable");
    assert_eq!(check(&["check-config", name]), (true, String::new()));
}

#[test]
fn several_processes_are_frozen_at_once_and_awaited() {
    for config in [Config::default(), Config::default().arg("--no-fuse")] {
        let mount = Mount::with(config);
        let jobs = [batch_anywhere(&mount), batch_anywhere(&mount)];
        let pids = jobs.each_ref().map(|job| job.pid().to_string());
        let run = |arguments: &[&str]| {
            let output = mount.gcgroupfs(arguments).output().expect("the command runs");
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        assert_eq!(run(&["freeze", "--wait", &pids[0], &pids[1]]).0, Some(0));
        let stopped = jobs.each_ref().map(|job| used(&mount, job));
        let events = |pid: &str| {
            let output = mount
                .gcgroupfs(&["get", &format!("{pid}/gcgroup.events")])
                .output();
            String::from_utf8(output.expect("the command runs").stdout).expect("text")
        };
        assert!(pids.iter().all(|pid| events(pid).contains("frozen 1\n")));
        assert_eq!(jobs.each_ref().map(|job| used(&mount, job)), stopped);
        assert_eq!(run(&["thaw", &pids[0], &pids[1]]), (Some(0), String::new()));
        for job in &jobs {
            goes_on(&mount, job.pid(), 0, 2_000);
        }
        let (code, said) = run(&["freeze", &pids[0], "1", &pids[1]]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("1/compute.freeze"), "{said}");
        wait_until("the second process is frozen and drained", || {
            events(&pids[1]).contains("frozen 1\n")
        });
    }
}

/// Starts a batch job; also works where nothing is mounted.
fn batch_anywhere(mount: &Mount) -> Governed {
    mount.load(&[
        "throughput",
        "--kernel-usec",
        "500",
        "--depth",
        "4",
        "--duration",
        "3600",
    ])
}

#[test]
fn freeze_without_acknowledgement_is_not_reported_done() {
    let mut mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    assert_eq!(shell.ask("spin 1000000 60"), "ok");
    let mut freeze = Governed::spawn(mount.gcgroupfs(&["freeze", "--wait", &shell.pid().to_string()]));
    wait_until("the freeze request is written", || {
        mount.read(shell.pid(), "compute.freeze") == "1"
    });
    mount.kill9();
    assert_eq!(freeze.wait().code(), Some(1));
    assert!(!freeze.stderr().is_empty());
}

#[test]
fn slow_freeze_reports_timeout_and_stays() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask("spin 100000 20"), "ok");
    let pid = shell.pid().to_string();
    let output = mount
        .gcgroupfs(&["freeze", "--wait", "--timeout", "0.01", &pid])
        .output()
        .expect("the command runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("still busy"));
    assert_eq!(dir.number("compute.freeze"), 1);
    shell.kill9();
}
