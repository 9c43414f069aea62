//! Tests the actions of `gcgroupfs top` on the selected row that move memory, bound GPU time or explain.

use support::{Config, Governed, artifacts, wait_until};

use super::{select, shown, team};
use crate::driver::Dir;

const MIB: u64 = 1 << 20;

#[test]
fn quota_suspension_reclaim_and_explanation_are_on_the_row() {
    let (mount, _shell) = team(Config::default());
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let answer = program.ask(&format!("alloc linear {}", 8 * MIB));
    assert!(answer.starts_with("allocated "), "{answer}");
    let (pid, dir) = (program.pid(), Dir::of(&mount, program.pid()));
    let screen = shown(&mount, pid);
    select(&screen, pid);
    screen.press(&["c"]);
    screen.wait_line(&[&format!("GPU quota of {pid}")]);
    screen.enter("50%");
    wait_until("the quota is set", || dir.read("compute.max") == "50000 100000");
    screen.press(&["o"]);
    screen.wait_line(&[&format!("Move out of {pid}")]);
    screen.enter("max");
    wait_until("the memory is on the host", || {
        dir.number("memory.swap.current") == 8 * MIB
    });
    screen.press(&["e"]);
    screen.wait_line(&[&format!("process {pid} (gcgroup-load) of uid 0")]);
    screen.wait_line(&["compute.max 50000 100000: written by uid 0"]);
    screen.wait_line(&["Up and Down scroll"]);
    screen.press(&["Down"]);
    screen.wait("the first line is above", |lines| {
        !lines[0].contains("gcgroup-load") && lines.iter().any(|line| line.contains("in force:"))
    });
    screen.press(&["q"]);
    screen.wait_line(&[&pid.to_string(), "gcgroup-load"]);
    screen.press(&["s"]);
    screen.wait_line(&[&pid.to_string(), " suspended "]);
    screen.press(&["s"]);
    wait_until("it is resumed", || dir.number("gcgroup.suspend") == 0);
    assert!(program.is_running());
}
