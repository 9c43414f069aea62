//! Tests where the groups of jobs are made, and their names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use support::{Config, Governed, Mount, program_for_all, wait_until};

use super::{MIB, ended, has, members, shared, users_group};
use crate::driver::{DriverShell, driver_shell};
use crate::rules::{ALICE, BOB, Ruled};

#[test]
fn user_gets_a_group_without_set_up() {
    let mount = shared(Config::default());
    let program = program_for_all(&driver_shell(), mount.root());
    let mut command = mount.gcgroupfs_of(ALICE, &["run", "--memory-limit", "1M", "--"]);
    command.arg(&program);
    let mut shell = DriverShell::spawn(command);
    assert_eq!(shell.stderr(), "");
    let own = users_group(ALICE);
    let group = format!("{own}/job-{}", shell.pid());
    assert_eq!(members(&mount, &group), [shell.pid()]);
    let owner = |group: &str| fs::metadata(mount.path().join(group)).expect("it exists").uid();
    assert_eq!([owner("users"), owner(&own), owner(&group)], [0, ALICE, ALICE]);
    assert_eq!(shell.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
    assert!(mount.sh_of(ALICE, &format!("echo 512K > {group}/memory.limit")).0);
    for script in [
        format!("echo 1M > {group}/memory.limit"),
        format!("mkdir {own}/mine"),
    ] {
        assert!(!mount.sh_of(BOB, &script).0, "{script}");
    }
    let bob = DriverShell::spawn({
        let mut command = mount.gcgroupfs_of(BOB, &["run", "--"]);
        command.arg(&program);
        command
    });
    let his = format!("{}/job-{}", users_group(BOB), bob.pid());
    assert_eq!(members(&mount, &his), [bob.pid()]);
    bob.kill9();
    shell.quit();
    wait_until("the users' groups are removed", || !has(&mount, "users"));
}

#[test]
fn taken_or_invalid_name_is_an_error() {
    let mount = shared(Config::default());
    let run = |uid: u32, options: &[&str]| {
        let mut command = mount.gcgroupfs_of(uid, &["run"]);
        command.args(options).args(["--", "echo", "started"]);
        ended(command)
    };
    let holder = Governed::spawn({
        let mut command = mount.gcgroupfs_of(ALICE, &["run", "--name", "train", "--"]);
        command.args(["sh", "-c", "echo ready; read line"]);
        command
    });
    let group = format!("{}/train", users_group(ALICE));
    wait_until("the job has its group", || has(&mount, &group));
    let (status, stderr) = run(ALICE, &["--name", "train"]);
    assert_eq!(status, Some(125));
    assert!(
        stderr.contains("job train: a group of this name exists already"),
        "{stderr}"
    );
    assert_eq!(run(BOB, &["--name", "train"]).0, Some(0));
    // Root's group in place of the one of Bob's jobs does not belong to him; Alice's does not either.
    let his = mount.path().join(users_group(BOB));
    wait_until("Bob's group is removed", || !his.exists());
    fs::create_dir(&his).expect("root may create a group");
    std::os::unix::fs::chown(&his, Some(ALICE), Some(ALICE)).expect("root may change the owner");
    let (status, stderr) = run(BOB, &["--name", "train"]);
    assert_eq!(status, Some(125));
    assert!(stderr.contains("Permission denied"), "{stderr}");
    let (status, stderr) = run(BOB, &["--best-effort", "--name", "train"]);
    assert_eq!(status, Some(0));
    assert!(stderr.contains("warning: "), "{stderr}");
    for name in ["7", "a/b", "", "memory.limit"] {
        assert_eq!(run(0, &["--name", name]).0, Some(2), "{name:?}");
    }
    assert_eq!(run(0, &["--required", "--best-effort"]).0, Some(2));
    drop(holder);
    wait_until("the job's group is removed", || !has(&mount, &group));
}

#[test]
fn job_whose_path_does_not_fit_is_not_started() {
    let mount = Mount::new();
    let parent = "x".repeat(122);
    fs::create_dir(mount.path().join(&parent)).expect("root may create a group");
    let run = |name: &str| {
        let mut command = mount.gcgroupfs(&["run", "--group", &parent, "--compute-max", "10%"]);
        command.args(["--name", name, "--", "true"]);
        ended(command)
    };
    assert_eq!(run("fits1").0, Some(0));
    let (status, stderr) = run("no-room");
    assert_eq!(status, Some(125));
    assert!(stderr.contains("longer than 128 bytes"), "{stderr}");
}

#[test]
fn group_option_says_where_the_job_is_made() {
    let mount = Mount::new();
    let run = |options: &[&str]| {
        let mut command = mount.gcgroupfs(&["run"]);
        command.args(options).arg("--").arg(driver_shell());
        DriverShell::spawn(command)
    };
    let inside = run(&["--group", "team/a"]);
    assert_eq!(members(&mount, "team/a"), [inside.pid()]);
    let named = run(&["--group", "/team/a", "--name", "night"]);
    assert_eq!(members(&mount, "team/a/night"), [named.pid()]);
    let limited = run(&["--group", "team", "--memory-limit", "1M"]);
    let group = format!("team/job-{}", limited.pid());
    assert_eq!(members(&mount, &group), [limited.pid()]);
    assert_eq!(mount.read(&group, "memory.limit"), MIB.to_string());
    drop((named, limited, inside));
    wait_until("the groups are removed", || !has(&mount, "team"));
}

#[test]
fn jobs_started_by_jobs_are_inside_them() {
    let mount = Mount::new();
    let gcgroupfs = support::artifacts().gcgroupfs();
    let mut command = mount.gcgroupfs(&["run", "--name", "outer", "--memory-limit", "1M", "--"]);
    // The first is a child of the job's command, the second replaces it.
    command.args([
        "sh",
        "-c",
        "\"$0\" run --name a -- sh -c 'echo $GCGROUP_GROUP'; exec \"$0\" run --name b -- \"$1\"",
    ]);
    command.arg(&gcgroupfs).arg(driver_shell());
    let mut shell = Governed::spawn(command);
    assert_eq!(shell.line().as_deref(), Some("outer/a"), "{}", shell.stderr());
    let banner = shell.expect("ready ");
    assert!(banner.ends_with(" 0"), "{banner}: {}", shell.stderr());
    assert_eq!(members(&mount, "outer/b"), [shell.pid()]);
    assert_eq!(shell.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
    drop(shell);
    wait_until("the groups are removed", || !has(&mount, "outer"));
}

#[test]
fn rules_say_where_jobs_are_made() {
    let rules = "[[rule]]\nmatch.uid = 1000\ngroup = { name = \"batch/{gid}-x\", memory.limit = \"4M\" }\n\
                 [[rule]]\nmatch.wish = \"asked/*\"\ngroup.name = \"wishes/{wish}\"\n\
                 [[rule]]\nmatch.exe = \"**/driver_shell*\"\ngroup.name = \"gpu\"\n";
    let ruled = Ruled::new(rules);
    let mount = &ruled.mount;
    let program = program_for_all(&driver_shell(), mount.root());
    let run = |uid: u32, options: &[&str], words: &[&Path]| {
        let mut command = mount.gcgroupfs_of(uid, &["run"]);
        command.args(options).arg("--").args(words);
        Governed::spawn(command)
    };
    let start = |uid: u32, options: &[&str]| {
        let mut shell = run(uid, options, &[&program]);
        let banner = shell.expect("ready ");
        assert!(banner.ends_with(" 0"), "{banner}: {}", shell.stderr());
        shell
    };
    let alice = start(ALICE, &["--memory-limit", "1M"]);
    let group = format!("batch/1000-x/job-{}", alice.pid());
    assert_eq!(members(mount, &group), [alice.pid()]);
    assert_eq!(mount.read("batch/1000-x", "memory.limit"), (4 * MIB).to_string());
    let asked = start(BOB, &["--group", "asked/a", "--name", "mine"]);
    assert_eq!(members(mount, "wishes/asked/a/mine"), [asked.pid()]);
    let bob = start(BOB, &["--name", "direct"]);
    assert_eq!(members(mount, "gpu/direct"), [bob.pid()]);

    // The shell is in no rule, the program that it starts is: it may not escape its group by the job's.
    let words = [
        Path::new("sh"),
        Path::new("-c"),
        Path::new("\"$0\"; true"),
        &program,
    ];
    let mut escaped = run(BOB, &["--memory-limit", "1M"], &words);
    let banner = escaped.expect("ready ");
    assert!(banner.ends_with(" 802"), "{banner}");
    let mut other = run(BOB, &["--best-effort", "--memory-limit", "1M"], &words);
    let banner = other.expect("ready ");
    assert!(banner.ends_with(" 0"), "{banner}");
    let pid = banner.split(' ').nth(1).expect("a pid");
    assert_eq!(mount.read("gpu", "gcgroup.procs"), pid);
}

#[test]
fn job_is_addressed_by_its_name_by_its_user() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let mut command = mount.gcgroupfs_of(ALICE, &["run", "--name", "night", "--memory-limit", "1M", "--"]);
    command.args(["sleep", "1000"]);
    let _job = Governed::spawn(command);
    let path = format!("{}/night", users_group(ALICE));
    wait_until("the job has its limit", || {
        fs::read_to_string(mount.file(&path, "memory.limit")).is_ok_and(|limit| limit == "1048576\n")
    });
    let of = |uid, arguments: &[&str]| {
        let output = mount
            .gcgroupfs_of(uid, arguments)
            .output()
            .expect("gcgroupfs runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    };
    assert_eq!(
        of(ALICE, &["get", "night/memory.limit"]).as_deref(),
        Some("1048576\n")
    );
    assert!(of(ALICE, &["set", "/gcgroup/night/memory.limit", "2M"]).is_some());
    assert_eq!(mount.read(&path, "memory.limit"), "2097152");
    for arguments in [
        &["explain", "night"][..],
        &["freeze", "--wait", "night"],
        &["thaw", "night"],
        &["wait", "--timeout", "60", "night/gcgroup.events", "frozen=0"],
        &["hold", "--freeze", "night", "--", "true"],
    ] {
        assert!(of(ALICE, arguments).is_some(), "{arguments:?}");
    }
    assert_eq!(of(BOB, &["get", "night/memory.limit"]), None);
    // A group in the root has precedence.
    fs::create_dir(mount.path().join("night")).expect("a new group");
    assert_eq!(
        of(ALICE, &["get", "night/memory.limit"]).as_deref(),
        Some("max\n")
    );
}
