//! Tests permissions to write: owners within the bounds that root has set, other users nothing; and groups
//! that root has delegated.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use support::{Config, Mount, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};

pub(crate) const ALICE: u32 = 1000;
const BOB: u32 = 1001;

/// Shell messages for a write denied by the kernel (EACCES) or by the daemon (EPERM).
const DENIED: &str = "Permission denied";
pub(crate) const NOT_PERMITTED: &str = "Operation not permitted";

/// Mounts with `--allow-other`, visible to all users.
pub(crate) fn shared() -> Mount {
    Mount::with(Config::default().arg("--allow-other"))
}

#[track_caller]
pub(crate) fn shell_of(mount: &Mount, uid: u32) -> DriverShell {
    DriverShell::spawn(mount.command_of(uid, &driver_shell()))
}

/// Runs a script as user `uid`; it must succeed without output.
#[track_caller]
pub(crate) fn may(mount: &Mount, uid: u32, script: &str) {
    assert_eq!(mount.sh_of(uid, script), (true, String::new()), "{script}");
}

/// Runs a script as user `uid`; it must fail with the message `because`.
#[track_caller]
pub(crate) fn may_not(mount: &Mount, uid: u32, script: &str, because: &str) {
    let (done, said) = mount.sh_of(uid, script);
    assert!(!done && said.contains(because), "{script}: {said}");
}

/// Creates a group as root and changes its owner to `uid`.
#[track_caller]
pub(crate) fn delegate(mount: &Mount, name: &str, uid: u32) {
    let path = mount.path().join(name);
    fs::create_dir(&path).expect("root may create a group");
    chown(&path, Some(uid), Some(uid)).expect("root may change the owner");
}

#[test]
fn owner_may_only_tighten_what_root_has_set() {
    let mount = shared();
    let process = shell_of(&mount, ALICE);
    let pid = process.pid();
    // Columns: file; what the owner may set before root does; what root sets; a tighter value, which can be
    // undone; a value beyond root's bound.
    for (file, free, root, tighter, beyond) in [
        ("memory.limit", "max", "1000000", "4096", "1000001"),
        ("0/memory.limit", "1T", "8192", "0", "max"),
        ("compute.priority", "8", "10", "15", "9"),
        ("0/compute.priority", "12", "9", "10", "8"),
        (
            "compute.max",
            "max 100000",
            "50000 100000",
            "10000 100000",
            "50001 100000",
        ),
        ("compute.freeze", "0", "1", "1", "0"),
        ("0/compute.freeze", "0", "1", "1", "0"),
    ] {
        let path = format!("{pid}/{file}");
        let write = |value: &str| format!("echo {value} > {path}");
        may(&mount, ALICE, &write(free));
        mount.write(pid, file, root);
        may(&mount, ALICE, &write(tighter));
        may(&mount, ALICE, &write(root));
        may_not(&mount, ALICE, &write(beyond), NOT_PERMITTED);
        let shown = mount.read(pid, file);
        assert_eq!(shown, root, "{path}: a refused write changed the value");
        may_not(&mount, BOB, &write(tighter), DENIED);
        assert_eq!(
            mount.sh_of(BOB, &format!("cat {path}")),
            (true, format!("{shown}\n"))
        );
    }
}

