//! More registrations than anybody wants to read of.

use support::{Config, Mount, wait_until};

use super::{LIAR, liar, liar_of};
use crate::driver::DriverShell;

/// Registrations of the flood. Each was told of twice.
const FLOOD: usize = 1000;

#[test]
fn a_flood_of_registrations_fills_neither_the_log_nor_exited() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let shell = DriverShell::start(&mount);
    let honest = shell.pid();
    shell.quit();
    wait_until("it has left", || !mount.governs(honest));
    let mut liar = liar(&mount, &[]);
    assert_eq!(liar.ask(&format!("flood {FLOOD}")), format!("flooded {FLOOD}"));
    liar.finish();
    wait_until("all have left", || mount.read("", "gcgroup.procs").is_empty());

    let exited = mount.read("", "exited");
    assert_eq!(exited.lines().count(), 64);
    assert!(
        exited.lines().any(|line| line.starts_with(&format!("{honest} "))),
        "{exited}"
    );

    // Another's processes are told of as ever.
    let other = liar_of(&mount, LIAR + 1, &[]);
    let joined = format!("of user {} joined", LIAR + 1);
    wait_until("it is told", || mount.log().contains(&joined));
    drop(other);
    let more = format!("more lines about processes of user {LIAR} within 10 s");
    wait_until("what was kept back is summed up", || mount.log().contains(&more));
    let log = mount.log();
    let nr_lines = log.lines().filter(|line| line.contains("hostile_hook")).count();
    // A flood on a busy machine takes longer than one such time.
    assert!(nr_lines < FLOOD / 2, "{nr_lines} lines");
}
