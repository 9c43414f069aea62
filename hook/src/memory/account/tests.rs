use super::*;
use std::cell::Cell;

fn account(reserved: u64, held: u64) -> Account {
    let mut account = Account::new();
    let _ = settle(&mut account, 0, reserved, i64::MAX);
    let _ = account.begin(graph(0, 0), held);
    account
}

/// Returns what a graph takes that has not run.
fn graph(bytes: u64, free: u64) -> Want {
    graph_numbered(u64::MAX, bytes, free)
}

fn graph_numbered(number: u64, bytes: u64, free: u64) -> Want {
    graph_measured(&Account::new(), number, bytes, free)
}

fn graph_measured(one: &Account, number: u64, bytes: u64, free: u64) -> Want {
    Want::Graph {
        number,
        bytes,
        free,
        measurements: one.measurements(),
    }
}

fn on(stream: usize) -> Stream {
    Stream::of_test(stream)
}

/// A free on a stream, before any query.
fn freed_on(stream: usize) -> Order {
    on(stream).order_of_test(1)
}

fn passed(account: &mut Account, stream: usize) {
    let streams = &[on(stream)];
    account.passed(Reached { streams, last: 1 });
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
        Some(reserved),
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

fn block(bytes: u64, stream: usize) -> Want {
    Want::Block(bytes, on(stream))
}

/// Begins an allocation; returns whether the pool is expected to serve it without growing.
fn allocate(account: &mut Account, bytes: u64, stream: usize) -> bool {
    let growth = account.growth(block(bytes, stream));
    account.begin(block(bytes, stream), 0);
    growth == 0
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
fn growth_step_is_learnt_from_lone_calls() {
    const M: u64 = 1 << 20;
    let step = |one: &Account| one.growth(block(1, 1));
    let grow = |one: &mut Account, bytes, by| {
        let begun = one.begin(graph(bytes, 0), 0);
        let reserved = one.reserved() + by;
        one.measure(false);
        let _ = settle(one, 0, reserved, i64::MAX);
        one.learn(begun);
        let _ = settle(one, 0, 0, i64::MAX);
    };
    let mut one = account(0, 0);
    assert_eq!(step(&one), LEAST_STEP);
    grow(&mut one, M, 0);
    assert_eq!(step(&one), LEAST_STEP, "no growth observed");
    grow(&mut one, M, 64 * M);
    assert_eq!(step(&one), 64 * M);
    grow(&mut one, 5 * M, 8 * M);
    assert_eq!(step(&one), 4 * M, "the least step that rounds 5 to 8");
    one.begin(graph(0, 0), M);
    grow(&mut one, M, 64 * M);
    assert_eq!(step(&one), 4 * M, "the growth may be the other call's");
    let _ = settle(&mut one, M, 0, 0);
    grow(&mut one, 1, 1 << 60);
    assert_eq!(step(&one), MOST_STEP);
    assert_eq!(one.growth(block(u64::MAX, 1)), u64::MAX);
}

#[test]
fn waiting_block_is_reused_by_its_stream_only() {
    let mut one = account(100, 0);
    assert!(allocate(&mut one, 60, 1), "nothing is allocated yet");
    one.end(60, Some(freed_on(1)));
    assert!(!allocate(&mut one, 60, 2));
    one.end(60, None);
    assert!(allocate(&mut one, 60, 1));
    assert!(!allocate(&mut one, 60, 1), "it is reused once");
    one.end(60, None);
    one.end(60, Some(freed_on(1)));
    passed(&mut one, 1);
    assert!(allocate(&mut one, 90, 2), "nothing waits any more");
    one.end(90, Some(freed_on(2)));
    assert_eq!(settle(&mut one, 0, 95, 0), (Ok(()), -5));
    assert!(!allocate(&mut one, 90, 2), "it may have been released");
}

#[test]
fn free_after_the_query_of_a_stream_waits_for_the_next_one() {
    let mut one = account(100, 0);
    for (bytes, number) in [(30, 1), (70, 2)] {
        assert!(allocate(&mut one, bytes, 1));
        one.end(bytes, Some(on(1).order_of_test(number)));
    }
    passed(&mut one, 1);
    assert!(!allocate(&mut one, 40, 2), "70 bytes wait");
    one.end(40, None);
    assert!(allocate(&mut one, 30, 2));
    one.end(30, None);
    // Also where blocks were merged.
    for _ in 0..MOST_WAITING {
        one.end(0, Some(freed_on(1)));
    }
    passed(&mut one, 1);
    assert_eq!(one.waits_for(), [on(1)]);
}

#[test]
fn streams_of_many_waiting_blocks_are_all_known() {
    let mut one = account(1000, 0);
    for stream in 1..=3 * MOST_WAITING {
        one.begin(graph(1, 0), 0);
        one.end(1, Some(freed_on(stream)));
    }
    assert_eq!(one.waits_for().len(), 3 * MOST_WAITING);
}

#[test]
fn pool_that_cannot_be_destroyed_is_never_over() {
    let mut one = account(100, 0);
    one.destroying();
    assert!(!one.end(0, None));
    one.destroyed(false);
    assert!(!one.is_over() && one.has_spare());
    one.destroying();
    one.destroyed(true);
    assert!(one.is_over());
}

/// Measures after a wait for a stream if that is needed; returns whether it was.
fn is_measured(one: &mut Account, stream: usize) -> bool {
    let is_wanted = one.may_have_shrunk();
    if is_wanted {
        measure(one);
    }
    passed(one, stream);
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
    allocate(&mut one, 10, 1);
    allocate(&mut one, 20, 1);
    assert!(!is_measured(&mut one, 1));
    one.end(10, None);
    assert!(is_measured(&mut one, 1) && !is_measured(&mut one, 1));
    one.end(20, Some(freed_on(1)));
    assert!(is_measured(&mut one, 2) && is_measured(&mut one, 2));
    assert!(is_measured(&mut one, 1) && !is_measured(&mut one, 1));
}

#[test]
fn size_that_did_not_fit_is_expected_to_make_the_pool_grow() {
    let mut one = account(100, 0);
    assert!(allocate(&mut one, 50, 1));
    one.mistaken(50, freed_on(1));
    assert!(!allocate(&mut one, 51, 1));
    one.end(51, None);
    assert!(allocate(&mut one, 40, 1), "smaller ones may fit");
    one.end(40, None);
    assert!(allocate(&mut one, 50, 1), "the same block");
    one.end(50, None);
    passed(&mut one, 7);
    assert!(allocate(&mut one, 51, 1), "a wait clears the state");
}

#[test]
fn graphs_in_progress_do_not_count_on_the_same_free_bytes() {
    let mut one = account(100, 0);
    let (first, second) = (graph_numbered(1, 60, 100), graph_numbered(2, 60, 100));
    assert_eq!(one.growth(first), 0);
    let begun = one.begin(first, 0);
    assert_eq!(one.growth(second), 20, "40 are left");
    let second = graph_measured(&one, 2, 60, 100);
    one.measure(false);
    one.end(begun.bytes, None);
    assert!(
        one.is_outdated(second),
        "the first one may have taken what was free"
    );
    let second = graph_measured(&one, 2, 60, 100);
    assert!(!one.is_outdated(second));
    assert_eq!(one.growth(second), 0);
}

#[test]
fn only_the_graph_that_ran_last_needs_no_free_bytes() {
    let mut one = account(60, 0);
    let [first, second] = [1, 2].map(|number| graph_numbered(number, 60, 0));
    let run = |one: &mut Account, want| {
        let growth = one.growth(want);
        let begun = one.begin(want, 0);
        one.end(begun.bytes, None);
        growth
    };
    assert_eq!(run(&mut one, first), 60);
    assert_eq!(run(&mut one, first), 0);
    assert_eq!(run(&mut one, second), 60);
    assert_eq!(run(&mut one, first), 60, "the second one may have its memory");
    one.forget_graph();
    assert_eq!(run(&mut one, first), 60, "it was trimmed");
}

#[test]
fn unmeasured_pool_keeps_its_charge_and_is_unknown() {
    let mut one = account(100, 32);
    let result = one.settle(
        32,
        None,
        |_| false,
        |_| unreachable!(),
        |bytes| assert_eq!(bytes, 0),
    );
    assert_eq!((result, charged(&one)), (Ok(()), (132, 0)));
    assert!(one.is_unknown() && !one.is_as_measured(132));
    assert_eq!(settle(&mut one, 0, 100, 0), (Ok(()), -32));
    assert!(!one.is_unknown());
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
                let may_do = allocate(&mut one, bytes, stream);
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
                one.end(bytes, to.map(freed_on));
                model.waiting.extend(to.map(|stream| (stream, bytes)));
            }
            _ => {
                passed(&mut one, stream);
                model.waiting.retain(|(other, _)| *other != stream);
            }
        }
    }
    assert!(model.reserved > 100);
}

