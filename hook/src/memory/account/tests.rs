use super::*;
use std::cell::Cell;

fn account(reserved: u64, held: u64) -> Account {
    let mut account = Account::new();
    let _ = settle(&mut account, 0, reserved, i64::MAX);
    account.hold(held);
    account
}

fn on(stream: usize) -> Stream {
    Stream::of_test(stream)
}

/// Returns the charged bytes and the part of them that is held.
fn charged(account: &Account) -> (u64, u64) {
    (account.paid(), account.paid() - account.reserved())
}

/// Settles with room for `room` more bytes; returns what was charged minus what was uncharged.
fn settle(account: &mut Account, held: u64, reserved: u64, room: i64) -> (Result<(), Over>, i64) {
    let charged = Cell::new(0_i64);
    let add = |bytes: u64| charged.set(charged.get() + i64::try_from(bytes).unwrap());
    let result = account.settle(
        held,
        reserved,
        |bytes| {
            let fits = i64::try_from(bytes).unwrap() <= room;
            if fits {
                add(bytes);
            }
            fits
        },
        add,
        |bytes| charged.set(charged.get() - i64::try_from(bytes).unwrap()),
    );
    (result, charged.get())
}

#[test]
fn known_range_needs_no_measurement_until_pool_shrinks() {
    let mut one = account(100, 0);
    let begun = one.begin(0, on(1));
    let is_known = |one: &mut Account, address, bytes| one.is_known(address, bytes, begun);
    assert!(!is_known(&mut one, 1000, 10));
    one.know(1000, 10);
    assert!(is_known(&mut one, 1000, 10) && is_known(&mut one, 1004, 6));
    for (address, bytes) in [(1000, 11), (999, 5), (1010, 1)] {
        assert!(!is_known(&mut one, address, bytes));
    }
    assert_eq!(settle(&mut one, 0, 120, 20), (Ok(()), 20), "growth keeps ranges");
    assert!(is_known(&mut one, 1000, 10));
    for number in 1..=u64::try_from(MOST_KNOWN).unwrap() {
        one.know(1000 + 100 * number, 10);
    }
    assert!(!is_known(&mut one, 1000, 10), "the earliest is dropped");
    assert!(is_known(&mut one, 1100, 10));
    assert_eq!(settle(&mut one, 0, 119, 0), (Ok(()), -1));
    assert!(!is_known(&mut one, 1100, 10), "it may have been released");
}

#[test]
fn settle_charges_the_measured_growth() {
    let mut one = account(100, 32);
    assert_eq!(settle(&mut one, 32, 120, 0), (Ok(()), -12));
    assert_eq!(charged(&one), (120, 0));
    assert_eq!(settle(&mut one, 0, 40, 0), (Ok(()), -80), "trimmed");
    assert_eq!(settle(&mut one, 0, 50, 10), (Ok(()), 10));
}

#[test]
fn growth_over_the_limit_is_charged_and_reported() {
    let mut one = account(100, 32);
    assert_eq!(settle(&mut one, 32, 164, 31), (Err(Over), 32));
    assert_eq!(charged(&one), (164, 0));
}

#[test]
fn settle_leaves_what_other_calls_hold() {
    let mut both = account(100, 64);
    assert_eq!(
        settle(&mut both, 32, 164, 0),
        (Ok(()), 0),
        "the other's growth was measured too"
    );
    assert_eq!(charged(&both), (164, 32));
    assert_eq!(settle(&mut both, 32, 164, 0), (Ok(()), 0));
    let mut both = account(100, 64);
    assert_eq!(settle(&mut both, 32, 100, 0), (Ok(()), -32));
    assert_eq!(charged(&both), (132, 32));
}

#[test]
fn growth_step_is_learnt_from_measurements() {
    const M: u64 = 1 << 20;
    let mut one = account(0, 0);
    let grow = |one: &mut Account, bytes, by| {
        let _ = settle(one, 0, by, i64::MAX);
        one.learn(bytes, 0);
    };
    assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, Some(2 * M)));
    grow(&mut one, M, 0);
    assert_eq!(one.hoped(3 * M), Some(4 * M), "no growth observed");
    grow(&mut one, 30 * M, 32 * M);
    assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, None), "as expected");
    grow(&mut one, M, 64 * M);
    assert_eq!(one.foretold(1), 64 * M);
    grow(&mut one, 5 * M, 8 * M);
    assert_eq!(one.foretold(1), 4 * M, "the least step that rounds 5 to 8");
    grow(&mut one, 1, 1 << 60);
    assert_eq!(one.foretold(1), MOST_GROWTH);
    assert_eq!(one.foretold(u64::MAX), u64::MAX);
}

