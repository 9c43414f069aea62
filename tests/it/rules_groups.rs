//! Tests groups named by rules and requests: created on demand and removed when empty.

use std::fs;

use support::{Governed, program_for_all, wait_until};

use crate::cgroup::KernelCgroup;
use crate::driver::{DriverShell, driver_shell};
use crate::rules::{ALICE, BOB, Ruled};

const BY_UID: &str = "
[[rule]]
match.uid = [1000, 1001]
group.name = \"users/u{uid}\"
group.delegate = true
group.memory.limit = \"4M\"
group.compute.priority = 11
process.memory.limit = \"1M\"
";

impl Ruled {
    /// Returns the pids of a group itself, without its descendants.
    fn members(&self, group: &str) -> Vec<i32> {
        let procs = self.mount.read(group, "gcgroup.procs");
        procs.lines().map(|line| line.parse().expect("a pid")).collect()
    }

    fn has(&self, group: &str) -> bool {
        self.mount.path().join(group).exists()
    }

    /// Starts a program with `gcgroupfs run --group` as user `uid`.
    #[track_caller]
    fn run(&self, uid: u32, group: &str) -> DriverShell {
        self.run_with(uid, &["--group", group])
    }

    /// Starts a program with `gcgroupfs run` as user `uid`; its first output is on stderr.
    #[track_caller]
    fn run_with(&self, uid: u32, arguments: &[&str]) -> DriverShell {
        let mut command = self.mount.gcgroupfs_of(uid, &["run"]);
        command
            .args(arguments)
            .arg("--")
            .arg(program_for_all(&driver_shell(), self.mount.root()));
        DriverShell::spawn(command)
    }
}

const LIFECYCLE: &str = "
[[rule]]
match.uid = 1000
group.name = \"alice\"
group.memory.min = \"1M\"
group.memory.low = \"2M\"
group.memory.high = \"4M\"
group.memory.\"oom.group\" = 1
group.gcgroup.devices = \"0-6,9\"
group.gcgroup.lease = 3600
group.gcgroup.\"lease.action\" = \"kill\"
process.memory.low = \"3M\"
process.memory.high = \"5M\"
required = true
[[rule]]
match.uid = 1001
group.name = \"bob\"
process.gcgroup.suspend = 1
[[rule]]
match.uid = 1002
group.name = \"none\"
group.gcgroup.devices = \"none\"
";

#[test]
fn rules_set_devices_leases_protection_and_suspension() {
    let ruled = Ruled::new(LIFECYCLE);
    let alice = ruled.shell_of(ALICE);
    let read = |name: &str| ruled.mount.read("alice", name);
    assert_eq!(read("memory.min"), "1048576");
    assert_eq!(read("memory.low"), "2097152");
    assert_eq!(ruled.mount.read(alice.pid(), "memory.low"), "3145728");
    assert_eq!(read("memory.high"), "4194304");
    assert_eq!(read("memory.oom.group"), "1");
    assert_eq!(ruled.mount.read(alice.pid(), "memory.high"), "5242880");
    assert_eq!(
        read("gcgroup.devices"),
        "0",
        "the others do not exist, which bars no process"
    );
    wait_until("the log names the others", || {
        ruled.mount.log().contains("finds no devices 1-6,9")
    });
    let left: u64 = read("gcgroup.lease").parse().expect("seconds");
    assert!(left > 0 && left <= 3600, "{left}");
    assert_eq!(read("gcgroup.lease.action"), "kill");
    ruled.mount.write("alice", "gcgroup.lease", "0");
    wait_until("the group's process is killed", || !ruled.has("alice"));

    let bob = Governed::spawn(ruled.mount.command_of(BOB, &driver_shell()));
    wait_until("the process is suspended", || {
        ruled.mount.governs(bob.pid())
            && ruled
                .mount
                .read(bob.pid(), "gcgroup.events")
                .contains("suspended 1")
    });
    ruled.mount.write(bob.pid(), "gcgroup.suspend", "0");
    wait_until("the process is resumed", || {
        ruled
            .mount
            .read(bob.pid(), "gcgroup.events")
            .contains("suspended 0")
    });

    let mut command = ruled.mount.command_of(1002, &crate::several_gpus::program());
    command.env_remove("CUDA_VISIBLE_DEVICES");
    let mut none = crate::several_gpus::Devices::spawn(command);
    assert_eq!(none.ask("init"), [crate::several_gpus::NO_DEVICE]);
    assert!(!ruled.has("none"), "the group was made for the question only");
}

