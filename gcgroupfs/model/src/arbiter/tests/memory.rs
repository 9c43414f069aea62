//! Memory turns through the tree: what control blocks and `compute.stat` contain.

use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::{Gate, Kind, NO_LIMIT};

use super::world::{MSEC, Play};
use crate::tree::ProcessId;
use crate::tree::fixture::{ROOT, TOTAL};

/// Margin that the arbiter leaves.
const CAPACITY: u64 = TOTAL - TOTAL / 64;

/// Registers a busy process with movable memory, of which a part is on device 0.
fn job(play: &Play, pid: u32, movable: u64, resident: u64) -> ProcessId {
    let id = play.join(pid, 8);
    let usage = play.world.usage(id);
    usage.can_swap.store(1, Relaxed);
    let device = &usage.devices[0];
    device.movable.store(movable, Relaxed);
    device.swap_current.store(movable - resident, Relaxed);
    for word in [
        &device.swappable,
        &device.memory_current,
        &device.kinds[Kind::Linear as usize],
    ] {
        word.store(resident, Relaxed);
    }
    play.begins(id);
    id
}

fn limit(play: &Play, id: ProcessId) -> u64 {
    play.world.control(id).devices[0].resident_limit.load(Relaxed)
}

/// Returns `memory_turn` and `nr_memory_turns`.
fn shown(play: &Play, pid: u32) -> [u64; 2] {
    let text = play.world.show(&format!("{pid}/compute.stat"));
    let key = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().trim().parse().unwrap()
    };
    [key("memory_turn "), key("nr_memory_turns ")]
}

#[test]
fn turns_are_published_and_end_with_a_process() {
    let mut play = Play::new(1);
    let one = job(&play, 100, TOTAL / 4 * 3, TOTAL / 4 * 3);
    let other = job(&play, 101, TOTAL / 4 * 3, TOTAL / 8);
    let fixed = play.join(102, 8);
    let device = &play.world.usage(fixed).devices[0];
    device.memory_current.store(TOTAL / 16, Relaxed);
    device.kinds[Kind::Linear as usize].store(TOTAL / 16, Relaxed);
    let mut news = Vec::new();
    for _ in 0..10 {
        news.extend(play.after(20 * MSEC).memory_news);
    }
    assert_eq!(news.len(), 1, "{news:?}");
    assert_eq!([limit(&play, one), limit(&play, fixed)], [NO_LIMIT, 0]);
    assert_eq!(limit(&play, other), CAPACITY - TOTAL / 16 - TOTAL / 4 * 3);
    assert_eq!(
        [one, other, fixed].map(|id| play.gate(id)),
        [Gate::Arbitrate, Gate::Throttled, Gate::Run]
    );
    assert_eq!([shown(&play, 100), shown(&play, 101)], [[1, 1], [2, 0]]);
    play.waits(other, 1);
    play.after(MSEC);
    let waits = play.world.show("101/gcgroup.waits");
    assert!(
        waits.starts_with("100 gpu=0 for=memory usec=0 now=1 priority=8 "),
        "{waits}"
    );
    play.waits(other, 0);
    play.world.tree.leave(one, 0);
    play.after(20 * MSEC);
    assert_eq!(limit(&play, other), 0);
    assert_eq!(play.gate(other), Gate::Run);
    assert_eq!(shown(&play, 101), [0, 0]);
}

#[test]
fn memory_over_a_limit_or_without_swap_leads_to_no_turns() {
    let mut play = Play::new(1);
    let one = job(&play, 100, TOTAL / 4 * 3, TOTAL / 4 * 3);
    let other = job(&play, 101, TOTAL / 4 * 3, TOTAL / 8);
    play.world.control(other).devices[0]
        .memory_limit
        .store(TOTAL / 8, Relaxed);
    let run = |play: &mut Play| (0..10).for_each(|_| _ = play.after(20 * MSEC));
    run(&mut play);
    assert_eq!([one, other].map(|id| limit(&play, id)), [0, 0]);
    play.world.control(other).devices[0]
        .memory_limit
        .store(NO_LIMIT, Relaxed);
    // An earlier hook.
    let movable = play.world.usage(other).devices[0].movable.swap(0, Relaxed);
    run(&mut play);
    assert_eq!([one, other].map(|id| limit(&play, id)), [0, 0]);
    play.world.usage(other).devices[0].movable.store(movable, Relaxed);
    run(&mut play);
    assert_eq!(limit(&play, one), NO_LIMIT);
}

#[test]
fn frozen_process_with_all_memory_on_the_host_leads_to_no_turns() {
    let mut play = Play::new(1);
    let one = job(&play, 100, TOTAL / 4 * 3, TOTAL / 4 * 3);
    let away = job(&play, 101, TOTAL / 4 * 3, 0);
    play.world.store("101/compute.freeze", ROOT, "1").unwrap();
    let run = |play: &mut Play| (0..10).for_each(|_| _ = play.after(20 * MSEC));
    run(&mut play);
    assert_eq!([limit(&play, one), limit(&play, away)], [0, 0]);
    assert_eq!(play.gate(one), Gate::Run);
    play.world.store("101/compute.freeze", ROOT, "0").unwrap();
    run(&mut play);
    assert_eq!(limit(&play, one), NO_LIMIT);
}
