mod shares;

use super::*;
use std::cell::Cell;

fn account(reserved: u64, held: u64) -> Account {
    let account = Account::new(0);
    let _ = settle(&account, 0, reserved, i64::MAX);
    account.lock().hold(held);
    account
}

fn on(stream: usize) -> Stream {
    Stream::of_test(stream)
}

/// Returns the charged bytes and the part of them that is held.
fn charged(account: &Account) -> (u64, u64) {
    let whole = account.lock();
    (whole.paid(), whole.paid() - whole.reserved())
}

/// Settles with room for `room` more bytes; returns what was charged minus what was uncharged.
fn settle(account: &Account, held: u64, reserved: u64, room: i64) -> (Result<(), Over>, i64) {
    let charged = Cell::new(0_i64);
    let add = |bytes: u64| charged.set(charged.get() + i64::try_from(bytes).unwrap());
    let result = account.lock().settle(
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
    let one = account(100, 0);
    let begun = one.on(on(1)).begin(0);
    let is_known = |address, bytes| {
        let is_known = one.on(on(1)).is_known(address, bytes, begun);
        let elsewhere = one.on(on(2)).is_known(address, bytes, begun);
        assert_eq!(is_known, elsewhere, "independent of the stream");
        is_known
    };
    assert!(!is_known(1000, 10));
    one.on(on(1)).know(1000, 10);
    assert!(is_known(1000, 10) && is_known(1004, 6));
    for (address, bytes) in [(1000, 11), (999, 5), (1010, 1)] {
        assert!(!is_known(address, bytes));
    }
    assert_eq!(settle(&one, 0, 120, 20), (Ok(()), 20), "growth keeps ranges");
    assert!(is_known(1000, 10));
    for number in 1..=u64::try_from(share::MOST_KNOWN).unwrap() {
        one.on(on(1)).know(1000 + 100 * number, 10);
    }
    assert!(!is_known(1000, 10), "the earliest is dropped");
    assert!(is_known(1100, 10));
    assert_eq!(settle(&one, 0, 119, 0), (Ok(()), -1));
    assert!(!is_known(1100, 10), "it may have been released");
}

#[test]
fn settle_charges_the_measured_growth() {
    let one = account(100, 32);
    assert_eq!(settle(&one, 32, 120, 0), (Ok(()), -12));
    assert_eq!(charged(&one), (120, 0));
    assert_eq!(settle(&one, 0, 40, 0), (Ok(()), -80), "trimmed");
    assert_eq!(settle(&one, 0, 50, 10), (Ok(()), 10));
}

#[test]
fn growth_over_the_limit_is_charged_and_reported() {
    let one = account(100, 32);
    assert_eq!(settle(&one, 32, 164, 31), (Err(Over), 32));
    assert_eq!(charged(&one), (164, 0));
}

#[test]
fn settle_leaves_what_other_calls_hold() {
    let both = account(100, 64);
    assert_eq!(
        settle(&both, 32, 164, 0),
        (Ok(()), 0),
        "the other's growth was measured too"
    );
    assert_eq!(charged(&both), (164, 32));
    assert_eq!(settle(&both, 32, 164, 0), (Ok(()), 0));
    let both = account(100, 64);
    assert_eq!(settle(&both, 32, 100, 0), (Ok(()), -32));
    assert_eq!(charged(&both), (132, 32));
}

#[test]
fn growth_step_is_learnt_from_measurements() {
    const M: u64 = 1 << 20;
    let one = account(0, 0);
    let grow = |bytes, by| {
        let _ = settle(&one, 0, by, i64::MAX);
        one.lock().learn(bytes, 0);
    };
    assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, Some(2 * M)));
    grow(M, 0);
    assert_eq!(one.hoped(3 * M), Some(4 * M), "no growth observed");
    grow(30 * M, 32 * M);
    assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, None), "as expected");
    grow(M, 64 * M);
    assert_eq!(one.foretold(1), 64 * M);
    grow(5 * M, 8 * M);
    assert_eq!(one.foretold(1), 4 * M, "the least step that rounds 5 to 8");
    grow(1, 1 << 60);
    assert_eq!(one.foretold(1), whole::MOST_GROWTH);
    assert_eq!(one.foretold(u64::MAX), u64::MAX);
}

