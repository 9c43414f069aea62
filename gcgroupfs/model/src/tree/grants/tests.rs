#![allow(clippy::unwrap_used, reason = "for tests")]

mod chance;
mod race;
mod unused;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::{
    ControlDevice, HIGH_ALONE, HIGH_IN_FORCE, Short, UsageDevice, try_charge_granted, uncharge,
};

use super::*;
use crate::tree::Blocks;
use crate::tree::fixture::{self, device};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 64 * MIB;
const A: ProcessId = ProcessId(1);
const B: ProcessId = ProcessId(2);
const C: ProcessId = ProcessId(3);
const TOP: GroupId = GroupId(100);
const LEFT: GroupId = GroupId(101);
const RIGHT: GroupId = GroupId(102);

/// Returns blocks of a process without limits of its own.
fn blocks() -> std::sync::Arc<dyn Blocks> {
    let blocks = fixture::blocks();
    let control = blocks.control();
    control.memory_limit.store(NO_LIMIT, Relaxed);
    for device in &control.devices {
        device.memory_limit.store(NO_LIMIT, Relaxed);
    }
    blocks
}

/// Returns grants for two devices, with `LEFT` and `RIGHT` in `TOP`.
fn grants() -> Grants {
    grants_of(Resource::Memory)
}

fn grants_of(resource: Resource) -> Grants {
    let devices = Devices::new(vec![device(0), device(1)], fixture::HOST);
    let mut grants = Grants::new(resource, &devices);
    grants.add_group(TOP, None);
    grants.add_group(LEFT, Some(TOP));
    grants.add_group(RIGHT, Some(TOP));
    grants
}

impl Grants {
    fn add(&mut self, id: ProcessId, group: GroupId) {
        self.join(id, Some(group), blocks());
    }

    fn usage(&self, id: ProcessId, device: usize) -> &UsageDevice {
        &self.members[&id].blocks.usage().raw().devices[device]
    }

    /// Returns the words with what the process has charged and may charge.
    fn words(&self, id: ProcessId, device: usize) -> (&AtomicU64, &AtomicU64) {
        let usage = self.usage(id, device);
        match self.resource {
            Resource::Memory => (&usage.memory_current, &usage.memory_granted),
            Resource::Swap => (&usage.swap_charged, &usage.swap_granted),
        }
    }

    fn control(&self, id: ProcessId, device: usize) -> &ControlDevice {
        &self.members[&id].blocks.control().devices[device]
    }

    fn word(&self, id: ProcessId, device: usize) -> u64 {
        self.words(id, device).1.load(Relaxed)
    }

    /// Charges as the hook does: within the grant, else after a request.
    fn allocate(&mut self, id: ProcessId, device: usize, bytes: u64) -> Result<(), Refusal> {
        loop {
            let (current, granted) = self.words(id, device);
            match try_charge_granted(current, granted, bytes, NO_LIMIT) {
                Ok(_) => return Ok(()),
                Err(Short::Limit) => panic!("overflow"),
                Err(Short::Grant) => match self.request(id, device, (bytes, false)) {
                    GrantResult::Granted | GrantResult::GrantedAbove => {}
                    GrantResult::Refused(refusal) => return Err(refusal),
                    result @ (GrantResult::Unknown | GrantResult::TooHigh) => panic!("{result:?}"),
                },
            }
        }
    }

    fn free(&self, id: ProcessId, device: usize, bytes: u64) {
        uncharge(self.words(id, device).0, bytes);
    }

    /// Charges memory that exists already.
    fn force(&self, id: ProcessId, device: usize, bytes: u64) {
        self.usage(id, device).memory_current.fetch_add(bytes, Relaxed);
    }
}

fn refused(group: GroupId, device: Option<usize>) -> Result<(), Refusal> {
    Err(Refusal { group, device })
}