#[test]
fn users_priority_number_stays_above_roots_or_default() {
    let mount = shared();
    let mut command = mount.command_of(ALICE, &driver_shell());
    let process = DriverShell::spawn({
        command.env("GCGROUP_PRIORITY", "0");
        command
    });
    let pid = process.pid();
    let dir = Dir::of(&mount, pid);
    assert_eq!(
        dir.number("compute.priority"),
        8,
        "the user's priority was not raised to the lowest permitted"
    );
    wait_until("the log reports the refused priority", || {
        mount.log().contains("does not get priority 0: 8 is the lowest")
    });
    let write = |value: u64| format!("echo {value} > {pid}/compute.priority");
    may_not(&mount, ALICE, &write(7), NOT_PERMITTED);
    let path = format!("{pid}/compute.priority");
    let mut set = mount.gcgroupfs_of(ALICE, &["set", &path, "7"]);
    assert!(
        !set.output().expect("the command starts").status.success(),
        "the socket accepted the refused write"
    );
    may(&mount, ALICE, &write(9));
    may(&mount, ALICE, &write(8));

    for group in ["high", "low"] {
        fs::create_dir(mount.path().join(group)).expect("root may create a group");
        mount.write(group, "gcgroup.procs", &pid.to_string());
        let priority: u64 = if group == "high" { 3 } else { 12 };
        mount.write(group, "compute.priority", &priority.to_string());
        may_not(&mount, ALICE, &write(priority - 1), NOT_PERMITTED);
        assert_eq!(
            dir.number("compute.priority"),
            priority.max(8),
            "the priority is neither the earlier one nor the bound"
        );
        may(&mount, ALICE, &write(priority));
        assert_eq!(dir.number("compute.priority"), priority);
    }
    // A user's own group is bound, too. Root's setting on the process itself takes precedence over the
    // group's.
    delegate(&mount, "team", ALICE);
    may(&mount, ALICE, "echo 8 > team/compute.priority");
    may_not(&mount, ALICE, "echo 7 > team/compute.priority", NOT_PERMITTED);
    dir.write("compute.priority", 5);
    may(&mount, ALICE, &write(6));
    may(&mount, ALICE, &write(5));
}

#[test]
fn roots_freeze_binds_owner_and_owners_freeze_binds_others() {
    let mount = shared();
    let process = shell_of(&mount, ALICE);
    let dir = Dir::of(&mount, process.pid());
    let write = |value: u32| format!("echo {value} > {}/compute.freeze", process.pid());
    may(&mount, ALICE, &write(1));
    may_not(&mount, BOB, &write(0), DENIED);
    may(&mount, ALICE, &write(0));
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    may_not(&mount, ALICE, &write(0), NOT_PERMITTED);
    let mut thaw = mount.gcgroupfs_of(ALICE, &["thaw", &process.pid().to_string()]);
    assert!(
        !thaw.output().expect("the command starts").status.success(),
        "the socket accepted the refused thaw"
    );
    assert!(dir.is_frozen());
    dir.write("compute.freeze", 0);
    may(&mount, ALICE, &write(1));
    may(&mount, ALICE, &write(0));
}

#[test]
fn users_cannot_make_groups_or_write_in_the_root() {
    let mount = shared();
    let process = shell_of(&mount, ALICE);
    for script in [
        "mkdir mine".to_owned(),
        format!("echo {} > gcgroup.procs", process.pid()),
        "echo strict > compute.policy".to_owned(),
        format!("mkdir {}/mine", BOB),
    ] {
        let (done, said) = mount.sh_of(ALICE, &script);
        assert!(!done, "{script}: {said}");
    }
    may_not(&mount, ALICE, "chmod 777 .", NOT_PERMITTED);
    may_not(
        &mount,
        ALICE,
        &format!("chown 1001 {}", process.pid()),
        NOT_PERMITTED,
    );
    may_not(
        &mount,
        ALICE,
        &format!("mkdir {}/mine", process.pid()),
        NOT_PERMITTED,
    );
    let mkdir = mount
        .gcgroupfs_of(ALICE, &["mkdir", "mine"])
        .output()
        .expect("the command starts");
    assert!(!mkdir.status.success(), "the socket accepted the refused mkdir");
    assert!(!mount.path().join("mine").exists());
}

#[test]
fn delegated_group_may_be_divided_by_its_owner() {
    let mount = shared();
    delegate(&mount, "team", ALICE);
    may(
        &mount,
        ALICE,
        "mkdir team/a team/a/deep && rmdir team/a/deep && mkdir -m 700 team/b",
    );
    assert_eq!(
        mount.sh_of(ALICE, "stat -c '%u %a' team/a team/b").1,
        "1000 755\n1000 700\n"
    );
    may_not(&mount, BOB, "mkdir team/c", DENIED);
    may_not(&mount, BOB, "rmdir team/a", DENIED);
    may_not(&mount, BOB, "ls team/b", DENIED);
    may_not(&mount, BOB, "echo 1 > team/a/memory.limit", DENIED);
    may_not(&mount, BOB, "chown 1001 team/a", NOT_PERMITTED);
    may_not(&mount, ALICE, "chown 1001 team/a", NOT_PERMITTED);
    may_not(&mount, ALICE, "rmdir team", DENIED);
    may(&mount, ALICE, "chmod 777 team/a");
    may(
        &mount,
        BOB,
        "mkdir team/a/bobs && echo 4096 > team/a/bobs/memory.limit",
    );
    may_not(&mount, BOB, "echo 4096 > team/a/memory.limit", DENIED);
    may_not(&mount, ALICE, "echo max > team/a/bobs/memory.limit", DENIED);
    // Write permission on a directory permits removing its entries.
    may(&mount, ALICE, "rmdir team/a/bobs");
}

