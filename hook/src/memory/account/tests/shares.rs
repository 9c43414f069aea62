//! Sums over the shares of an account, compared with a simple model.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::*;

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

/// More streams than shares.
const STREAMS: u64 = 24;

#[test]
fn spare_bytes_equal_reserved_minus_used_for_any_streams() {
    let one = Account::new(0);
    let mut model = Model::default();
    let mut state = 7;
    for _ in 0..20_000 {
        let stream = usize::try_from(1 + random(&mut state) % STREAMS).unwrap();
        match random(&mut state) % 8 {
            0..3 => {
                let bytes = 1 + random(&mut state) % 4;
                let may_do = one.on(on(stream)).begin(bytes).may_do;
                assert_eq!(may_do, model.may_do(bytes, stream));
                if !may_do {
                    model.reserved += 8;
                    assert_eq!(settle(&one, 0, model.reserved, i64::MAX).0, Ok(()));
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
    assert!(model.reserved > 100 && one.shares().count() == SHARES);
}

#[test]
fn concurrent_shares_never_use_the_same_spare_bytes() {
    const RESERVED: u64 = 100;
    let one = account(RESERVED, 0);
    let (used, served) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for stream in 1..=4_usize {
            let (one, used, served) = (&one, &used, &served);
            scope.spawn(move || {
                let mut state = stream as u64;
                for _ in 0..20_000 {
                    let bytes = 1 + random(&mut state) % 40;
                    if !one.on(on(stream)).begin(bytes).may_do {
                        one.end(0, bytes, None);
                        continue;
                    }
                    served.fetch_add(1, SeqCst);
                    assert!(used.fetch_add(bytes, SeqCst) + bytes <= RESERVED);
                    let freed_on = 1 + usize::try_from(random(&mut state) % 4).unwrap();
                    used.fetch_sub(bytes, SeqCst);
                    one.end(0, bytes, Some(on(freed_on)));
                    one.passed(on(freed_on));
                }
            });
        }
    });
    assert!(served.load(SeqCst) > 1000);
    assert!(one.on(on(1)).begin(RESERVED).may_do, "everything is spare again");
}

/// Frees on another stream than the one that allocated.
#[test]
fn new_allocation_stays_new_when_freed_on_another_stream() {
    let one = account(100, 0);
    one.on(on(1)).know(1000, 10);
    for (allocated, freed) in [(1, Some(on(2))), (2, Some(on(1))), (2, None)] {
        allocate(&one, 1000, allocated);
        one.end(1000, 10, freed);
        assert!(!one.may_have_shrunk());
        freed.inspect(|stream| one.passed(*stream));
    }
    allocate(&one, 1000, 1);
    measure(&one);
    one.end(1000, 10, Some(on(2)));
    assert!(one.may_have_shrunk(), "it existed when the pool was measured");
}

/// A program that frees much at once and then waits.
#[test]
fn all_waiting_bytes_are_spare_after_the_stream_was_waited_for() {
    let one = account(1000, 0);
    for number in 0..300 {
        assert!(one.on(on(1)).begin(1 + number % 3).may_do);
    }
    for number in 0..300 {
        one.end(0, 1 + number % 3, Some(on(1)));
    }
    assert!(
        one.on(on(1)).begin(3).may_do,
        "the latest blocks are recorded individually"
    );
    one.end(0, 3, Some(on(1)));
    measure(&one);
    assert!(one.may_have_shrunk() && !one.on(on(2)).begin(401).may_do);
    one.end(0, 401, None);
    measure(&one);
    one.lock().passed(on(1));
    assert!(!one.may_have_shrunk(), "nothing waits any more");
    assert!(one.on(on(2)).begin(1000).may_do);
}
