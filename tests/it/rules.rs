//! Tests rules of the configuration, which apply to a process when it registers.

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use support::{Config, Mount, wait_until};
use tempfile::TempDir;

use crate::driver::{Dir, DriverShell, driver_shell};

/// Uids of users other than root, without names.
pub(crate) const ALICE: u32 = 1000;
pub(crate) const BOB: u32 = 1001;

/// A mount for all users, with a configuration that can be changed.
pub(crate) struct Ruled {
    pub mount: Mount,
    directory: TempDir,
}

impl Ruled {
    #[track_caller]
    pub(crate) fn new(rules: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("gcgroupfs.toml");
        fs::write(&path, rules).expect("the file is writable");
        let config = Config::default().arg("--allow-other").arg("--config");
        let mount = Mount::with(config.arg(path.to_str().expect("text")));
        Self { mount, directory }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("gcgroupfs.toml")
    }

    /// Makes the daemon read other rules and waits for the log message `says`.
    #[track_caller]
    pub(crate) fn reload(&self, rules: &str, says: &str) {
        fs::write(self.path(), rules).expect("the file is writable");
        let before = self.mount.log().matches(says).count();
        kill(self.mount.daemon().expect("the daemon runs"), Signal::SIGHUP).expect("the daemon runs");
        wait_until("the daemon has read the rules", || {
            self.mount.log().matches(says).count() > before
        });
    }

    /// Starts a governed program as user `uid`.
    #[track_caller]
    pub(crate) fn shell_of(&self, uid: u32) -> DriverShell {
        DriverShell::spawn(self.mount.command_of(uid, &driver_shell()))
    }

    pub(crate) fn limit(&self, shell: &DriverShell) -> u64 {
        Dir::of(&self.mount, shell.pid()).number("memory.limit")
    }

    /// Returns the output of `check-config --pid` for a process.
    pub(crate) fn explained(&self, shell: &DriverShell) -> String {
        let path = self.path();
        let pid = shell.pid().to_string();
        let mut command =
            self.mount
                .gcgroupfs(&["check-config", path.to_str().expect("text"), "--pid", &pid]);
        let output = command.output().expect("the command starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

const BY_USER: &str = "
[[rule]]
name = \"alice's\"
match.uid = 1000
process.memory.limit = \"1M\"
process.compute.priority = 12

[[rule]]
match.exe = \"**/driver_shell*\"
match.uid = [1001, 1002]
process.memory.limit = \"2M\"
";

#[test]
fn first_matching_rule_applies_from_the_first_call() {
    let ruled = Ruled::new(BY_USER);
    let mut alice = ruled.shell_of(ALICE);
    assert_eq!(alice.ask("alloc linear 1048577"), "error 2");
    assert_eq!(alice.ask("alloc linear 1048576"), "ok 0");
    let dir = Dir::of(&ruled.mount, alice.pid());
    assert_eq!(dir.number("compute.priority"), 12);
    assert_eq!(ruled.limit(&ruled.shell_of(BOB)), 2 << 20);
    assert_eq!(dir.read("memory.limit"), "1048576");
    let root = DriverShell::start(&ruled.mount);
    assert_eq!(Dir::of(&ruled.mount, root.pid()).read("memory.limit"), "max");

    // Settings from rules count as root's, so the user cannot undo them.
    let write = |value: &str| {
        let script = format!("echo {value} > {}/memory.limit", alice.pid());
        ruled.mount.sh_of(ALICE, &script)
    };
    assert!(write("4096").0);
    assert!(write("1M").0);
    let (written, said) = write("1048577");
    assert!(!written && said.contains("not permitted"), "{said}");
    // Root's settings take precedence over rules, also for the next program.
    dir.write("memory.limit", 3 << 20);
    alice.exec();
    wait_until("the new program has registered with root's limit", || {
        dir.exists() && ruled.limit(&alice) == 3 << 20
    });
}

#[test]
fn reloaded_rules_apply_later_and_invalid_ones_never() {
    let ruled = Ruled::new(BY_USER);
    let before = ruled.shell_of(ALICE);
    ruled.reload(
        "[[rule]]\nmatch.uid = 1000\nprocess.memory.limit = 4096\n",
        "configuration read again",
    );
    assert_eq!(
        (ruled.limit(&before), ruled.limit(&ruled.shell_of(ALICE))),
        (1 << 20, 4096)
    );
    ruled.reload(
        "[[rule]]\nmatch.uid = \"no such user\"\n",
        "gcgroupfs.toml:2:13: ",
    );
    assert_eq!(ruled.limit(&ruled.shell_of(ALICE)), 4096);
}

#[test]
fn settings_from_rules_survive_restart_with_other_rules() {
    let mut ruled = Ruled::new(BY_USER);
    let shell = ruled.shell_of(ALICE);
    assert_eq!(ruled.limit(&shell), 1 << 20);
    fs::write(ruled.path(), "[[rule]]\nprocess.memory.limit = 4096\n").expect("the file is writable");
    ruled.mount.kill9();
    ruled.mount.restart();
    let dir = Dir::of(&ruled.mount, shell.pid());
    wait_until("the process has registered again", || dir.exists());
    assert_eq!(ruled.limit(&shell), 1 << 20);
    assert_eq!(ruled.limit(&ruled.shell_of(ALICE)), 4096);
}

#[test]
fn check_config_explains_which_rule_matches_a_process() {
    let ruled = Ruled::new(BY_USER);
    let bob = ruled.explained(&ruled.shell_of(BOB));
    for part in [
        "  uid 1001\n",
        "  comm driver_shell",
        "rule 1, line 2 (alice's): no: uid 1001 is not 1000\n",
        "rule 2, line 8: yes\n  group: where it begins\n  process\n    memory.limit 2097152\n",
    ] {
        assert!(bob.contains(part), "{part}: {bob}");
    }
    let root = ruled.explained(&DriverShell::start(&ruled.mount));
    assert!(root.contains("no rule is for it"), "{root}");
    let path = ruled.path();
    let path = path.to_str().expect("text");
    let mut missing = ruled.mount.gcgroupfs(&["check-config", path, "--pid", "4194305"]);
    let missing = missing.output().expect("the command starts");
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no process 4194305"));
}