#[test]
fn unix_group_members_share_directory_by_its_mode() {
    let mount = shared();
    delegate(&mount, "team", ALICE);
    let path = mount.path().join("team");
    chown(&path, None, Some(BOB)).expect("root may change the owner");
    may_not(&mount, BOB, "mkdir team/bobs", DENIED);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).expect("root may change the mode");
    may(&mount, BOB, "mkdir team/bobs");
    assert_eq!(mount.sh_of(BOB, "stat -c %u team/bobs").1, "1001\n");
}

#[test]
fn roots_group_settings_bind_owner_and_children() {
    let mount = shared();
    delegate(&mount, "team", ALICE);
    may(
        &mount,
        ALICE,
        "mkdir team/a && echo 1M > team/memory.limit && echo max > team/memory.limit",
    );
    mount.write("team", "memory.limit", "1048576");
    mount.write("team", "compute.freeze", "1");
    mount.write("team", "compute.priority", "10");
    may_not(&mount, ALICE, "echo 1048577 > team/memory.limit", NOT_PERMITTED);
    may_not(&mount, ALICE, "echo 0 > team/compute.freeze", NOT_PERMITTED);
    may_not(&mount, ALICE, "echo 9 > team/compute.priority", NOT_PERMITTED);
    may(
        &mount,
        ALICE,
        "echo 4096 > team/memory.limit && echo 1048576 > team/memory.limit",
    );
    may(
        &mount,
        ALICE,
        "echo 1T > team/a/memory.limit && echo 0 > team/a/compute.freeze",
    );

    let mut process = shell_of(&mount, ALICE);
    mount.write("team/a", "gcgroup.procs", &process.pid().to_string());
    let dir = Dir::of(&mount, process.pid());
    wait_until("the process is frozen with its group", || dir.is_frozen());
    may(
        &mount,
        ALICE,
        &format!("echo 0 > {}/compute.freeze", process.pid()),
    );
    assert!(dir.is_frozen());
    assert_eq!(process.ask("alloc linear 1048577"), "error 2");
    assert_eq!(process.ask("alloc linear 1048576"), "ok 0");
    mount.write("team", "compute.freeze", "0");
    wait_until("the process is thawed with its group", || !dir.is_frozen());
}

#[test]
fn user_moves_only_own_processes_within_own_groups() {
    let mount = shared();
    delegate(&mount, "team", ALICE);
    delegate(&mount, "other", ALICE);
    may(&mount, ALICE, "mkdir team/a team/b");
    let (alice, bob) = (shell_of(&mount, ALICE), shell_of(&mount, BOB));
    let (mine, his) = (alice.pid(), bob.pid());
    let to = |pid: i32, group: &str| format!("echo {pid} > {group}/gcgroup.procs");
    may_not(&mount, ALICE, &to(mine, "team"), NOT_PERMITTED);
    for pid in [mine, his] {
        mount.write("team", "gcgroup.procs", &pid.to_string());
    }
    may(&mount, ALICE, &to(mine, "team/a"));
    may(&mount, ALICE, &to(mine, "team/b"));
    assert_eq!(mount.read("team/b", "gcgroup.procs"), mine.to_string());
    may_not(&mount, ALICE, &to(mine, "."), DENIED);
    may_not(&mount, ALICE, &to(mine, "other"), NOT_PERMITTED);
    may_not(&mount, ALICE, &to(his, "team/a"), NOT_PERMITTED);
    may_not(&mount, BOB, &to(his, "team/a"), DENIED);
    may_not(&mount, BOB, &to(mine, "team/a"), DENIED);
    assert_eq!(mount.read("team", "gcgroup.procs"), his.to_string());
    // Bob may enter the group, but only with his own processes.
    may(&mount, ALICE, "chmod 777 team");
    may(&mount, BOB, "mkdir team/bobs");
    may_not(&mount, BOB, &to(mine, "team/bobs"), NOT_PERMITTED);
    may_not(&mount, BOB, &to(his, "team/bobs"), NOT_PERMITTED);
    may(&mount, ALICE, &to(mine, "team"));
    // Only root may move a process out of a group that root has frozen: the move would thaw it.
    may(&mount, ALICE, &to(mine, "team/a"));
    mount.write("team/a", "compute.freeze", "1");
    may_not(&mount, ALICE, &to(mine, "team/b"), NOT_PERMITTED);
    mount.write("team/a", "compute.freeze", "0");
    may(&mount, ALICE, "echo 1 > team/a/compute.freeze");
    may(&mount, ALICE, &to(mine, "team/b"));
}

