//! Whether the checker itself is to be trusted: outcomes of small programs that C11 allows and forbids.

use std::sync::Arc;

use crate::{check, finds_fault};
use gcgroup_abi::sync::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
use gcgroup_abi::sync::{AtomicU32, fence};
use loom::thread;

struct Words {
    x: AtomicU32,
    y: AtomicU32,
}

fn words() -> Arc<Words> {
    let words = Words {
        x: AtomicU32::new(0),
        y: AtomicU32::new(0),
    };
    words.x.load(Relaxed);
    words.y.load(Relaxed);
    Arc::new(words)
}

/// Each of two threads stores to one word and loads the other: may both miss the other's store?
fn store_buffering(store: Ordering, between: Option<Ordering>, load: Ordering) -> impl Fn() {
    move || {
        let words = words();
        let other = words.clone();
        let fenced = move || {
            if let Some(ordering) = between {
                fence(ordering);
            }
        };
        let thread = thread::spawn(move || {
            other.x.store(1, store);
            fenced();
            other.y.load(load)
        });
        words.y.store(1, store);
        fenced();
        let x = words.x.load(load);
        let y = thread.join().unwrap();
        assert!(x == 1 || y == 1);
    }
}

#[test]
fn stores_before_loads_are_seen_by_one_side_if_sequentially_consistent() {
    check(store_buffering(SeqCst, None, SeqCst));
    check(store_buffering(Relaxed, Some(SeqCst), Relaxed));
    assert!(finds_fault(store_buffering(Release, None, SeqCst)));
    assert!(finds_fault(store_buffering(SeqCst, None, Acquire)));
    assert!(finds_fault(store_buffering(Release, Some(AcqRel), Acquire)));
}

/// A message and a flag that says that it is there.
fn message_passing(store: Ordering, load: Ordering) -> impl Fn() {
    move || {
        let words = words();
        let other = words.clone();
        let thread = thread::spawn(move || {
            other.x.store(1, Relaxed);
            other.y.store(1, store);
        });
        if words.y.load(load) == 1 {
            assert_eq!(words.x.load(Relaxed), 1);
        }
        thread.join().unwrap();
    }
}

#[test]
fn a_message_is_seen_with_its_flag_if_released_and_acquired() {
    check(message_passing(Release, Acquire));
    check(message_passing(SeqCst, SeqCst));
    assert!(finds_fault(message_passing(Relaxed, Acquire)));
    assert!(finds_fault(message_passing(Release, Relaxed)));
}

/// A sequentially consistent load orders nothing but its own location: a plain store before it may still be late.
#[test]
fn a_sequentially_consistent_access_is_no_fence() {
    assert!(finds_fault(|| {
        let words = words();
        let other = words.clone();
        let thread = thread::spawn(move || {
            other.x.store(1, Relaxed);
            other.y.load(SeqCst)
        });
        words.y.store(1, SeqCst);
        let x = words.x.load(SeqCst);
        let y = thread.join().unwrap();
        assert!(x == 1 || y == 1);
    }));
}

/// Read-modify-writes of a word are in one order, whatever their ordering.
#[test]
fn no_update_is_lost() {
    check(|| {
        let words = words();
        let other = words.clone();
        let thread = thread::spawn(move || other.x.fetch_add(1, Relaxed));
        words.x.fetch_add(1, SeqCst);
        thread.join().unwrap();
        assert_eq!(words.x.load(Relaxed), 2);
    });
}