#[test]
fn waiting_block_is_reused_by_its_stream_only() {
    let one = account(100, 0);
    assert!(one.on(on(1)).begin(60).may_do, "nothing is allocated yet");
    one.end(0, 60, Some(on(1)));
    assert!(!one.on(on(2)).begin(60).may_do);
    one.end(0, 60, None);
    assert!(one.on(on(1)).begin(60).may_do);
    assert!(!one.on(on(1)).begin(60).may_do, "it is reused once");
    one.end(0, 60, None);
    one.end(0, 60, Some(on(1)));
    one.lock().passed(on(1));
    assert!(one.on(on(2)).begin(90).may_do, "nothing waits any more");
    one.end(0, 90, Some(on(2)));
    assert_eq!(settle(&one, 0, 95, 0), (Ok(()), -5));
    assert!(!one.on(on(2)).begin(90).may_do, "it may have been released");
}

/// Measures after a wait for a stream if that is needed; returns whether it was.
fn is_measured(one: &Account, stream: usize) -> bool {
    let is_wanted = one.may_have_shrunk();
    if is_wanted {
        measure(one);
        one.lock().passed(on(stream));
    } else {
        one.passed(on(stream));
    }
    is_wanted
}

/// Measures after the driver had an opportunity to shrink the pool.
fn measure(one: &Account) {
    let number = one.lock().measure(true);
    assert!(!one.lock().is_void(number));
}

#[test]
fn measurement_is_needed_after_frees_and_while_they_wait() {
    let one = account(100, 0);
    one.on(on(1)).begin(10);
    one.on(on(1)).begin(20);
    assert!(!is_measured(&one, 1));
    one.end(0, 10, None);
    assert!(is_measured(&one, 1) && !is_measured(&one, 1));
    one.end(0, 20, Some(on(1)));
    assert!(is_measured(&one, 2) && is_measured(&one, 2));
    assert!(is_measured(&one, 1) && !is_measured(&one, 1));
}

/// Allocates at an address that is known to be reserved.
fn allocate(one: &Account, address: u64, stream: usize) {
    let begun = one.on(on(stream)).begin(10);
    assert!(one.on(on(stream)).is_known(address, 10, begun));
}

#[test]
fn freed_new_allocation_needs_no_measurement() {
    let one = account(100, 0);
    one.on(on(1)).know(1000, 10);
    one.on(on(1)).know(2000, 10);
    for _ in 0..3 {
        allocate(&one, 1000, 1);
        allocate(&one, 2000, 2);
        one.end(1000, 10, Some(on(1)));
        one.end(2000, 10, None);
        assert!(!one.is_restless());
        assert_eq!(one.lock().waits_for(), [on(1)]);
        assert!(!is_measured(&one, 1));
        assert_eq!(one.lock().waits_for(), []);
    }
    // Allocations that existed at the measurement are not new: the driver may have kept the rest because of
    // them.
    allocate(&one, 1000, 1);
    allocate(&one, 2000, 1);
    one.end(2000, 10, Some(on(2)));
    measure(&one);
    one.end(1000, 10, Some(on(1)));
    assert!(one.is_restless());
    assert!(is_measured(&one, 1));
    assert!(is_measured(&one, 2), "it was waiting then");
    assert!(!is_measured(&one, 2));
    // Freed twice, or at an unknown address.
    allocate(&one, 1000, 1);
    one.end(1000, 10, Some(on(1)));
    one.end(1000, 10, Some(on(1)));
    assert!(is_measured(&one, 1));
    allocate(&one, 1000, 1);
    one.end(0, 10, None);
    assert!(is_measured(&one, 1));
}

#[test]
fn allocation_during_a_measurement_is_not_new() {
    for settle_first in [false, true] {
        let one = account(100, 0);
        one.on(on(1)).know(1000, 10);
        let begun = one.on(on(1)).begin(10);
        let number = one.lock().measure(true);
        if settle_first {
            assert!(!one.lock().is_void(number));
        }
        assert!(one.on(on(1)).is_known(1000, 10, begun));
        one.end(1000, 10, None);
        assert!(one.may_have_shrunk());
    }
    let one = account(100, 0);
    one.on(on(1)).know(1000, 10);
    let number = one.lock().measure(true);
    allocate(&one, 1000, 1);
    assert!(!one.lock().is_void(number));
    one.end(1000, 10, None);
    assert!(one.may_have_shrunk());
}

#[test]
fn after_unexpected_growth_only_exact_size_is_relied_on() {
    let one = account(100, 0);
    assert!(one.on(on(1)).begin(50).may_do);
    one.mistaken(50, on(1));
    assert!(!one.on(on(1)).begin(40).may_do);
    one.end(0, 40, None);
    assert!(one.on(on(1)).begin(50).may_do);
    one.end(0, 50, None);
    one.lock().passed(on(7));
    assert!(one.on(on(1)).begin(40).may_do, "a wait clears the state");
}
