//! Tests groups that the configuration makes: once since the machine started, so that what is written
//! afterwards stays.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use support::Mount;

use crate::driver::DriverShell;
use crate::rules::{ALICE, BOB, Ruled};

const TEAM: &str = "
[[group]]
name = \"team\"
memory.limit = \"8M\"
compute.priority = 3

[[group]]
name = \"team/alice\"
uid = 1000
gid = 27
mode = \"0750\"
compute.max = \"50%\"
gcgroup.lease = 3600
";

/// Returns owner, group and mode of a group's directory.
fn access(mount: &Mount, group: &str) -> (u32, u32, u32) {
    let file = fs::metadata(mount.path().join(group)).expect("the group exists");
    (file.uid(), file.gid(), file.permissions().mode() & 0o777)
}

#[track_caller]
fn explained(mount: &Mount, name: &str) -> String {
    let output = mount.gcgroupfs(&["explain", name]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the exit of `check-config` for a text, and what it says.
fn checked(mount: &Mount, text: &str) -> (bool, String) {
    let path = mount.root().join("checked.toml");
    fs::write(&path, text).expect("the file is writable");
    let path = path.to_str().expect("UTF-8");
    let output = mount
        .gcgroupfs(&["check-config", path])
        .output()
        .expect("it runs");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn groups_are_made_at_start_with_settings_and_owner() {
    let ruled = Ruled::new(TEAM);
    let mount = &ruled.mount;
    assert_eq!(mount.read("team", "memory.limit"), "8388608");
    assert_eq!(mount.read("team", "compute.priority"), "3");
    assert_eq!(access(mount, "team"), (0, 0, 0o755));
    assert_eq!(mount.read("team/alice", "compute.max"), "50000 100000");
    assert_eq!(access(mount, "team/alice"), (ALICE, 27, 0o750));
    assert!((1..=3600).contains(&mount.number("team/alice", "gcgroup.lease", "")));
    assert!(!mount.log().contains("of the configuration: "), "{}", mount.log());
    let said = explained(mount, "team");
    assert!(
        said.contains("memory.limit 8 MiB (used 0 B): [[group]] of the configuration\n"),
        "{said}"
    );

    let mut process = DriverShell::start(mount);
    mount.write("team/alice", "gcgroup.procs", &process.pid().to_string());
    assert_eq!(process.ask("alloc linear 9000000"), "error 2");
    process.quit();
    assert!(
        Path::exists(&mount.path().join("team/alice")),
        "the group stays when it is empty"
    );
}

#[test]
fn what_is_written_stays_until_the_configuration_says_something_else() {
    let mut ruled = Ruled::new(TEAM);
    let written = |mount: &Mount| {
        let read = |file| mount.read("team", file);
        (
            read("memory.limit"),
            read("compute.priority"),
            access(mount, "team/alice").2,
        )
    };
    let expect = |mount: &Mount, limit: &str, priority: &str, mode| {
        assert_eq!(written(mount), (limit.to_owned(), priority.to_owned(), mode));
    };
    ruled.mount.write("team", "memory.limit", "4096");
    let alice = ruled.mount.path().join("team/alice");
    fs::set_permissions(&alice, fs::Permissions::from_mode(0o700)).expect("root may change it");
    let said = explained(&ruled.mount, "team");
    assert!(said.contains("written by uid 0, pid "), "{said}");
    assert!(said.contains("; the configuration says 8 MiB\n"), "{said}");
    for end in [Mount::stop, Mount::kill9] {
        end(&mut ruled.mount);
        ruled.mount.restart();
        expect(&ruled.mount, "4096", "3", 0o700);
    }
    // Only what has changed in the configuration is carried out.
    ruled.reload(
        &TEAM.replace("priority = 3", "priority = 4"),
        "configuration read again",
    );
    expect(&ruled.mount, "4096", "4", 0o700);
    ruled.reload(&TEAM.replace("8M", "9M"), "configuration read again");
    expect(&ruled.mount, "9437184", "3", 0o700);
    ruled.reload(
        &TEAM.replace("priority = 3", "priority = 99"),
        "the configuration stays as it was",
    );
    expect(&ruled.mount, "9437184", "3", 0o700);
    // A group that was removed stays away, until it has another value.
    ruled.reload(TEAM, "configuration read again");
    fs::remove_dir(&alice).expect("it is empty");
    ruled.mount.restart();
    assert!(!alice.exists());
    ruled.reload(&TEAM.replace("0750", "0755"), "configuration read again");
    expect(&ruled.mount, "8388608", "3", 0o755);
    assert_eq!(ruled.mount.read("team/alice", "compute.max"), "50000 100000");
    // The owner is a value of its own.
    chown(&alice, Some(BOB), None).expect("root may change it");
    ruled.reload(&TEAM.replace("0750", "0711"), "configuration read again");
    assert_eq!(access(&ruled.mount, "team/alice"), (BOB, 27, 0o711));
    ruled.reload(&TEAM.replace("0750", "0755"), "configuration read again");
    // What the configuration does not mention any more stays as well.
    ruled.reload("", "configuration read again");
    expect(&ruled.mount, "8388608", "3", 0o755);
}

#[test]
fn value_that_cannot_be_set_is_told_and_the_others_hold() {
    let text = "[[group]]\nname = \"a/b\"\ngcgroup.devices = \"7\"\nmemory.limit = \"1M\"\n";
    let mut ruled = Ruled::new(text);
    assert_eq!(ruled.mount.read("a/b", "memory.limit"), "1048576");
    let fault = "group \"a/b\" of the configuration: gcgroup.devices: ";
    assert_eq!(
        ruled.mount.log().matches(fault).count(),
        1,
        "{}",
        ruled.mount.log()
    );
    // Each start tries again.
    ruled.mount.restart();
    assert_eq!(
        ruled.mount.log().matches(fault).count(),
        2,
        "{}",
        ruled.mount.log()
    );
    assert_eq!(ruled.mount.read("a/b", "memory.limit"), "1048576");
}

#[test]
fn group_of_a_rule_stays_once_the_configuration_makes_it() {
    let rule = "[[rule]]\nmatch.uid = 1000\ngroup = { name = \"team/alice\" }\n";
    let ruled = Ruled::new(rule);
    let process = ruled.shell_of(ALICE);
    assert_eq!(
        ruled.mount.read("team/alice", "gcgroup.procs"),
        process.pid().to_string()
    );
    ruled.reload(&format!("{rule}{TEAM}"), "configuration read again");
    assert_eq!(ruled.mount.read("team/alice", "compute.max"), "50000 100000");
    process.quit();
    support::wait_until("the process has left", || {
        ruled.mount.read("team/alice", "gcgroup.procs").is_empty()
    });
    assert_eq!(access(&ruled.mount, "team/alice"), (ALICE, 27, 0o750));
}

#[test]
fn faults_of_groups_are_found_before_a_daemon_reads_them() {
    let mount = Mount::new();
    assert_eq!(checked(&mount, TEAM), (true, String::new()));
    for (text, place, about) in [
        ("[[group]]\nmemory.limit = 1\n", "1:1", "missing field `name`"),
        ("[[group]]\nname = \"a/7\"\n", "2:8", "digits"),
        (
            "[[group]]\nname = \"memory.limit\"\n",
            "2:8",
            "a control file has this name",
        ),
        ("[[group]]\nname = \"a/b/c/d/e/f/g/h/i\"\n", "2:8", "8"),
        ("[[group]]\nname = \"a\"\nmode = \"0999\"\n", "3:8", "octal"),
        ("[[group]]\nname = \"a\"\nmode = \"4755\"\n", "3:8", "octal"),
        (
            "[[group]]\nname = \"a\"\nuid = \"no-such-user\"\n",
            "3:7",
            "no user",
        ),
        (
            "[[group]]\nname = \"a\"\nmemory.limit = \"1X\"\n",
            "3:16",
            "or max",
        ),
        (
            "[[group]]\nname = \"a\"\nowner = 1\n",
            "3:1",
            "unknown field `owner`",
        ),
        (
            "[[group]]\nname = \"a\"\n[[group]]\nname = \"a\"\n",
            "1:1",
            "twice",
        ),
        ("[group]\nname = \"a\"\n", "1:1", "sequence"),
    ] {
        let (valid, said) = checked(&mount, text);
        assert!(
            !valid && said.contains(&format!("checked.toml:{place}: ")),
            "{text}: {said}"
        );
        assert!(said.contains(about), "{text}: {said}");
    }
}
