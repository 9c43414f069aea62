//! Tests the record of ended processes: `gcgroupfs report`, `gcgroupfs explain` of an ended process, and
//! `exited`, over kills of processes and daemons.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::process::Stdio;

use serde_json::Value;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::{DriverShell, driver_shell};
use crate::rules::{ALICE, BOB};

const MIB: u64 = 1 << 20;

/// Returns the report as JSON, as root or another user sees it.
#[track_caller]
fn report(mount: &Mount, uid: Option<u32>, by: &str) -> Value {
    let arguments = ["report", "--json", "--by", by];
    let mut command = match uid {
        Some(uid) => mount.gcgroupfs_of(uid, &arguments),
        None => mount.gcgroupfs(&arguments),
    };
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Returns the records of the programs of a process, the oldest first.
fn records(report: &Value, pid: i32) -> Vec<Value> {
    let rows = report["rows"].as_array().expect("rows");
    let records = rows.iter().map(|row| row["record"].clone());
    records.filter(|record| record["pid"] == pid).collect()
}

#[track_caller]
fn explain(mount: &Mount, uid: u32, pid: i32) -> String {
    let output = mount.gcgroupfs_of(uid, &["explain", &pid.to_string()]).output();
    let output = output.expect("the command starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn wait_until_empty(mount: &Mount) {
    wait_until("no process is governed", || {
        mount.read("", "gcgroup.procs").is_empty()
    });
}

fn usage_usec(mount: &Mount, directory: &str) -> u64 {
    mount.number(directory, "compute.stat", "usage_usec")
}

/// Returns the sum of a figure over the rows of groups below `above`.
fn sum(report: &Value, above: &str, figure: &str) -> u64 {
    let rows = report["rows"].as_array().expect("rows").iter();
    let rows = rows.filter(|row| {
        let name = row["name"].as_str().expect("a name");
        name == above || name.starts_with(&format!("{above}/"))
    });
    rows.map(|row| row[figure].as_u64().expect("a number")).sum()
}

/// Starts a process in a group that has used memory and the GPU.
#[track_caller]
fn job(mount: &Mount, group: &str) -> DriverShell {
    let mut command = mount.command(driver_shell());
    command.env("GCGROUP_GROUP", group);
    let mut shell = DriverShell::spawn(command);
    work(&mut shell);
    shell
}

#[track_caller]
fn work(shell: &mut DriverShell) {
    assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 0");
    assert_eq!(shell.ask("spin 200 5"), "ok");
}

#[test]
fn records_of_a_thousand_jobs_add_up_over_kills_of_processes_and_daemons() {
    const ROUNDS: u64 = 4;
    const FLOOD: u64 = 250;
    let mut mount = Mount::new();
    fs::create_dir_all(mount.path().join("team/a")).expect("groups");
    fs::create_dir(mount.path().join("team/b")).expect("a group");
    let mut nr_programs = 0;
    for _ in 0..ROUNDS {
        let mut command = mount.command(env!("CARGO_BIN_EXE_hostile_hook"));
        command.env_remove("LD_PRELOAD").arg("group=team/b");
        let mut flood = Governed::spawn(command);
        flood.expect("ready");
        assert_eq!(flood.ask(&format!("flood {FLOOD}")), format!("flooded {FLOOD}"));
        let groups = ["team/a", "team/b", "team", "team/a"];
        let [mut executes, unseen, killed, quits] = groups.map(|group| job(&mount, group));
        executes.exec();
        work(&mut executes);
        quits.quit();
        let pid = killed.pid();
        killed.kill9();
        wait_until("the killed job has left", || !mount.governs(pid));
        mount.kill9();
        unseen.kill9();
        mount.restart();
        wait_until("the survivor has registered again", || {
            mount.governs(executes.pid())
        });
        mount.kill9();
        mount.restart();
        drop((executes, flood));
        wait_until_empty(&mount);
        // Four jobs, one of which executed a second program.
        nr_programs += FLOOD + 1 + 5;
        let report = report(&mount, None, "group");
        assert_eq!(report["total"]["processes"], nr_programs);
    }
    let report_of = |mount: &Mount| report(mount, None, "group");
    let check = |report: &Value, mount: &Mount| {
        assert_eq!(report["total"]["processes"], nr_programs);
        let total = report["total"]["usage_nsec"].as_u64().expect("a number");
        assert!(total > 0);
        assert_eq!(total / 1000, usage_usec(mount, ""));
        for group in ["team", "team/a", "team/b"] {
            let sum = sum(report, &format!("/{group}"), "usage_nsec");
            assert_eq!(sum / 1000, usage_usec(mount, group), "{group}");
        }
    };
    check(&report_of(&mount), &mount);
    let by_process = report(&mount, None, "process");
    let rows = by_process["rows"].as_array().expect("rows");
    let nr_alloc: u64 = rows
        .iter()
        .filter_map(|row| row["record"]["sums"]["nr_alloc"].as_u64())
        .sum();
    assert_eq!(nr_alloc, mount.number("", "memory.stat", "nr_alloc"));
    mount.kill9();
    mount.restart();
    check(&report_of(&mount), &mount);
    assert_eq!(mount.read("", "exited").lines().count(), 64);
}

/// Fewer than the log's lines about a user within 10 seconds.
#[test]
fn short_jobs_have_one_line_in_the_log_and_one_record_each() {
    const JOBS: u64 = 48;
    const LAUNCHES: u64 = 3;
    let mount = Mount::new();
    let load = artifacts().load().to_str().expect("text").to_owned();
    let launches = LAUNCHES.to_string();
    let run = ["run", "--memory-limit", "1G", "--", &load, "launches", &launches];
    let mut pids = Vec::new();
    for _ in 0..JOBS / 2 {
        let pair = [(); 2].map(|()| mount.gcgroupfs(&run).stdout(Stdio::null()).spawn());
        for child in pair {
            let mut child = child.expect("the command starts");
            assert!(child.wait().expect("a child").success());
            pids.push(child.id().cast_signed());
        }
    }
    wait_until_empty(&mount);
    let line = |pid: &i32| format!("job \"job-{pid}\" ended: ");
    wait_until("the last jobs are logged", || {
        let log = mount.log();
        pids.iter().all(|pid| log.contains(&line(pid)))
    });
    let log = mount.log();
    let about = |line: &&str| line.contains("job-");
    assert_eq!(log.lines().filter(about).count() as u64, JOBS, "{log}");
    let report = report(&mount, None, "process");
    assert_eq!(report["total"]["processes"], JOBS);
    for pid in pids {
        let records = records(&report, pid);
        let submitted = &records[0]["sums"]["submitted"][0];
        assert_eq!((records.len(), submitted), (1, &LAUNCHES.into()), "{records:?}");
    }
    let total = report["total"]["usage_nsec"].as_u64().expect("a number");
    assert_eq!(total / 1000, usage_usec(&mount, ""));
}

#[test]
fn record_says_how_and_by_whom_a_process_has_ended() {
    let mut mount = Mount::with(Config::default().arg("--allow-other"));
    let [mut quits, killed, by_file, mut executes, without_daemon] =
        [(); 5].map(|()| DriverShell::start(&mount));
    let pids = [&quits, &killed, &by_file, &executes, &without_daemon].map(DriverShell::pid);
    assert_eq!(quits.ask("alloc linear 4096"), "ok 0");
    mount.write(quits.pid(), "memory.limit", "8192");
    assert!(quits.ask("alloc linear 8192").starts_with("error"));
    quits.quit();
    killed.kill9();
    mount.write(by_file.pid(), "gcgroup.kill", "1");
    executes.exec();
    executes.kill9();
    wait_until("the ends of five programs are recorded", || {
        report(&mount, None, "user")["total"]["processes"] == 5
    });
    mount.kill9();
    without_daemon.kill9();
    mount.restart();
    wait_until_empty(&mount);
    let all = report(&mount, None, "process");
    let how = |pid| {
        let records = records(&all, pid).into_iter();
        let how = records.map(|record| record["how"].as_str().unwrap_or_default().to_owned());
        how.collect::<Vec<_>>()
    };
    let expected: [&[&str]; 5] = [
        &["exit:0"],
        &["signal:9"],
        &["signal:9"],
        &["exec", "signal:9"],
        &[""],
    ];
    assert_eq!(pids.map(how), expected.map(<[_]>::to_vec));
    let by = |pid| {
        records(&all, pid)[0]["by"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(by(pids[1]), "");
    assert!(
        by(pids[2]).starts_with("gcgroup.kill, written by "),
        "{}",
        by(pids[2])
    );
    let shown = explain(&mount, 0, pids[0]);
    for line in [
        "ended with exit status 0",
        "allocations that failed: 1",
        "refused 1 on GPU 0, the last of 8 KiB: memory.limit of process 8 KiB, used 4 KiB",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(explain(&mount, 0, pids[2]).contains("ended by signal 9, killed by gcgroup.kill"));
}

#[test]
fn command_line_is_shown_to_its_user_and_root_only() {
    let mut mount = Mount::with(Config::default().arg("--allow-other"));
    let mut command = mount.command_of(ALICE, &driver_shell());
    command.arg(OsString::from_vec(b"secret\n\x1b[2J\xff".to_vec()));
    command.args(vec!["x".repeat(64 << 10); 30]);
    let shell = DriverShell::spawn(command);
    let pid = shell.pid();
    shell.quit();
    wait_until_empty(&mount);
    for is_restarted in [false, true] {
        if is_restarted {
            mount.kill9();
            mount.restart();
        }
        let args = |uid| {
            let record = records(&report(&mount, uid, "process"), pid).remove(0);
            record["args"].as_str().unwrap_or_default().to_owned()
        };
        for (uid, is_shown) in [(None, true), (Some(ALICE), true), (Some(BOB), false)] {
            let args = args(uid);
            let has =
                args.contains(" secret\\012\\033[2J\\377 xxx") && args.ends_with("...") && args.len() <= 512;
            assert_eq!((has, args.is_empty()), (is_shown, !is_shown), "{uid:?}: {args}");
            let shown = explain(&mount, uid.unwrap_or(0), pid);
            assert_eq!(shown.contains("secret"), is_shown, "{shown}");
        }
        for file in [
            mount.state_dir().join("ended.jsonl"),
            mount.state_dir().join("settings.jsonl"),
        ] {
            let mode = std::os::unix::fs::PermissionsExt::mode(
                &fs::metadata(&file).expect("it is there").permissions(),
            );
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        }
    }
}
