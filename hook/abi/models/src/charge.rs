//! Charges against a limit and a grant that are lowered concurrently.

use std::sync::Arc;

use crate::{check, needed};
use gcgroup_abi::sync::AtomicU64;
use gcgroup_abi::sync::Ordering::{Acquire, Relaxed, Release};
use gcgroup_abi::{NO_LIMIT, Short, lower_grant, try_charge_granted, uncharge};
use loom::thread;

/// The words of a process on one device.
struct Words {
    current: AtomicU64,
    limit: AtomicU64,
    granted: AtomicU64,
}

impl Words {
    fn new(current: u64, limit: u64, granted: u64) -> Arc<Self> {
        let words = Self {
            current: AtomicU64::new(current),
            limit: AtomicU64::new(limit),
            granted: AtomicU64::new(granted),
        };
        words.current.load(Relaxed);
        words.limit.load(Relaxed);
        words.granted.load(Relaxed);
        Arc::new(words)
    }
}

type Charge = fn(&Words, u64, u64) -> Result<u64, Short>;

/// Two threads charge while the daemon lowers the limit from 3 to 2; 1 is already charged.
fn limit_is_lowered(charge: Charge) -> impl Fn() + Send + Sync {
    move || {
        let words = Words::new(1, 3, NO_LIMIT);
        let charging = [2, 1].map(|bytes| {
            let words = words.clone();
            thread::spawn(move || {
                let limit = words.limit.load(Relaxed);
                let charged = charge(&words, bytes, limit);
                if let Ok(sum) = charged {
                    assert!(sum <= limit, "no more is charged than the limit that was seen");
                }
                charged.map_or(0, |_| bytes)
            })
        });
        words.limit.store(2, Relaxed);
        let charged = charging.map(|thread| thread.join().unwrap());
        let current = words.current.load(Relaxed);
        assert_eq!(
            current,
            1 + charged.iter().sum::<u64>(),
            "a refused charge leaves nothing"
        );
        assert!(current <= 3, "both did not pass a limit that has room for one");
        assert!(current > 1, "one of both had room, whichever limit it saw");
        // A thread that knows the new limit charges nothing beyond it.
        assert_eq!(charge(&words, 1, words.limit.load(Relaxed)).is_ok(), current < 2);
    }
}

#[test]
fn charge_keeps_to_a_lowered_limit() {
    check(limit_is_lowered(|words, bytes, limit| {
        try_charge_granted(&words.current, &words.granted, bytes, limit)
    }));
}

/// Checks and then adds.
fn look_and_add(words: &Words, bytes: u64, limit: u64) -> Result<u64, Short> {
    if words.current.load(Relaxed) + bytes > limit {
        return Err(Short::Limit);
    }
    Ok(words.current.fetch_add(bytes, Relaxed) + bytes)
}

#[test]
#[should_panic(expected = "no more is charged than the limit that was seen")]
fn charge_in_two_steps_is_found() {
    check(limit_is_lowered(look_and_add));
}

/// Adds and undoes what does not fit.
fn add_and_undo(words: &Words, bytes: u64, limit: u64) -> Result<u64, Short> {
    let sum = words.current.fetch_add(bytes, Relaxed) + bytes;
    if sum <= limit {
        return Ok(sum);
    }
    uncharge(&words.current, bytes);
    Err(Short::Limit)
}

#[test]
#[should_panic(expected = "one of both had room")]
fn refused_charge_visible_for_a_moment_is_found() {
    check(limit_is_lowered(add_and_undo));
}

type ChargeGranted = fn(&Words, u64) -> bool;
type Lower = fn(&Words, u64, u64) -> u64;

fn granted(words: &Words, bytes: u64) -> bool {
    try_charge_granted(&words.current, &words.granted, bytes, NO_LIMIT).is_ok()
}

fn lower(words: &Words, old: u64, target: u64) -> u64 {
    lower_grant(&words.current, &words.granted, old, target)
}

