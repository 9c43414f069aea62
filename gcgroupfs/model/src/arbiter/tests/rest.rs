//! GPUs at rest, which ticks pass by, and processes that the arbiter has yet to find.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::Gate;

use super::world::{MSEC, Play};
use crate::tree::Settings;
use crate::tree::fixture::{OWNER, ROOT, blocks};

#[test]
fn gate_at_rest_closes_when_a_quota_is_used_up_elsewhere() {
    let mut play = Play::new(2);
    let id = play.join(100, 8);
    play.contexts(id, 1, 1);
    play.world.store("100/compute.max", OWNER, "20000").unwrap();
    for _ in 0..3 {
        play.after(MSEC);
    }
    let control = play.world.control(id);
    let gates = || [0, 1].map(|device: usize| control.devices[device].gate.load(Relaxed));
    assert_eq!(gates(), [Gate::Arbitrate as u32; 2]);
    play.begins(id);
    play.tick();
    play.after(21 * MSEC);
    assert_eq!(gates(), [Gate::Throttled as u32; 2]);
    play.ends(id);
    play.after(1000 * MSEC);
    assert_eq!(gates(), [Gate::Arbitrate as u32; 2]);
    play.world.store("100/compute.max", OWNER, "max").unwrap();
    play.tick();
    assert_eq!(gates(), [Gate::Run as u32; 2]);
}

#[test]
fn gate_at_rest_is_set_again_after_another_registration() {
    let mut play = Play::new(1);
    let (_, low) = (play.join(100, 2), play.join(101, 10));
    for _ in 0..3 {
        play.after(MSEC);
    }
    assert_eq!(play.gate(low), Gate::Arbitrate);
    let identity = play.world.tree.identity(low).unwrap();
    let again = play.world.tree.join(identity, blocks(), Settings::default());
    assert_eq!(again, low, "the same program");
    assert_eq!(play.gate(low), Gate::Run);
    play.contexts(low, 0, 1);
    play.tick();
    assert_eq!(play.gate(low), Gate::Arbitrate);
}

#[test]
fn gates_at_rest_follow_policy_priority_and_group() {
    let mut play = Play::new(1);
    let (one, other) = (play.join(100, 8), play.join(101, 8));
    let rest = |play: &mut Play| {
        for _ in 0..3 {
            play.after(MSEC);
        }
    };
    rest(&mut play);
    assert_eq!([one, other].map(|id| play.gate(id)), [Gate::Run; 2]);
    play.world.store("101/compute.priority", ROOT, "9").unwrap();
    play.tick();
    assert_eq!((play.gate(one), play.gate(other)), (Gate::Track, Gate::Arbitrate));
    play.world.store("101/compute.priority", ROOT, "8").unwrap();
    rest(&mut play);
    play.world.group("g");
    play.world.store("g/compute.max", ROOT, "50000").unwrap();
    rest(&mut play);
    assert_eq!([one, other].map(|id| play.gate(id)), [Gate::Run; 2]);
    play.world.store("g/gcgroup.procs", ROOT, "100").unwrap();
    play.tick();
    assert_eq!((play.gate(one), play.gate(other)), (Gate::Arbitrate, Gate::Track));
}

#[test]
fn claim_without_a_bell_is_found_by_the_next_sweep() {
    let mut play = Play::new(1);
    let (high, silent) = (play.join(100, 2), play.world.join(101));
    play.world.usage(silent).devices[0].nr_contexts.store(1, Relaxed);
    play.tick();
    assert_eq!((play.gate(high), play.gate(silent)), (Gate::Run, Gate::Run));
    play.world.tree.note_all_users();
    play.tick();
    assert_eq!(
        (play.gate(high), play.gate(silent)),
        (Gate::Track, Gate::Arbitrate)
    );
}
