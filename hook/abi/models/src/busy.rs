//! The sequence lock of busy times, written by the hook and read by the daemon.

use std::sync::Arc;

use crate::{check, finds_fault, needed, zeroed};
use gcgroup_abi::UsageDevice;
use gcgroup_abi::sync::Ordering::Relaxed;
use loom::thread;

fn device() -> Arc<UsageDevice> {
    // SAFETY: atomics only.
    let device: Arc<UsageDevice> = unsafe { zeroed() };
    device.busy_sequence.store(0, Relaxed);
    device.busy_since.store(0, Relaxed);
    device.busy_nsec.store(0, Relaxed);
    device
}

/// All consistent values, in order, while work began at 1 and 30, and ended at 11 and 50.
const TRUE: [(u64, u64); 5] = [(0, 0), (1, 0), (0, 10), (30, 10), (0, 30)];

/// The daemon reads twice while the hook counts two busy periods.
fn model(end: impl Fn(&UsageDevice, u64) + Clone + Send + Sync + 'static) -> impl Fn() + Send + Sync {
    move || {
        let device = device();
        let (daemon, end) = (device.clone(), end.clone());
        let hook = thread::spawn(move || {
            assert!(device.begin_busy(1));
            end(&device, 11);
            assert!(device.begin_busy(30));
            end(&device, 50);
        });
        let mut last = 0;
        for _ in 0..2 {
            let (times, is_whole) = daemon.look_at_busy_times();
            if is_whole {
                let number = TRUE.iter().position(|pair| *pair == times);
                let number = number.expect("the two words belong together");
                assert!(number >= last, "time runs forward");
                last = number;
            }
        }
        hook.join().unwrap();
        assert_eq!(daemon.look_at_busy_times(), ((0, 30), true));
    }
}

#[test]
fn busy_times_are_consistent_or_known_not_to_be() {
    let needed = needed(model(UsageDevice::end_busy));
    assert_eq!(
        needed,
        [
            "busy.rs: .store(self.busy_nsec.load(Relaxed).wrapping_add(length), Release);",
            "busy.rs: let before = self.busy_sequence.load(Acquire);",
            "busy.rs: let times = (self.busy_since.load(Acquire), self.busy_nsec.load(Acquire));",
            "busy.rs: let times = (self.busy_since.load(Acquire), self.busy_nsec.load(Acquire));",
            "busy.rs: self.busy_sequence.store(sequence.wrapping_add(2), Release);",
            "busy.rs: self.busy_since.store(0, Release);",
            "busy.rs: self.busy_since.store(now.max(1), Release);",
        ]
    );
}

/// Like `end_busy`, but makes the sequence odd after the first word has changed.
#[test]
#[should_panic(expected = "belong together")]
fn sequence_that_moves_too_late_is_found() {
    check(model(|device, end| {
        let length = end - device.busy_since.load(Relaxed);
        device.busy_nsec.fetch_add(length, Relaxed);
        device.busy_sequence.fetch_add(1, Relaxed);
        device.busy_since.store(0, Relaxed);
        device.busy_sequence.fetch_add(1, Relaxed);
    }));
}

#[test]
fn writer_without_a_sequence_is_found() {
    assert!(finds_fault(model(|device, end| {
        let length = end - device.busy_since.load(Relaxed);
        device.busy_nsec.fetch_add(length, Relaxed);
        device.busy_since.store(0, Relaxed);
    })));
}