#[test]
fn unreadable_group_is_hidden_on_the_socket() {
    let mount = shared();
    delegate(&mount, "team", ALICE);
    may(&mount, ALICE, "mkdir team/a team/a/b");
    let process = shell_of(&mount, ALICE);
    mount.write("team/a/b", "gcgroup.procs", &process.pid().to_string());
    let told = |uid: u32| {
        let output = mount.gcgroupfs_of(uid, &["ls", "--json"]).output();
        let all: serde_json::Value =
            serde_json::from_slice(&output.expect("the command starts").stdout).expect("JSON");
        let shown = &all["processes"][0];
        assert_eq!(shown["pid"], process.pid());
        let path = shown["group"].as_str().map(str::to_owned);
        let mut groups = all["groups"].as_array().expect("a list").iter();
        assert_eq!(groups.any(|group| group["path"] == "team/a/b"), path.is_some());
        path
    };
    let path = Some("team/a/b".to_owned());
    for (a, b, is_open) in [
        ("755", "755", true),
        ("755", "711", true),
        ("755", "700", false),
        // With execute but not read permission, entries are readable by name but not listed.
        ("711", "755", false),
        ("744", "755", false),
        ("700", "755", false),
    ] {
        may(&mount, ALICE, &format!("chmod {a} team/a && chmod {b} team/a/b"));
        assert_eq!(told(BOB), path.clone().filter(|_| is_open), "{a} {b}");
        assert_eq!(told(ALICE), path);
        assert_eq!(told(0), path);
    }
    let table = mount
        .gcgroupfs_of(BOB, &["ls"])
        .output()
        .expect("the command starts");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(!table.contains("team/a"), "{table}");
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o700)).expect("root may change the mode");
    let refused = mount
        .gcgroupfs_of(BOB, &["ls"])
        .output()
        .expect("the command starts");
    assert!(
        !refused.status.success() && refused.stdout.is_empty(),
        "{refused:?}"
    );
}