/// A thread charges while the daemon takes back the unused part of a grant.
fn grant_is_taken_back(old: u64, charge: ChargeGranted, lower: Lower) -> impl Fn() + Send + Sync {
    move || {
        let words = Words::new(0, NO_LIMIT, old);
        let other = words.clone();
        let charging = thread::spawn(move || charge(&other, 2));
        let left = lower(&words, old, 0);
        let is_charged = charging.join().unwrap();
        let charged = if is_charged { 2 } else { 0 };
        assert_eq!(
            words.current.load(Relaxed),
            charged,
            "an undone charge leaves nothing"
        );
        assert!(
            charged <= left,
            "no charge is committed beyond what is left of the grant"
        );
        assert_eq!(words.granted.load(Relaxed), left);
    }
}

#[test]
fn committed_charge_stays_within_lowered_grant() {
    assert_eq!(
        needed(grant_is_taken_back(2, granted, lower)),
        [
            "charge.rs: Ok(_) if sum <= granted.load(SeqCst) => return Ok(sum),",
            "charge.rs: granted.store(target, SeqCst);",
            "charge.rs: let kept = current.load(SeqCst).clamp(target, old);",
            "charge.rs: match current.compare_exchange_weak(now, sum, SeqCst, Relaxed) {",
        ]
    );
}

#[test]
#[should_panic(expected = "beyond what is left of the grant")]
fn charge_that_does_not_check_again_is_found() {
    let once: ChargeGranted = |words, bytes| {
        let fits = words.granted.load(Relaxed) >= bytes;
        fits && words.current.fetch_add(bytes, Relaxed) == 0
    };
    check(grant_is_taken_back(2, once, lower));
}

#[test]
#[should_panic(expected = "beyond what is left of the grant")]
fn grant_lowered_after_the_check_is_found() {
    let late: Lower = |words, old, target| {
        let kept = words.current.load(Relaxed).clamp(target, old);
        words.granted.store(kept, Relaxed);
        kept
    };
    check(grant_is_taken_back(2, granted, late));
}

/// Two threads of the process charge and one of them uncharges, while the daemon takes back what is unused.
#[test]
fn charges_of_two_threads_stay_within_lowered_grant() {
    check(|| {
        let words = Words::new(0, NO_LIMIT, 2);
        let threads = [true, false].map(|uncharges| {
            let words = words.clone();
            thread::spawn(move || {
                let is_charged = granted(&words, 1);
                if is_charged && uncharges {
                    uncharge(&words.current, 1);
                }
                is_charged && !uncharges
            })
        });
        let left = lower(&words, 2, 0);
        let charged: u64 = threads
            .map(|thread| u64::from(thread.join().unwrap()))
            .iter()
            .sum();
        assert!(charged <= left);
        assert_eq!(words.current.load(Relaxed), charged);
        assert!(left <= 2);
    });
}

/// A request for more and its answer (`hook/src/memory/grant.rs`,
/// `gcgroupfs/model/src/tree/enforce/answers.rs`): two counters, each stored after its data.
fn request(order: [gcgroup_abi::sync::Ordering; 2]) -> impl Fn() + Send + Sync {
    move || {
        let [store, load] = order;
        let words = Arc::new([const { AtomicU64::new(0) }; 4]);
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        let other = words.clone();
        let daemon = thread::spawn(move || {
            let [wanted, request, granted, answer] = &*other;
            if request.load(load) == 1 {
                assert_eq!(wanted.load(Relaxed), 7, "a request comes with its size");
                granted.store(7, Relaxed);
                answer.store(1, store);
            }
        });
        let [wanted, request, granted, answer] = &*words;
        wanted.store(7, Relaxed);
        request.fetch_add(1, store);
        if answer.load(load) == 1 {
            assert_eq!(granted.load(Relaxed), 7, "an answer comes with what was granted");
        }
        daemon.join().unwrap();
    }
}

#[test]
fn request_and_answer_come_with_their_data() {
    check(request([Release, Acquire]));
}

#[test]
#[should_panic(expected = "a request comes with its size")]
fn request_that_is_not_released_is_found() {
    check(request([Relaxed, Acquire]));
}

#[test]
#[should_panic(expected = "comes with")]
fn request_that_is_not_acquired_is_found() {
    check(request([Release, Relaxed]));
}