#[test]
fn first_limit_begins_grants_with_current_charge() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.allocate(A, 0, 60).unwrap();
    assert_eq!(grants.word(A, 0), NO_LIMIT);
    grants.set_limit(TOP, Some(0), 100);
    assert_eq!((grants.word(A, 0), grants.word(A, 1)), (60, NO_LIMIT));
    assert_eq!(grants.allocate(A, 0, 41), refused(TOP, Some(0)));
    grants.allocate(A, 0, 40).unwrap();
    assert_eq!(grants.allocate(A, 0, 1), refused(TOP, Some(0)));
    assert_eq!(grants.charged(TOP, Some(0)), 100);
    grants.set_limit(TOP, Some(0), NO_LIMIT);
    assert_eq!(grants.word(A, 0), NO_LIMIT);
    assert_eq!(grants.charged(TOP, Some(0)), 0);
}

#[test]
fn grant_exceeds_request_but_leaves_others_their_part() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.add(B, RIGHT);
    grants.set_limit(TOP, Some(0), 1024 * MIB);
    grants.allocate(A, 0, MIB).unwrap();
    assert_eq!(grants.word(A, 0), MIB + CHUNK);
    grants.set_limit(TOP, Some(0), 73 * MIB);
    grants.allocate(B, 0, 2 * MIB).unwrap();
    assert_eq!(grants.word(B, 0), 4 * MIB, "2 and a third of 6");
}

#[test]
fn swap_grant_is_exactly_the_request() {
    let mut grants = grants_of(Resource::Swap);
    grants.add(A, LEFT);
    grants.add(B, RIGHT);
    grants.set_limit(TOP, None, 1024 * MIB);
    grants.allocate(A, 0, MIB).unwrap();
    assert_eq!(grants.word(A, 0), MIB);
    let usage = grants.usage(A, 0);
    assert_eq!(usage.swap_charged.load(Relaxed), MIB);
    assert_eq!(usage.memory_current.load(Relaxed), 0);
    grants.allocate(B, 1, 1023 * MIB).unwrap();
    assert_eq!(grants.allocate(A, 0, 1), refused(TOP, None));
    grants.free(B, 1, 3);
    grants.allocate(A, 0, 3).unwrap();
    assert_eq!(grants.charged(TOP, None), u128::from(1024 * MIB));
}

#[test]
fn request_takes_back_unused_grants_largest_first() {
    let mut grants = grants();
    for (id, bytes) in [(A, 10), (B, 20)] {
        grants.add(id, LEFT);
        grants.allocate(id, 0, bytes).unwrap();
    }
    grants.add(C, RIGHT);
    grants.set_limit(TOP, Some(0), 100);
    grants.allocate(A, 0, 20).unwrap();
    grants.allocate(B, 0, 50).unwrap();
    grants.free(A, 0, 20);
    grants.free(B, 0, 50);
    assert_eq!((grants.word(A, 0), grants.word(B, 0)), (30, 70));
    grants.allocate(C, 0, 45).unwrap();
    assert_eq!(
        (grants.word(A, 0), grants.word(B, 0)),
        (30, 25),
        "taken from the largest first"
    );
    grants.allocate(C, 0, 25).unwrap();
    assert_eq!((grants.word(A, 0), grants.word(B, 0)), (10, 20));
    assert_eq!(grants.allocate(C, 0, 1), refused(TOP, Some(0)));
}

#[test]
fn request_does_not_take_back_from_requester() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.set_limit(LEFT, Some(0), 100);
    grants.allocate(A, 0, 100).unwrap();
    grants.free(A, 0, 60);
    // 60 of its grant are unused already.
    assert_eq!(grants.allocate(A, 0, 61), refused(LEFT, Some(0)));
    grants.allocate(A, 0, 60).unwrap();
    assert_eq!(grants.charged(LEFT, Some(0)), 100);
}

#[test]
fn refusal_names_the_group_without_room() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.add(B, RIGHT);
    grants.set_limit(TOP, Some(0), 100);
    grants.set_limit(LEFT, Some(0), 70);
    assert_eq!(grants.allocate(A, 0, 71), refused(LEFT, Some(0)));
    grants.allocate(B, 0, 40).unwrap();
    assert_eq!(grants.allocate(A, 0, 61), refused(TOP, Some(0)));
    grants.allocate(A, 0, 60).unwrap();
    assert_eq!(grants.allocate(B, 0, 1), refused(TOP, Some(0)));
    grants.free(A, 0, 30);
    grants.allocate(B, 0, 30).unwrap();
    assert_eq!(grants.charged(LEFT, Some(0)), 30);
    assert_eq!(grants.charged(TOP, None), 100);
}