#[test]
fn waiting_block_is_reused_by_its_stream_only() {
    let mut one = account(100, 0);
    assert!(one.begin(60, on(1)).may_do, "nothing is allocated yet");
    one.end(0, 60, Some(on(1)));
    assert!(!one.begin(60, on(2)).may_do);
    one.end(0, 60, None);
    assert!(one.begin(60, on(1)).may_do);
    assert!(!one.begin(60, on(1)).may_do, "it is reused once");
    one.end(0, 60, None);
    one.end(0, 60, Some(on(1)));
    one.passed(on(1));
    assert!(one.begin(90, on(2)).may_do, "nothing waits any more");
    one.end(0, 90, Some(on(2)));
    assert_eq!(settle(&mut one, 0, 95, 0), (Ok(()), -5));
    assert!(!one.begin(90, on(2)).may_do, "it may have been released");
}

/// Measures after a wait for a stream if that is needed; returns whether it was.
fn is_measured(one: &mut Account, stream: usize) -> bool {
    let is_wanted = one.may_have_shrunk();
    if is_wanted {
        measure(one);
    }
    one.passed(on(stream));
    is_wanted
}

/// Measures after the driver had an opportunity to shrink the pool.
fn measure(one: &mut Account) {
    let number = one.measure(true);
    assert!(!one.is_void(number));
}

#[test]
fn measurement_is_needed_after_frees_and_while_they_wait() {
    let mut one = account(100, 0);
    one.begin(10, on(1));
    one.begin(20, on(1));
    assert!(!is_measured(&mut one, 1));
    one.end(0, 10, None);
    assert!(is_measured(&mut one, 1) && !is_measured(&mut one, 1));
    one.end(0, 20, Some(on(1)));
    assert!(is_measured(&mut one, 2) && is_measured(&mut one, 2));
    assert!(is_measured(&mut one, 1) && !is_measured(&mut one, 1));
}

/// Allocates at an address that is known to be reserved.
fn allocate(one: &mut Account, address: u64, stream: usize) {
    let begun = one.begin(10, on(stream));
    assert!(one.is_known(address, 10, begun));
}

#[test]
fn freed_new_allocation_needs_no_measurement() {
    let mut one = account(100, 0);
    one.know(1000, 10);
    one.know(2000, 10);
    for _ in 0..3 {
        allocate(&mut one, 1000, 1);
        allocate(&mut one, 2000, 2);
        one.end(1000, 10, Some(on(1)));
        one.end(2000, 10, None);
        assert!(!one.may_have_shrunk());
        assert_eq!(one.waits_for(), [on(1)]);
        assert!(!is_measured(&mut one, 1));
        assert_eq!(one.waits_for(), []);
    }
    // Allocations that existed at the measurement are not new: the driver may have kept the rest because of
    // them.
    allocate(&mut one, 1000, 1);
    allocate(&mut one, 2000, 1);
    one.end(2000, 10, Some(on(2)));
    measure(&mut one);
    one.end(1000, 10, Some(on(1)));
    assert!(one.may_have_shrunk());
    assert!(is_measured(&mut one, 1));
    assert!(is_measured(&mut one, 2), "it was waiting then");
    assert!(!is_measured(&mut one, 2));
    // Freed twice, or at an unknown address.
    allocate(&mut one, 1000, 1);
    one.end(1000, 10, Some(on(1)));
    one.end(1000, 10, Some(on(1)));
    assert!(is_measured(&mut one, 1));
    allocate(&mut one, 1000, 1);
    one.end(0, 10, None);
    assert!(is_measured(&mut one, 1));
}

#[test]
fn allocation_during_a_measurement_is_not_new() {
    for settle_first in [false, true] {
        let mut one = account(100, 0);
        one.know(1000, 10);
        let begun = one.begin(10, on(1));
        let number = one.measure(true);
        if settle_first {
            assert!(!one.is_void(number));
        }
        assert!(one.is_known(1000, 10, begun));
        one.end(1000, 10, None);
        assert!(one.may_have_shrunk());
    }
    let mut one = account(100, 0);
    one.know(1000, 10);
    let number = one.measure(true);
    allocate(&mut one, 1000, 1);
    assert!(!one.is_void(number));
    one.end(1000, 10, None);
    assert!(one.may_have_shrunk());
}