#[test]
fn mode_and_owner_of_file_decide_as_in_kernfs() {
    let mut mount = shared();
    let mut process = shell_of(&mount, 0);
    assert_eq!(process.ask("alloc linear 512"), "ok 0");
    let pid = process.pid();
    delegate(&mount, "team", 0);
    mount.write("team", "gcgroup.procs", &pid.to_string());
    let root = |script: &str| may(&mount, 0, script);
    // By the file and by the socket alike.
    let check = |mount: &Mount, uid, file: &str, value: &str, is_allowed: bool| {
        let (done, said) = mount.sh_of(uid, &format!("echo {value} > {file}"));
        assert_eq!(done, is_allowed, "{uid} {file}: {said}");
        let mut set = mount.gcgroupfs_of(uid, &["set", file, value]);
        let set = set.output().expect("the command starts");
        assert_eq!(set.status.success(), is_allowed, "{uid} {file}: {set:?}");
    };
    for path in [pid.to_string(), "team".to_owned()] {
        let limit = format!("{path}/0/memory.limit");
        check(&mount, ALICE, &limit, "4096", false);
        root(&format!("chown {ALICE} {limit}"));
        check(&mount, ALICE, &limit, "8192", true);
        check(&mount, BOB, &limit, "4096", false);
        check(&mount, ALICE, &format!("{path}/memory.limit"), "4096", false);
        root(&format!("echo 4096 > {limit}"));
        check(&mount, ALICE, &limit, "8192", false);
        check(&mount, ALICE, &limit, "1024", true);
        root(&format!("chgrp {BOB} {limit} && chmod g+w,u-w {limit}"));
        check(&mount, BOB, &limit, "2048", true);
        check(&mount, ALICE, &limit, "1024", false);
        root(&format!("chmod 444 {limit}"));
        for uid in [ALICE, BOB] {
            check(&mount, uid, &limit, "1024", false);
        }
        may_not(&mount, 0, &format!("echo 1024 > {limit}"), DENIED);
        root(&format!("chmod 600 {limit} {path}/memory.current"));
        for uid in [ALICE, BOB] {
            let is_owner = uid == ALICE;
            assert_eq!(mount.sh_of(uid, &format!("cat {limit}")).0, is_owner);
            let get = mount.gcgroupfs_of(uid, &["get", &limit]).output();
            assert_eq!(get.expect("the command starts").status.success(), is_owner);
            may_not(&mount, uid, &format!("cat {path}/memory.current"), DENIED);
            let explain = mount.gcgroupfs_of(uid, &["explain", &path]).output();
            assert!(!explain.expect("the command starts").status.success());
        }
    }
    let listed = [0, BOB].map(|uid| {
        let listed = mount.gcgroupfs_of(uid, &["ls", "--json"]).output();
        let listed = listed.expect("the command starts").stdout;
        let listed: serde_json::Value = serde_json::from_slice(&listed).expect("JSON");
        listed["processes"][0]["memory"]["current"].as_u64()
    });
    assert!(listed[0] > listed[1], "{listed:?}");

    // A script of GVM's users, which ends with its first failed command.
    let open = "set -e; chmod -R 777 . && test $(stat -c %a team/0/compute.freeze) = 777";
    root(open);
    for value in ["1", "0"] {
        check(&mount, BOB, &format!("{pid}/compute.freeze"), value, true);
        check(&mount, BOB, "team/0/compute.freeze", value, true);
    }
    may_not(&mount, BOB, &format!("echo 1 > {pid}/memory.current"), DENIED);
    may_not(&mount, 0, &format!("echo 1 > {pid}/memory.current"), DENIED);
    may_not(&mount, BOB, &format!("chmod 700 {pid}"), NOT_PERMITTED);
    may_not(
        &mount,
        BOB,
        &format!("chown {BOB} {pid}/memory.limit"),
        NOT_PERMITTED,
    );
    // Writing gcgroup.procs does not suffice to move the processes of others.
    may_not(&mount, BOB, &format!("echo {pid} > gcgroup.procs"), NOT_PERMITTED);

    root(&format!(
        "chown {ALICE} {pid}/compute.max; chmod 640 team/compute.max"
    ));
    mount.kill9();
    mount.restart();
    wait_until("the process has registered again", || {
        mount.sh_of(0, &format!("test -e {pid}/compute.max")).0
    });
    let script = format!("stat -c '%u %a' {pid}/compute.max team/compute.max {pid}/0/memory.limit {pid}");
    assert_eq!(
        mount.sh_of(0, &script).1,
        format!("{ALICE} 777\n0 640\n{ALICE} 777\n0 777\n")
    );
}

#[test]
fn delegation_survives_restart() {
    let mut mount = shared();
    delegate(&mount, "team", ALICE);
    may(
        &mount,
        ALICE,
        "mkdir -m 750 team/a && echo 4096 > team/a/memory.limit",
    );
    mount.write("team/a", "memory.limit", "8192");
    mount.kill9();
    mount.restart();
    assert_eq!(
        mount.sh_of(ALICE, "stat -c '%u %a' team team/a").1,
        "1000 755\n1000 750\n"
    );
    may(&mount, ALICE, "echo 4096 > team/a/memory.limit");
    may_not(&mount, ALICE, "echo 8193 > team/a/memory.limit", NOT_PERMITTED);
    may(&mount, ALICE, "rmdir team/a && mkdir team/b");
}