#[test]
fn limit_on_whole_counts_all_devices() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.add(B, LEFT);
    grants.set_limit(LEFT, None, 100);
    grants.allocate(A, 0, 60).unwrap();
    assert_eq!(grants.allocate(B, 1, 41), refused(LEFT, None));
    grants.allocate(B, 1, 40).unwrap();
    grants.free(A, 0, 10);
    grants.allocate(A, 1, 10).unwrap();
    assert_eq!((grants.word(A, 0), grants.word(A, 1)), (50, 10));
    grants.allocate(B, OTHER_DEVICE, 1).unwrap_err();
    grants.free(B, 1, 1);
    grants.allocate(B, OTHER_DEVICE, 1).unwrap();
    assert_eq!(grants.charged(LEFT, None), 100);
}

#[test]
fn limit_below_usage_closes_grants_until_room() {
    let mut grants = grants();
    for id in [A, B] {
        grants.add(id, LEFT);
        grants.allocate(id, 0, 100).unwrap();
    }
    grants.set_limit(LEFT, Some(0), 150);
    assert_eq!(grants.excess(LEFT, Some(0)), 50);
    grants.free(A, 0, 30);
    grants.look(A);
    assert_eq!(grants.excess(LEFT, Some(0)), 20);
    assert_eq!(
        grants.allocate(A, 0, 1),
        refused(LEFT, Some(0)),
        "170 are charged"
    );
    grants.free(B, 0, 30);
    assert_eq!(
        grants.allocate(A, 0, 11),
        refused(LEFT, Some(0)),
        "140 are charged"
    );
    grants.allocate(A, 0, 10).unwrap();
    assert_eq!(grants.excess(LEFT, Some(0)), 0);
    assert_eq!(grants.allocate(B, 0, 1), refused(LEFT, Some(0)));
    grants.free(B, 0, 5);
    grants.allocate(B, 0, 5).unwrap();
}

#[test]
fn overhead_counts_and_reduces_unused_grants() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.set_limit(LEFT, Some(0), 100);
    grants.allocate(A, 0, 40).unwrap();
    grants.set_overhead(A, 0, 50);
    assert_eq!(grants.charged(LEFT, Some(0)), u128::from(grants.word(A, 0)) + 50);
    assert_eq!(grants.allocate(A, 0, 11), refused(LEFT, Some(0)));
    grants.allocate(A, 0, 10).unwrap();
    grants.set_overhead(A, 0, 60);
    assert_eq!(grants.excess(LEFT, Some(0)), 10);
    grants.free(A, 0, 10);
    assert_eq!(grants.allocate(A, 0, 1), refused(LEFT, Some(0)));
    grants.set_overhead(A, 0, 0);
    grants.allocate(A, 0, 60).unwrap();
}

#[test]
fn moved_process_takes_its_charges_along() {
    let mut grants = grants();
    for (group, limit) in [(TOP, 200), (LEFT, 100), (RIGHT, 100)] {
        grants.set_limit(group, Some(0), limit);
    }
    grants.add(A, LEFT);
    grants.add(B, RIGHT);
    grants.set_overhead(A, 0, 5);
    grants.allocate(A, 0, 60).unwrap();
    grants.allocate(B, 0, 30).unwrap();
    grants.move_to(A, Some(RIGHT));
    assert_eq!(grants.charged(LEFT, Some(0)), 0);
    assert_eq!(grants.allocate(A, 0, 6), refused(RIGHT, Some(0)));
    grants.allocate(A, 0, 5).unwrap();
    grants.move_to(A, None);
    assert_eq!(grants.word(A, 0), NO_LIMIT);
    grants.allocate(A, 0, 1000).unwrap();
    grants.move_to(A, Some(LEFT));
    assert_eq!(grants.excess(LEFT, Some(0)), 970, "the move is not refused");
    assert_eq!(grants.excess(TOP, Some(0)), 900);
    assert_eq!(grants.allocate(B, 0, 1), refused(TOP, Some(0)));
    grants.leave(A);
    grants.allocate(B, 0, 70).unwrap();
    assert_eq!(grants.charged(TOP, Some(0)), 100);
    grants.leave(B);
    assert_eq!(grants.charged(TOP, None), 0);
}

