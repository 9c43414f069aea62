//! Tests the hostile hook itself.

use support::{Mount, wait_until};

use super::{liar, tell};
use crate::driver::{DriverShell, governed_pids};

#[test]
fn hostile_hook_is_governed_and_its_values_are_read() {
    let mount = Mount::new();
    let mut liar = liar(&mount, &["priority=9"]);
    assert_eq!(governed_pids(&mount), [liar.pid()]);
    assert_eq!(mount.read(liar.pid(), "compute.priority"), "9");
    tell(&mut liar, "set memory_current 0 4096");
    assert_eq!(mount.number(liar.pid(), "memory.current", ""), 4096);
    assert_eq!(liar.ask("get memory_current 0"), "memory_current 4096");
    assert_eq!(liar.ask("flood 3"), "flooded 3");
    assert!(liar.ask("set nonsense 0 1").starts_with("error "));
    let pid = liar.pid();
    liar.finish();
    wait_until("the process is no longer governed", || !mount.governs(pid));
}

#[test]
fn random_usage_values_affect_neither_daemon_nor_others() {
    let mount = Mount::new();
    let mut honest = DriverShell::start(&mount);
    for seed in 1..=3 {
        let mut liar = liar(&mount, &["can_swap=1"]);
        tell(&mut liar, &format!("random {seed} 100000"));
        assert_eq!(honest.ask("alloc linear 1048576"), format!("ok {}", seed - 1));
        assert_eq!(mount.number(honest.pid(), "memory.current", ""), seed << 20);
        mount.read("", "memory.stat");
        liar.finish();
    }
}