#[test]
fn group_exists_from_first_to_last_member() {
    let ruled = Ruled::new(BY_UID);
    assert!(!ruled.has("users"));
    let (one, other, bob) = (ruled.shell_of(ALICE), ruled.shell_of(ALICE), ruled.shell_of(BOB));
    let mut pids = [one.pid(), other.pid()];
    pids.sort_unstable();
    assert_eq!(ruled.members("users/u1000"), pids);
    assert_eq!(ruled.members("users/u1001"), [bob.pid()]);
    assert_eq!(ruled.mount.read("users/u1000", "memory.limit"), "4194304");
    assert_eq!(ruled.mount.read("users", "memory.limit"), "max");
    assert_eq!(
        ruled.mount.read(one.pid(), "compute.priority"),
        "11",
        "the process does not have its group's priority"
    );
    assert_eq!(ruled.limit(&one), 1 << 20);
    let root = DriverShell::start(&ruled.mount);
    assert!(ruled.members("users").is_empty());
    let (made, said) = ruled
        .mount
        .sh_of(ALICE, "mkdir users/u1000/own && stat -c %u users users/u1000");
    assert!(made, "{said}");
    assert_eq!(said, "0\n1000\n");

    one.quit();
    wait_until("one member is left in the group", || {
        ruled.members("users/u1000") == [other.pid()]
    });
    other.kill9();
    bob.kill9();
    wait_until("the group of the killed process is removed", || {
        !ruled.has("users/u1001")
    });
    wait_until("the group has no members", || {
        ruled.members("users/u1000").is_empty()
    });
    assert!(
        ruled.has("users/u1000/own"),
        "the user's group was removed with the rule's"
    );
    assert!(ruled.mount.sh_of(ALICE, "rmdir users/u1000/own").0);
    wait_until("the empty parent group is removed", || !ruled.has("users"));
    drop(root);
}

#[test]
fn exec_does_not_leave_the_group() {
    let ruled = Ruled::new(BY_UID);
    let mut alone = ruled.shell_of(ALICE);
    ruled.mount.write("users/u1000", "memory.limit", "512K");
    for _ in 0..5 {
        alone.exec_at(&ruled.mount);
        assert_eq!(ruled.members("users/u1000"), [alone.pid()]);
        assert_eq!(
            ruled.mount.read("users/u1000", "memory.limit"),
            "524288",
            "the exec reset the group's limit"
        );
        assert_eq!(alone.ask("alloc linear 524289"), "error 2");
    }
    alone.quit();
    wait_until("the rule's empty group is removed", || !ruled.has("users"));
}

#[test]
fn members_and_groups_survive_daemon_kill() {
    let mut ruled = Ruled::new(BY_UID);
    let (stays, dies) = (ruled.shell_of(ALICE), ruled.shell_of(BOB));
    assert_eq!(ruled.members("users/u1001"), [dies.pid()]);
    ruled.mount.write("users/u1000", "memory.limit", "3M");
    // The changed rules apply to other processes.
    fs::write(ruled.path(), "[[rule]]\ngroup.name = \"other\"\n").expect("the file is writable");
    ruled.mount.kill9();
    dies.kill9();
    ruled.mount.restart();
    wait_until("the process has registered again", || {
        ruled.mount.governs(stays.pid())
    });
    assert_eq!(ruled.members("users/u1000"), [stays.pid()]);
    assert_eq!(ruled.mount.read("users/u1000", "memory.limit"), "3145728");
    let other = ruled.shell_of(BOB);
    assert_eq!(ruled.members("other"), [other.pid()]);
    wait_until("the killed process's group is removed", || {
        !ruled.has("users/u1001")
    });
}

