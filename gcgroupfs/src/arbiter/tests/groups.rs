//! Quotas of groups: one for all the processes in them.

use gcgroup_abi::Gate;

use super::world::{MSEC, Play};
use crate::tree::fixture::ROOT;

#[test]
fn a_groups_quota_is_used_up_by_all_of_its_processes_together() {
    let mut play = Play::new(1);
    let (one, other, outside) = (play.join(100, 8), play.join(101, 8), play.join(102, 8));
    play.world.group("a/b");
    play.world.store("a/compute.max", ROOT, "20000 100000").unwrap();
    play.world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    play.world.store("a/b/gcgroup.procs", ROOT, "101").unwrap();
    play.tick();
    let gates = |play: &Play| [one, other, outside].map(|id| play.gate(id));
    assert_eq!(gates(&play), [Gate::Arbitrate, Gate::Arbitrate, Gate::Track]);
    // One after the other, each for half of it.
    play.begins(one);
    let next = play.tick();
    assert_eq!(next.at, Some(play.now + 20 * MSEC));
    play.after(11 * MSEC);
    play.ends(one);
    play.begins(other);
    play.tick();
    assert_eq!(play.gate(one), Gate::Arbitrate);
    let next = play.after(10 * MSEC);
    assert_eq!(gates(&play), [Gate::Throttled, Gate::Throttled, Gate::Track]);
    play.ends(other);
    play.waits(one, 1);
    play.waits(other, 1);
    play.now = next.at.unwrap();
    play.tick();
    assert_eq!(play.gate(one), Gate::Arbitrate);
    // Who leaves is not held any more, and who has a quota of its own by both.
    play.world.store("gcgroup.procs", ROOT, "101").unwrap();
    play.tick();
    assert_eq!(play.gate(other), Gate::Track);
}

#[test]
fn a_quota_on_a_device_counts_nothing_else() {
    let mut play = Play::new(2);
    let id = play.join(100, 8);
    play.world.group("a");
    play.world.store("a/1/compute.max", ROOT, "1000 100000").unwrap();
    play.world.store("a/gcgroup.procs", ROOT, "100").unwrap();
    play.tick();
    play.begins(id);
    play.after(50 * MSEC);
    assert_eq!(play.gate(id), Gate::Run);
    play.world.store("a/0/compute.max", ROOT, "1000 100000").unwrap();
    play.tick();
    play.after(2 * MSEC);
    assert_eq!(play.gate(id), Gate::Throttled);
}
