//! Tests programs that start while no daemon runs: where rules promise that they are governed they are
//! refused, whatever their environment says; otherwise they are bounded once there is a daemon.

use std::fs;

use gcgroup_abi::REQUIRED_FILE;
use support::{Governed, wait_until};

use crate::driver::{Dir, DriverShell, driver_shell};
use crate::rules::Ruled;

const MIB: u64 = 1 << 20;
const REQUIRED: &str = "[[rule]]\nrequired = true\ngroup = { name = \"all\", memory.limit = \"8M\" }\n";
const LIMITED: &str = "[[rule]]\ngroup = { name = \"all\", memory.limit = \"8M\" }\n";

/// Returns the result of `cuInit` in a new program, whose standard error contains `says`.
fn start(ruled: &Ruled, says: &str) -> String {
    let mut command = ruled.mount.command(driver_shell());
    command.env("GCGROUP_REQUIRED", "0");
    let mut program = Governed::spawn(command);
    let banner = program.expect("ready");
    wait_until("standard error is as expected", || {
        program.stderr().contains(says)
    });
    banner.rsplit(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn required_rule_refuses_new_programs_while_no_daemon_runs() {
    let mut ruled = Ruled::new(REQUIRED);
    let mut before = DriverShell::start(&ruled.mount);
    assert_eq!(before.ask(&format!("alloc linear {}", 4 * MIB)), "ok 0");
    ruled.mount.kill9();
    assert_eq!(start(&ruled, "by the administrator"), "802");
    // A process that was governed goes on with its limit.
    assert_eq!(before.ask(&format!("alloc linear {}", 9 * MIB)), "error 2");
    assert_eq!(before.ask("spin 1 1"), "ok");
    ruled.mount.restart();
    assert_eq!(start(&ruled, ""), "0");
    // Without such a rule the next daemon withdraws the promise; one of a cluster's engine stays.
    let file = ruled.mount.socket().with_file_name(REQUIRED_FILE);
    ruled.reload(LIMITED, "configuration read again");
    assert!(!file.exists());
    fs::write(&file, "an engine").expect("the directory is writable");
    ruled.reload("", "configuration read again");
    ruled.mount.kill9();
    assert_eq!(start(&ruled, ""), "802");
}

#[test]
fn program_refused_without_a_daemon_works_once_there_is_one() {
    let mut ruled = Ruled::new(REQUIRED);
    ruled.mount.kill9();
    let mut program = Governed::spawn(ruled.mount.command(driver_shell()));
    program.expect("ready");
    assert_eq!(
        program.ask(&format!("alloc linear {MIB}")).split(' ').next(),
        Some("error")
    );
    ruled.mount.restart();
    // The daemon knows it a moment before its hook has the daemon's answer.
    wait_until("calls of the program are not refused", || {
        program.ask("gpu 0") == "ok"
    });
    assert_eq!(program.ask(&format!("alloc linear {}", 9 * MIB)), "error 2");
    assert_eq!(program.ask(&format!("alloc linear {MIB}")), "ok 0");
}

#[test]
fn program_that_joins_above_its_limit_is_counted_and_gets_no_more() {
    let mut ruled = Ruled::new(LIMITED);
    ruled.mount.kill9();
    let mut shell = DriverShell::spawn(ruled.mount.command(driver_shell()));
    assert_eq!(shell.ask(&format!("alloc linear {}", 16 * MIB)), "ok 0");
    ruled.mount.restart();
    let pid = shell.pid();
    wait_until("the program is governed", || ruled.mount.governs(pid));
    // The excess is counted a moment after the process's directory appears.
    wait_until("the excess is counted", || {
        ruled.mount.number("all", "memory.events", "over_limit") == 1
    });
    let line = format!("{pid} of user 0 joins with");
    wait_until("the log names the program", || ruled.mount.log().contains(&line));
    assert_eq!(shell.ask("alloc linear 4096"), "error 2");
    shell.exec_at(&ruled.mount);
    assert_eq!(ruled.mount.number("all", "memory.events", "over_limit"), 1);
    assert!(Dir::of(&ruled.mount, pid).exists());
}