#[test]
fn run_starts_in_the_named_group_if_permitted() {
    let ruled = Ruled::new("");
    let root = ruled.run(0, "batch/night");
    assert_eq!(ruled.members("batch/night"), [root.pid()]);
    let alice = ruled.run_with(ALICE, &["--best-effort", "--group", "batch/night"]);
    assert!(
        alice
            .stderr()
            .contains("warning: group batch/night: Permission denied"),
        "{}",
        alice.stderr()
    );
    assert_eq!(ruled.members("batch/night"), [root.pid()]);
    assert!(ruled.mount.governs(alice.pid()));
    for (uid, group, why) in [
        (ALICE, "batch/night", "Permission denied"),
        (0, "batch/7", "Invalid argument"),
    ] {
        let mut command = ruled
            .mount
            .gcgroupfs_of(uid, &["run", "--group", group, "--", "true"]);
        let output = command.output().expect("the command starts");
        assert_eq!(output.status.code(), Some(125));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("group {group}: {why}")), "{said}");
    }
    let said = "of user 1000 is not admitted to group \"batch/night\"";
    wait_until("the log reports the refused group", || {
        ruled.mount.log().contains(said)
    });
    root.quit();
    wait_until("the requested group is removed", || !ruled.has("batch"));

    fs::create_dir(ruled.mount.path().join("team")).expect("root may create a group");
    std::os::unix::fs::chown(ruled.mount.path().join("team"), Some(ALICE), Some(ALICE))
        .expect("root may change the owner");
    let alice = ruled.run(ALICE, "team/a");
    assert_eq!(alice.stderr(), "");
    assert_eq!(ruled.members("team/a"), [alice.pid()]);
    // The environment alone requests a group, too.
    let mut command = ruled.mount.command_of(ALICE, &driver_shell());
    command.env("GCGROUP_GROUP", "team");
    let other = DriverShell::spawn(command);
    assert_eq!(ruled.members("team"), [other.pid()]);
    let bob = ruled.run_with(BOB, &["--best-effort", "--group", "team/a"]);
    assert!(bob.stderr().contains("Permission denied"), "{}", bob.stderr());
    assert_eq!(ruled.members("team/a"), [alice.pid()]);
    alice.quit();
    wait_until("the requested group is removed", || !ruled.has("team/a"));
    assert!(ruled.has("team"));
}

#[test]
fn requested_group_does_not_override_a_rules_group() {
    let ruled = Ruled::new(BY_UID);
    let path = ruled.mount.path().join("team");
    fs::create_dir(&path).expect("root may create a group");
    std::os::unix::fs::chown(&path, Some(ALICE), Some(ALICE)).expect("root may change the owner");
    let outside = ruled.run_with(ALICE, &["--best-effort", "--group", "team"]);
    assert_eq!(ruled.members("users/u1000"), [outside.pid()]);
    wait_until("the log reports the requested group", || {
        ruled.mount.log().contains("outside of the group")
    });
    let inside = ruled.run(ALICE, "users/u1000/night");
    assert_eq!(ruled.members("users/u1000/night"), [inside.pid()]);
}

#[test]
fn rule_matches_a_kernel_cgroup() {
    let Some(cgroup) = KernelCgroup::new("slurmstepd.scope/job_12/step_0/user/task_0") else {
        eprintln!("no hierarchy of cgroups here that can be written: not tested");
        return;
    };
    let ruled = Ruled::new(
        "[[rule]]
         match.cgroup = \"/**/slurmstepd.scope/job_*/**\"
         group.name = \"slurm/{cgroup:job_*}/{cgroup:step_*}\"",
    );
    let job = cgroup.start_driver_shell(&ruled.mount);
    assert_eq!(ruled.members("slurm/job_12/step_0"), [job.pid()]);
    let said = ruled.explained(&job);
    assert!(said.contains(&format!("  cgroup {}\n", cgroup.name)), "{said}");
    assert!(said.contains("  group slurm/job_12/step_0\n"), "{said}");
    job.quit();
}
