//! Tests a flood of registrations, which must fill neither the log nor the list of exited processes.

use support::{Config, Mount, wait_until};

use super::{LIAR, liar, liar_of};
use crate::driver::DriverShell;

/// Registrations of the flood. Without a limit each would write two log lines.
const FLOOD: usize = 1000;

#[test]
fn registration_flood_fills_neither_log_nor_exited() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let shell = DriverShell::start(&mount);
    let honest = shell.pid();
    shell.quit();
    wait_until("the honest process is no longer governed", || {
        !mount.governs(honest)
    });
    let mut liar = liar(&mount, &[]);
    assert_eq!(liar.ask(&format!("flood {FLOOD}")), format!("flooded {FLOOD}"));
    liar.finish();
    wait_until("no process is governed", || {
        mount.read("", "gcgroup.procs").is_empty()
    });

    let exited = mount.read("", "exited");
    assert_eq!(exited.lines().count(), 64);
    assert!(
        exited.lines().any(|line| line.starts_with(&format!("{honest} "))),
        "{exited}"
    );

    // Processes of other users are logged as usual.
    let mut other = liar_of(&mount, LIAR + 1, &[]);
    let ended = format!("ended: {} ", other.pid());
    other.finish();
    wait_until("the log reports the other user's process", || {
        mount.log().contains(&ended)
    });
    let more = format!("more lines about processes of user {LIAR} within 10 s");
    wait_until("the log sums up the suppressed lines", || {
        mount.log().contains(&more)
    });
    let log = mount.log();
    let nr_lines = log.lines().filter(|line| line.contains("hostile_hook")).count();
    // On a busy machine the flood takes longer than one interval of the log limit.
    assert!(nr_lines < FLOOD / 2, "{nr_lines} lines");
}