/// A program that frees much at once and then waits.
#[test]
fn all_waiting_bytes_are_spare_after_the_stream_was_waited_for() {
    let mut one = account(1000, 0);
    for number in 0..300 {
        assert!(allocate(&mut one, 1 + number % 3, 1));
    }
    for number in 0..300 {
        one.end(1 + number % 3, Some(freed_on(1)));
    }
    assert!(
        allocate(&mut one, 3, 1),
        "the latest blocks are recorded individually"
    );
    one.end(3, Some(freed_on(1)));
    measure(&mut one);
    assert!(one.may_have_shrunk() && !allocate(&mut one, 401, 2));
    one.end(401, None);
    measure(&mut one);
    passed(&mut one, 1);
    assert!(!one.may_have_shrunk(), "nothing waits any more");
    assert!(allocate(&mut one, 1000, 2));
}

/// A driver whose pool grows at its own choice, by at most one step for a call.
#[derive(Default)]
struct Driver {
    reserved: u64,
    used: u64,
}

/// Random calls of several threads at a limit, by the rules of `Reserve::charge` and `pool::alloc_from`: what
/// the pool has reserved exceeds the limit by at most one step for each call in progress and each refused
/// attempt whose stream has not reached the free, and nothing is charged that is not reserved or held.
#[test]
fn reserved_bytes_exceed_the_limit_by_at_most_a_step_per_call() {
    const LIMIT: u64 = 100;
    const STEP: u64 = 8;
    let mut state = 11;
    let (mut nr_granted, mut nr_refused) = (0, 0);
    for _ in 0..200 {
        let (mut one, mut driver) = (account(0, 0), Driver::default());
        let (mut calls, mut live, mut behind) = (Vec::new(), Vec::new(), 0);
        for _ in 0..300 {
            let stream = usize::try_from(1 + random(&mut state) % 3).unwrap();
            let settle = |one: &mut Account, held, reserved| {
                one.measure(true);
                let paid = one.paid();
                let fits = |bytes: u64| paid + bytes <= LIMIT;
                one.settle(held, Some(reserved), fits, |_| {}, |_| {})
            };
            match random(&mut state) % 4 {
                0 => {
                    let bytes = 1 + random(&mut state) % STEP;
                    let growth = one.growth(block(bytes, stream)).min(STEP);
                    if one.paid() + growth > LIMIT {
                        nr_refused += 1;
                        // Trimmed.
                        driver.reserved = driver.used.next_multiple_of(STEP);
                        let _ = settle(&mut one, 0, driver.reserved);
                        continue;
                    }
                    calls.push((bytes, stream, one.begin(block(bytes, stream), growth)));
                }
                1 if !calls.is_empty() => {
                    let at = usize::try_from(random(&mut state)).unwrap() % calls.len();
                    let (bytes, stream, begun): (u64, usize, Begun) = calls.swap_remove(at);
                    driver.used += bytes;
                    let grows = driver.used > driver.reserved || random(&mut state).is_multiple_of(4);
                    driver.reserved += if grows { STEP } else { 0 };
                    if settle(&mut one, begun.growth, driver.reserved).is_ok() {
                        nr_granted += 1;
                        live.push(bytes);
                    } else {
                        one.mistaken(bytes, freed_on(stream));
                        driver.used -= bytes;
                        behind += 1;
                    }
                }
                2 if !live.is_empty() => {
                    let bytes = live.swap_remove(0);
                    driver.used -= bytes;
                    one.end(bytes, Some(freed_on(stream)));
                }
                _ => {
                    (1..4).for_each(|stream| passed(&mut one, stream));
                    driver.reserved = driver.used.next_multiple_of(STEP).min(driver.reserved);
                    let _ = settle(&mut one, 0, driver.reserved);
                    behind = 0;
                }
            }
            let in_progress = u64::try_from(calls.len()).unwrap() + behind;
            assert!(
                driver.reserved <= LIMIT + STEP * in_progress,
                "{}",
                driver.reserved
            );
            assert!(one.reserved() <= driver.reserved && driver.reserved <= one.paid() + STEP * in_progress);
        }
    }
    assert!(
        nr_granted > 1000 && nr_refused > 1000,
        "{nr_granted} {nr_refused}"
    );
}
