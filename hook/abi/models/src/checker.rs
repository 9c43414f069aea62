//! Tests of the checker itself: outcomes of small programs that C11 allows and forbids.

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

/// Two threads each store to one word and load the other; at least one must see the other's store.
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
fn store_buffering_is_excluded_by_seq_cst_only() {
    check(store_buffering(SeqCst, None, SeqCst));
    check(store_buffering(Relaxed, Some(SeqCst), Relaxed));
    assert!(finds_fault(store_buffering(Release, None, SeqCst)));
    assert!(finds_fault(store_buffering(SeqCst, None, Acquire)));
    assert!(finds_fault(store_buffering(Release, Some(AcqRel), Acquire)));
}

/// One thread stores a message, then a flag; the other loads the flag, then the message.
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
fn message_is_seen_with_flag_by_release_and_acquire() {
    check(message_passing(Release, Acquire));
    check(message_passing(SeqCst, SeqCst));
    assert!(finds_fault(message_passing(Relaxed, Acquire)));
    assert!(finds_fault(message_passing(Release, Relaxed)));
}

/// A `SeqCst` load orders only its own location: an earlier relaxed store may become visible later.
#[test]
fn seq_cst_access_is_no_fence() {
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

/// Read-modify-writes of a word have one order, whatever their ordering.
#[test]
fn updates_are_never_lost() {
    check(|| {
        let words = words();
        let other = words.clone();
        let thread = thread::spawn(move || other.x.fetch_add(1, Relaxed));
        words.x.fetch_add(1, SeqCst);
        thread.join().unwrap();
        assert_eq!(words.x.load(Relaxed), 2);
    });
}