#[test]
fn existing_memory_is_held_beyond_the_limit() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.add(B, LEFT);
    grants.set_limit(LEFT, Some(0), 100);
    grants.allocate(A, 0, 80).unwrap();
    grants.force(A, 0, 10);
    assert_eq!(
        grants.request(A, 0, (0, false)),
        GrantResult::Granted,
        "there is room"
    );
    grants.force(A, 0, 30);
    assert_eq!(
        grants.request(A, 0, (0, false)),
        GrantResult::Refused(Refusal {
            group: LEFT,
            device: Some(0)
        })
    );
    assert_eq!(grants.excess(LEFT, Some(0)), 20);
    assert_eq!(grants.allocate(B, 0, 1), refused(LEFT, Some(0)));
    grants.free(A, 0, 30);
    grants.force(B, 0, 5);
    grants.look(B);
    assert_eq!(grants.allocate(B, 0, 6), refused(LEFT, Some(0)));
    grants.allocate(B, 0, 5).unwrap();
}

#[test]
fn restart_keeps_charges_and_grants_after_all_registered() {
    let mut grants = grants();
    grants.set_limit(LEFT, Some(0), 100);
    grants.set_limit(RIGHT, Some(0), 100);
    grants.await_member(LEFT);
    let old = blocks();
    let usage = &old.usage().raw().devices[0];
    usage.memory_current.store(30, Relaxed);
    usage.memory_granted.store(90, Relaxed);
    grants.join(A, Some(LEFT), old.clone());
    assert_eq!(grants.word(A, 0), 30);
    assert_eq!(grants.request(A, 0, (10, false)), GrantResult::Unknown);
    grants.add(C, RIGHT);
    grants.allocate(C, 0, 10).unwrap();
    let other = blocks();
    other.usage().raw().devices[0].memory_current.store(65, Relaxed);
    grants.join(B, Some(LEFT), other);
    grants.told(LEFT);
    assert_eq!(grants.allocate(A, 0, 6), refused(LEFT, Some(0)));
    grants.allocate(A, 0, 5).unwrap();
}

#[test]
fn false_words_do_not_harm_other_groups() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.add(B, RIGHT);
    grants.set_limit(TOP, None, 1 << 40);
    grants.set_limit(LEFT, None, 100);
    for word in [u64::MAX, 0, 1 << 63] {
        for device in [0, 1, OTHER_DEVICE] {
            grants.usage(A, device).memory_granted.store(word, Relaxed);
            grants.usage(A, device).memory_current.store(word, Relaxed);
            grants.request(A, device, (word, false));
        }
        grants.look(A);
        grants.set_overhead(A, 0, 7);
        grants.move_to(A, Some(LEFT));
    }
    grants.leave(A);
    assert_eq!((grants.charged(TOP, None), grants.charged(LEFT, None)), (0, 0));
    grants.allocate(B, 0, 1 << 30).unwrap();
}

#[test]
fn members_are_told_what_groups_allow_and_have_left() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.add(B, RIGHT);
    let told = |grants: &Grants, id, device| {
        let control = grants.control(id, device);
        (
            control.group_limit.load(Relaxed),
            control.group_room.load(Relaxed),
        )
    };
    grants.set_limit(TOP, None, 100);
    grants.set_limit(LEFT, Some(0), 70);
    assert_eq!(told(&grants, A, 0), (70, 70));
    assert_eq!(told(&grants, A, 1), (100, 100));
    grants.allocate(A, 0, 60).unwrap();
    assert!(grants.word(A, 0) > 60);
    assert_eq!(
        told(&grants, B, 1),
        (100, 40),
        "what A leaves unused is room for B"
    );
    grants.move_to(A, None);
    assert_eq!(told(&grants, A, 0), (NO_LIMIT, NO_LIMIT));
    assert_eq!(told(&grants, B, 1), (100, 100));
    grants.set_limit(TOP, None, NO_LIMIT);
    assert_eq!(told(&grants, B, 1), (NO_LIMIT, NO_LIMIT));
}

