//! Host memory granted by the groups above (`memory.swap.max` of groups). It is charged against the daemon's
//! grant before it is made and uncharged after it is freed. If the grant is too small, more is requested; no
//! thread sleeps for the answer: the helper has other work, and an allocating thread polls.

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{ControlDevice, MAX_DEVICES, NO_LIMIT, Short, UsageDevice, try_charge_granted, uncharge};
use parking_lot::Mutex;

use super::Swap;
use super::block::Failed;
use super::pool::NotMade;
use crate::helper;
use crate::memory::grant::reaches;

/// How long a daemon may take to answer that is restarting or stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the daemon is rung, and at which a request is repeated while other processes free pool
/// memory.
const RECHECK: Duration = Duration::from_millis(20);
/// How long other processes may take to free pool memory: longer than any keeps it unasked.
const LETTING_GO: Duration = Duration::from_millis(1500);

/// The last request for each device, until its answer has been seen.
#[derive(Debug)]
pub(super) struct Requests([Mutex<Option<Request>>; MAX_DEVICES]);

#[derive(Debug, Clone, Copy)]
struct Request {
    number: u32,
    bytes: u64,
    since: Instant,
    rung: Instant,
    /// When the first request of this series was made.
    begun: Instant,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self([const { Mutex::new(None) }; MAX_DEVICES])
    }
}

impl Swap {
    /// Charges host memory that is about to be made for a device.
    ///
    /// # Errors
    /// * [`NotMade::NotYet`]: the daemon was asked; call again.
    /// * [`NotMade::NotGranted`]: refused, or [`PATIENCE`] has passed since the request; then all callers are
    ///   refused until the daemon answers.
    pub(super) fn charge_host(&self, index: usize, size: u64) -> Result<(), NotMade> {
        let (Some((usage, control)), Some(request)) =
            (self.session.device(index), self.requests.0.get(index))
        else {
            return Err(Failed::Driver.into());
        };
        match try_charge_granted(&usage.swap_charged, &usage.swap_granted, size, NO_LIMIT) {
            Ok(_) => {
                if usage.swap_granted.load(Relaxed) != NO_LIMIT {
                    *request.lock() = None;
                }
                Ok(())
            }
            Err(Short::Limit) => Err(Failed::NoRoom.into()),
            Err(Short::Grant) => Err(self.ask_host(usage, control, &mut request.lock(), size)),
        }
    }

    /// Returns whether all host memory charged for a device is granted. If the groups above have lowered the
    /// grant, pool memory must not be used.
    pub(super) fn is_host_granted(&self, index: usize) -> bool {
        let usage = self.usage().devices.get(index);
        usage.is_some_and(|usage| usage.swap_charged.load(Relaxed) <= usage.swap_granted.load(Relaxed))
    }

    /// Uncharges host memory that was freed or not made.
    pub(super) fn uncharge_host(&self, index: usize, size: u64) {
        if let Some(usage) = self.usage().devices.get(index) {
            uncharge(&usage.swap_charged, size);
        }
    }

    /// Sends a request, or checks the answer to the last one.
    fn ask_host(
        &self,
        usage: &UsageDevice,
        control: &ControlDevice,
        last: &mut Option<Request>,
        bytes: u64,
    ) -> NotMade {
        let (now, mut begun) = (Instant::now(), None);
        if let Some(request) = last {
            if !reaches(control.swap_answer.load(Acquire), request.number) {
                if now - request.rung >= RECHECK {
                    request.rung = now;
                    self.session.ring();
                }
                return match now - request.since < PATIENCE {
                    true => NotMade::NotYet,
                    false => NotMade::NotGranted,
                };
            }
            if control.swap_refused.load(Relaxed) == request.number && request.bytes <= bytes {
                // Does not apply in the helper: pool memory that it has prepared would make other processes
                // wait in the same way, and it tries again anyway.
                let is_recalled =
                    control.swap_recalled.load(Relaxed) == request.number && !helper::is_caller();
                if !is_recalled || now - request.begun >= LETTING_GO {
                    *last = None;
                    return NotMade::NotGranted;
                }
                if now - request.since < RECHECK {
                    return NotMade::NotYet;
                }
                begun = Some(request.begun);
            }
        }
        usage.swap_wanted.store(bytes, Relaxed);
        let number = usage.swap_request.fetch_add(1, Release).wrapping_add(1);
        *last = Some(Request {
            number,
            bytes,
            since: now,
            rung: now,
            begun: begun.unwrap_or(now),
        });
        self.session.ring();
        NotMade::NotYet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;
    use gcgroup_abi::Control;

    const NOT_YET: Result<(), NotMade> = Err(NotMade::NotYet);
    const NOT_GRANTED: Result<(), NotMade> = Err(NotMade::NotGranted);

    /// A process in a group, and the daemon's view of its control block.
    fn member(granted: u64) -> (&'static Swap, &'static Control) {
        let swap = Swap::of_test(NO_LIMIT);
        swap.usage().devices[0].swap_granted.store(granted, Relaxed);
        (swap, adopt(swap))
    }

    /// Adopts another daemon, which knows earlier requests.
    fn adopt(swap: &Swap) -> &'static Control {
        let (control, file) = block::of_daemon();
        let asked = swap.usage().devices[0].swap_request.load(Relaxed);
        control.devices[0].swap_answer.store(asked, Relaxed);
        control.publish();
        swap.adopt(&file);
        control
    }

