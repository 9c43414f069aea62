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

/// What is charged, and the part of it that is held.
fn charged(account: &Account) -> (u64, u64) {
    let whole = account.lock();
    (whole.paid(), whole.paid() - whole.reserved())
}

/// Settles against a ledger with room for `room` more bytes; returns what was charged (less what was given back).
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
fn what_is_made_where_something_was_needs_no_measurement_until_the_pool_shrinks() {
    let one = account(100, 0);
    let begun = one.on(on(1)).begin(0);
    let is_known = |address, bytes| {
        let is_known = one.on(on(1)).is_known(address, bytes, begun);
        let elsewhere = one.on(on(2)).is_known(address, bytes, begun);
        assert_eq!(is_known, elsewhere, "whichever stream it is for");
        is_known
    };
    assert!(!is_known(1000, 10));
    one.on(on(1)).know(1000, 10);
    assert!(is_known(1000, 10) && is_known(1004, 6));
    for (address, bytes) in [(1000, 11), (999, 5), (1010, 1)] {
        assert!(!is_known(address, bytes));
    }
    assert_eq!(
        settle(&one, 0, 120, 20),
        (Ok(()), 20),
        "growing takes nothing away"
    );
    assert!(is_known(1000, 10));
    for number in 1..=u64::try_from(share::MOST_KNOWN).unwrap() {
        one.on(on(1)).know(1000 + 100 * number, 10);
    }
    assert!(!is_known(1000, 10), "the earliest is forgotten");
    assert!(is_known(1100, 10));
    assert_eq!(settle(&one, 0, 119, 0), (Ok(()), -1));
    assert!(!is_known(1100, 10), "it may be what was given back");
}

#[test]
fn a_call_pays_for_the_growth_that_was_measured() {
    let one = account(100, 32);
    assert_eq!(settle(&one, 32, 120, 0), (Ok(()), -12));
    assert_eq!(charged(&one), (120, 0));
    assert_eq!(settle(&one, 0, 40, 0), (Ok(()), -80), "trimmed");
    assert_eq!(settle(&one, 0, 50, 10), (Ok(()), 10));
}

#[test]
fn growth_that_does_not_fit_is_said_and_charged() {
    let one = account(100, 32);
    assert_eq!(settle(&one, 32, 164, 31), (Err(Over), 32));
    assert_eq!(charged(&one), (164, 0));
}

#[test]
fn calls_under_way_keep_what_they_hold() {
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
fn growth_is_foretold_in_steps_that_are_learnt() {
    const M: u64 = 1 << 20;
    let one = account(0, 0);
    let grow = |bytes, by| {
        let _ = settle(&one, 0, by, i64::MAX);
        one.lock().learn(bytes, 0);
    };
    assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, Some(2 * M)));
    grow(M, 0);
    assert_eq!(one.hoped(3 * M), Some(4 * M), "nothing was seen");
    grow(30 * M, 32 * M);
    assert_eq!((one.foretold(1), one.hoped(1)), (32 * M, None), "as foretold");
    grow(M, 64 * M);
    assert_eq!(one.foretold(1), 64 * M);
    grow(5 * M, 8 * M);
    assert_eq!(one.foretold(1), 4 * M, "the least step that takes 5 to 8");
    grow(1, 1 << 60);
    assert_eq!(one.foretold(1), whole::MOST_GROWTH);
    assert_eq!(one.foretold(u64::MAX), u64::MAX);
}

#[test]
fn what_waits_for_a_stream_serves_that_stream_alone() {
    let one = account(100, 0);
    assert!(one.on(on(1)).begin(60).may_do, "nothing is allocated yet");
    one.end(0, 60, Some(on(1)));
    assert!(!one.on(on(2)).begin(60).may_do);
    one.end(0, 60, None);
    assert!(one.on(on(1)).begin(60).may_do);
    assert!(!one.on(on(1)).begin(60).may_do, "it is given once");
    one.end(0, 60, None);
    one.end(0, 60, Some(on(1)));
    one.lock().passed(on(1));
    assert!(one.on(on(2)).begin(90).may_do, "nothing waits any more");
    one.end(0, 90, Some(on(2)));
    assert_eq!(settle(&one, 0, 95, 0), (Ok(()), -5));
    assert!(
        !one.on(on(2)).begin(90).may_do,
        "it may have been what was given back"
    );
}

/// Measures it after a stream was waited for, where that is wanted; whether it was.
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

/// Measures it after the driver had occasion to give something back.
fn measure(one: &Account) {
    let number = one.lock().measure(true);
    assert!(!one.lock().is_void(number));
}

#[test]
fn it_is_measured_again_after_something_was_freed_or_while_it_waits() {
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

/// Allocates where it is known that the pool has some.
fn allocate(one: &Account, address: u64, stream: usize) {
    let begun = one.on(on(stream)).begin(10);
    assert!(one.on(on(stream)).is_known(address, 10, begun));
}

#[test]
fn what_came_and_went_since_it_was_measured_is_no_reason_to_measure_again() {
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
    // What was there when it was measured is: the driver may have kept the rest for its sake.
    allocate(&one, 1000, 1);
    allocate(&one, 2000, 1);
    one.end(2000, 10, Some(on(2)));
    measure(&one);
    one.end(1000, 10, Some(on(1)));
    assert!(one.is_restless());
    assert!(is_measured(&one, 1));
    assert!(is_measured(&one, 2), "it waited then");
    assert!(!is_measured(&one, 2));
    // Freed twice, or of an unknown address.
    allocate(&one, 1000, 1);
    one.end(1000, 10, Some(on(1)));
    one.end(1000, 10, Some(on(1)));
    assert!(is_measured(&one, 1));
    allocate(&one, 1000, 1);
    one.end(0, 10, None);
    assert!(is_measured(&one, 1));
}

#[test]
fn what_a_measurement_under_way_may_see_is_not_new() {
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
fn after_a_mistake_only_a_block_of_the_very_size_is_relied_on() {
    let one = account(100, 0);
    assert!(one.on(on(1)).begin(50).may_do);
    one.mistaken(50, on(1));
    assert!(!one.on(on(1)).begin(40).may_do);
    one.end(0, 40, None);
    assert!(one.on(on(1)).begin(50).may_do);
    one.end(0, 50, None);
    one.lock().passed(on(7));
    assert!(one.on(on(1)).begin(40).may_do, "it may be another matter now");
}