#[test]
fn after_unexpected_growth_only_exact_size_is_relied_on() {
    let mut one = account(100, 0);
    assert!(one.begin(50, on(1)).may_do);
    one.mistaken(50, on(1));
    assert!(!one.begin(40, on(1)).may_do);
    one.end(0, 40, None);
    assert!(one.begin(50, on(1)).may_do);
    one.end(0, 50, None);
    one.passed(on(7));
    assert!(one.begin(40, on(1)).may_do, "a wait clears the state");
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[derive(Default)]
struct Model {
    reserved: u64,
    live: Vec<(usize, u64)>,
    waiting: Vec<(usize, u64)>,
}

impl Model {
    fn may_do(&mut self, bytes: u64, stream: usize) -> bool {
        let sum = |blocks: &[(usize, u64)]| blocks.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let spare = self
            .reserved
            .saturating_sub(sum(&self.live))
            .saturating_sub(sum(&self.waiting));
        let found = self.waiting.iter().position(|block| *block == (stream, bytes));
        found.map(|at| self.waiting.remove(at));
        self.live.push((stream, bytes));
        found.is_some() || spare >= bytes
    }
}

#[test]
fn spare_bytes_equal_reserved_minus_used_for_any_streams() {
    let mut one = Account::new();
    let mut model = Model::default();
    let mut state = 7;
    for _ in 0..20_000 {
        let stream = usize::try_from(1 + random(&mut state) % 24).unwrap();
        match random(&mut state) % 8 {
            0..3 => {
                let bytes = 1 + random(&mut state) % 4;
                let may_do = one.begin(bytes, on(stream)).may_do;
                assert_eq!(may_do, model.may_do(bytes, stream));
                if !may_do {
                    model.reserved += 8;
                    assert_eq!(settle(&mut one, 0, model.reserved, i64::MAX).0, Ok(()));
                }
            }
            3..7 if !model.live.is_empty() => {
                let at = usize::try_from(random(&mut state)).unwrap() % model.live.len();
                let (_, bytes) = model.live.swap_remove(at);
                let to = (!random(&mut state).is_multiple_of(4)).then_some(stream);
                one.end(0, bytes, to.map(on));
                model.waiting.extend(to.map(|stream| (stream, bytes)));
            }
            _ => {
                one.passed(on(stream));
                model.waiting.retain(|(other, _)| *other != stream);
            }
        }
    }
    assert!(model.reserved > 100);
}

/// Frees on another stream than the one that allocated.
#[test]
fn new_allocation_stays_new_when_freed_on_another_stream() {
    let mut one = account(100, 0);
    one.know(1000, 10);
    for (allocated, freed) in [(1, Some(on(2))), (2, Some(on(1))), (2, None)] {
        allocate(&mut one, 1000, allocated);
        one.end(1000, 10, freed);
        assert!(!one.may_have_shrunk());
        freed.into_iter().for_each(|stream| one.passed(stream));
    }
    allocate(&mut one, 1000, 1);
    measure(&mut one);
    one.end(1000, 10, Some(on(2)));
    assert!(one.may_have_shrunk(), "it existed when the pool was measured");
}

/// The free may have been reached before: then the driver uses other memory, and releases that of the block.
#[test]
fn reused_block_that_waited_at_the_measurement_needs_another() {
    let mut one = account(100, 0);
    one.know(1000, 10);
    one.know(2000, 10);
    allocate(&mut one, 1000, 1);
    measure(&mut one);
    one.end(1000, 10, Some(on(1)));
    assert!(
        is_measured(&mut one, 2),
        "the driver was asked after a wait for another stream"
    );
    allocate(&mut one, 2000, 1);
    assert_eq!(one.waits_for(), []);
    assert!(one.may_have_shrunk());
}

/// A program that frees much at once and then waits.
#[test]
fn all_waiting_bytes_are_spare_after_the_stream_was_waited_for() {
    let mut one = account(1000, 0);
    for number in 0..300 {
        assert!(one.begin(1 + number % 3, on(1)).may_do);
    }
    for number in 0..300 {
        one.end(0, 1 + number % 3, Some(on(1)));
    }
    assert!(
        one.begin(3, on(1)).may_do,
        "the latest blocks are recorded individually"
    );
    one.end(0, 3, Some(on(1)));
    measure(&mut one);
    assert!(one.may_have_shrunk() && !one.begin(401, on(2)).may_do);
    one.end(0, 401, None);
    measure(&mut one);
    one.passed(on(1));
    assert!(!one.may_have_shrunk(), "nothing waits any more");
    assert!(one.begin(1000, on(2)).may_do);
}