    fn answer(swap: &Swap, control: &Control, granted: Option<u64>) {
        let usage = &swap.usage().devices[0];
        let number = usage.swap_request.load(Relaxed);
        match granted {
            Some(bytes) => usage.swap_granted.store(bytes, Relaxed),
            None => control.devices[0].swap_refused.store(number, Relaxed),
        }
        control.devices[0].swap_answer.store(number, Release);
    }

    #[test]
    fn charge_beyond_grant_sends_one_request() {
        let (swap, control) = member(100);
        let usage = &swap.usage().devices[0];
        assert_eq!(swap.charge_host(0, 100), Ok(()));
        assert_eq!(usage.swap_request.load(Relaxed), 0);
        for _ in 0..3 {
            assert_eq!(swap.charge_host(0, 50), NOT_YET);
            assert_eq!(usage.swap_request.load(Relaxed), 1);
        }
        assert_eq!(usage.swap_wanted.load(Relaxed), 50);
        answer(swap, control, Some(150));
        assert_eq!(swap.charge_host(0, 50), Ok(()));
        assert_eq!(usage.swap_charged.load(Relaxed), 150);
        swap.uncharge_host(0, 150);
        assert_eq!(usage.swap_charged.load(Relaxed), 0);
    }

    #[test]
    fn insufficient_answer_is_requested_again() {
        let (swap, control) = member(0);
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        answer(swap, control, Some(20));
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        assert_eq!(swap.usage().devices[0].swap_request.load(Relaxed), 2);
    }

    #[test]
    fn refusal_applies_once_and_to_its_size_only() {
        let (swap, control) = member(0);
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        answer(swap, control, None);
        assert_eq!(swap.charge_host(0, 40), NOT_YET, "smaller than the refused size");
        answer(swap, control, None);
        assert_eq!(swap.charge_host(0, 40), NOT_GRANTED);
        assert_eq!(swap.charge_host(0, 40), NOT_YET, "a refusal is used once");
    }

    #[test]
    fn recalled_request_is_repeated_for_limited_time() {
        let (swap, control) = member(0);
        let last = &swap.requests.0[0];
        let requests = || swap.usage().devices[0].swap_request.load(Relaxed);
        let recall = |control: &Control| {
            control.devices[0].swap_recalled.store(requests(), Relaxed);
            answer(swap, control, None);
        };
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        recall(control);
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        assert_eq!(requests(), 1, "not at once");
        last.lock().as_mut().unwrap().since -= RECHECK;
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        assert_eq!(requests(), 2);
        recall(control);
        last.lock().as_mut().unwrap().begun -= LETTING_GO;
        assert_eq!(swap.charge_host(0, 50), NOT_GRANTED);
    }

    #[test]
    fn new_daemon_is_asked_again() {
        let (swap, _lost) = member(0);
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        let next = adopt(swap);
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        answer(swap, next, Some(50));
        assert_eq!(swap.charge_host(0, 50), Ok(()));
    }

    #[test]
    fn silent_daemon_refuses_after_patience() {
        let (swap, control) = member(0);
        assert_eq!(swap.charge_host(0, 50), NOT_YET);
        let last = &swap.requests.0[0];
        last.lock().as_mut().unwrap().since -= PATIENCE;
        assert_eq!(swap.charge_host(0, 50), NOT_GRANTED);
        assert_eq!(swap.charge_host(0, 10), NOT_GRANTED);
        answer(swap, control, Some(50));
        assert_eq!(swap.charge_host(0, 50), Ok(()));
    }
}