#[test]
fn added_group_inherits_limits_and_removed_one_is_not_awaited() {
    let mut grants = grants();
    let new = GroupId(103);
    grants.add_group(new, Some(LEFT));
    grants.set_limit(TOP, Some(0), 50);
    grants.add(A, new);
    assert_eq!(grants.allocate(A, 0, 51), refused(TOP, Some(0)));
    grants.leave(A);
    grants.remove_group(new);
    grants.set_limit(TOP, Some(0), 40);
    grants.add(A, LEFT);
    grants.allocate(A, 0, 40).unwrap();
    // A process awaited in a group that is removed is not waited for any longer.
    grants.add_group(new, Some(TOP));
    grants.await_member(new);
    assert_eq!(grants.request(A, 0, (1, false)), GrantResult::Unknown);
    grants.remove_group(new);
    grants.told(new);
    grants.free(A, 0, 1);
    grants.allocate(A, 0, 1).unwrap();
    assert_eq!(grants.allocate(A, 0, 1), refused(TOP, Some(0)));
}

#[test]
fn request_beyond_high_is_granted_exactly() {
    let mut grants = grants();
    for (id, group) in [(A, LEFT), (B, RIGHT)] {
        grants.join(id, Some(group), blocks());
    }
    grants.set_group_high(TOP, Some(0), 100 * MIB);
    assert_eq!(
        grants.control(A, 0).high.load(Relaxed),
        HIGH_IN_FORCE | HIGH_ALONE
    );
    assert_eq!(grants.control(A, 1).high.load(Relaxed), 0);
    grants.allocate(A, 0, 60 * MIB).unwrap();
    let slack = grants.word(A, 0) - 60 * MIB;
    assert!(slack > 0 && slack <= 20 * MIB, "{slack}");
    // What A does not use is taken back first.
    assert_eq!(grants.request(B, 0, (40 * MIB, false)), GrantResult::Granted);
    assert_eq!((grants.word(A, 0), grants.above(B, 0)), (60 * MIB, vec![]));
    grants.allocate(B, 0, 40 * MIB).unwrap();
    assert_eq!(grants.request(B, 0, (1, true)), GrantResult::TooHigh);
    assert_eq!(grants.word(B, 0), 40 * MIB);
    assert_eq!(grants.request(B, 0, (MIB, false)), GrantResult::GrantedAbove);
    assert_eq!(grants.word(B, 0), 41 * MIB, "nothing beyond the request");
    grants.allocate(B, 0, MIB).unwrap();
    let above = Above {
        group: Some(TOP),
        device: Some(0),
        high: 100 * MIB,
        excess: MIB,
    };
    assert_eq!(grants.above(A, 0), [above], "for all in the group");
    assert_eq!(grants.above(A, 1), []);
    grants.free(A, 0, MIB);
    grants.take_back_unused(B, 0);
    assert_eq!(grants.above(B, 0), []);
}

#[test]
fn limit_refuses_what_high_would_allow() {
    let mut grants = grants();
    grants.join(A, Some(LEFT), blocks());
    grants.set_process_high(A, None, 10);
    grants.set_limit(LEFT, None, 100);
    assert_eq!(grants.control(A, 0).high.load(Relaxed), HIGH_IN_FORCE);
    assert_eq!(grants.request(A, 0, (100, false)), GrantResult::GrantedAbove);
    assert_eq!(grants.allocate(A, 0, 101), refused(LEFT, None));
    assert_eq!(grants.allocate(A, 0, 100), Ok(()));
    grants.set_limit(LEFT, None, NO_LIMIT);
    grants.set_process_high(A, None, NO_LIMIT);
    assert_eq!(grants.word(A, 0), NO_LIMIT, "nothing bounds it any more");
    assert_eq!(grants.control(A, 0).high.load(Relaxed), 0);
}
