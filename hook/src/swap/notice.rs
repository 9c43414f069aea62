//! Notices: before memory moves out for other processes, or because of a limit, the program is told how much
//! it would have to free (`memory.notice`), and has some time for it. What it frees meanwhile does not move.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::UsageDevice;

use super::Swap;
use crate::sys;

/// Interval between looks at what the program has freed.
const LOOK: Duration = Duration::from_millis(5);

/// Longest time that is given, microseconds, whatever the control block says.
const MOST_USEC: u32 = 10_000_000;

/// The notice that is in force on a device, until nothing has to move out any more.
#[derive(Debug)]
pub(super) struct Notice {
    /// When memory moves, nanoseconds of `CLOCK_MONOTONIC`.
    deadline: u64,
    /// Least bytes charged since the notice.
    charged: u64,
}

/// Returns for how long the program is given notice; `None` if nobody reads notices.
fn grace(swap: &Swap, now: u64) -> Option<u64> {
    let control = swap.control();
    let usec = control.notice_usec.load(Relaxed).min(MOST_USEC);
    let is_read = control.notice_until.load(Relaxed) > now;
    (is_read && usec != 0).then_some(u64::from(usec) * 1000)
}

/// Returns for how long a move of `wanted` bytes has to wait, and whether the notice is new; `None`: it may
/// begin.
pub(super) fn wait(
    notice: &mut Option<Notice>,
    swap: &Swap,
    usage: &UsageDevice,
    wanted: u64,
) -> Option<(Duration, bool)> {
    let (now, is_new) = (sys::now(), notice.is_none());
    if is_new {
        let deadline = now + grace(swap, now)?;
        let charged = usage.memory_current.load(Relaxed);
        swap.usage().notice_deadline.store(deadline, Relaxed);
        *notice = Some(Notice { deadline, charged });
    }
    usage.notice_target.store(wanted, Relaxed);
    let left = notice.as_ref()?.deadline.saturating_sub(now);
    (left != 0).then(|| (LOOK.min(Duration::from_nanos(left)), is_new))
}

impl Notice {
    /// Returns the bytes that the program has freed since the last call, until memory moves.
    pub(super) fn freed(&mut self, usage: &UsageDevice) -> u64 {
        if sys::now() >= self.deadline {
            return 0;
        }
        let now = usage.memory_current.load(Relaxed).min(self.charged);
        std::mem::replace(&mut self.charged, now) - now
    }
}

/// Ends the notice that is in force. Returns whether there was one.
pub(super) fn end(notice: &mut Option<Notice>, usage: &UsageDevice) -> bool {
    usage.notice_target.store(0, Relaxed);
    notice.take().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;
    use gcgroup_abi::NO_LIMIT;

    #[test]
    fn move_waits_once_and_only_for_a_reader() {
        let swap = Swap::of_test(NO_LIMIT);
        let (control, file) = block::unlimited(1);
        swap.adopt(&file);
        let (usage, mut notice) = (&swap.usage().devices[0], None);
        usage.memory_current.store(100, Relaxed);
        for (usec, until) in [(1_000_000, 0), (1_000_000, sys::now()), (0, u64::MAX)] {
            control.notice_usec.store(usec, Relaxed);
            control.notice_until.store(until, Relaxed);
            assert_eq!(wait(&mut notice, swap, usage, 60), None);
            assert_eq!(usage.notice_target.load(Relaxed), 0);
        }
        control.notice_usec.store(u32::MAX, Relaxed);
        assert_eq!(wait(&mut notice, swap, usage, 60), Some((LOOK, true)));
        assert!(swap.usage().notice_deadline.load(Relaxed) <= sys::now() + 10_000_000_000);
        for (current, freed) in [(70, 30), (90, 0), (65, 5)] {
            usage.memory_current.store(current, Relaxed);
            assert_eq!(notice.as_mut().map(|notice| notice.freed(usage)), Some(freed));
        }
        assert_eq!(wait(&mut notice, swap, usage, 25), Some((LOOK, false)));
        assert_eq!(usage.notice_target.load(Relaxed), 25);
        let given = notice.as_mut().unwrap();
        given.deadline = sys::now();
        usage.memory_current.store(0, Relaxed);
        assert_eq!(given.freed(usage), 0, "it is moved");
        assert_eq!(wait(&mut notice, swap, usage, 25), None);
        assert!(end(&mut notice, usage) && !end(&mut notice, usage));
        assert_eq!(usage.notice_target.load(Relaxed), 0);
    }
}
