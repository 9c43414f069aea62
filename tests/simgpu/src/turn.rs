//! Turns on a device: round robin among the processes with work, one slice each.
//!
//! The turn is one word: the owner's slot and the end of its slice, or no owner and since when. The owner
//! need not release it: [`GRACE_NS`] after the end of the slice another process takes it, so that a killed or
//! stopped owner delays others by little more than a slice.
//!
//! A turn is handed on as of the time of the device's last use, however late the owner's thread notices, and
//! the next owner has it from then on, however late its thread wakes: slow host threads cause no idle time of
//! the device.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::clock;
use crate::layout::MAX_PROCESSES;
use crate::member::Member;

/// Nanoseconds after the end of a slice before other processes take the turn.
pub(crate) const GRACE_NS: u64 = 1_000_000;

/// Low bits of the word: the owner's slot plus 1, or 0 for none. The rest is the time in units of 1024 ns.
const OWNER_BITS: u32 = 16;
const UNIT_BITS: u32 = 10;

/// Result of a request for the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// The process has the device from `since` to `until`.
    Mine { since: u64, until: u64 },
    /// Another process has the device; ask again when the bell rings, or after this time.
    Wait(Duration),
}

/// One process's view of the turn on one device.
#[derive(Debug)]
pub(crate) struct Turn {
    member: &'static Member,
    device: usize,
    slice_ns: u64,
    /// Nanoseconds for which the device does nothing when it goes to another process that waits
    /// (`SIMGPU_SWITCH_US`).
    switch_ns: u64,
}

impl Turn {
    pub(crate) fn new(member: &'static Member, device: usize) -> Self {
        let usec = std::env::var("SIMGPU_SWITCH_US").ok();
        let usec: u64 = usec.and_then(|text| text.parse().ok()).unwrap_or(0);
        Turn {
            member,
            device,
            slice_ns: member.machine().config().timeslice_ns.max(2048),
            switch_ns: usec.min(10_000) * 1000,
        }
    }

    /// Requests the turn for work that could have started at `ready`, and queues for it if another process
    /// has it.
    pub(crate) fn ask(&self, now: u64, ready: u64) -> Grant {
        let me = self.member.slot();
        let word = &self.member.shared(self.device).turn;
        loop {
            let seen = word.load(SeqCst);
            let (owner, until) = unpack(seen);
            match owner {
                // Even if late: no other process has had the turn since it was given to us.
                Some(owner) if owner == me => {
                    self.set_wanted(me, false);
                    return Grant::Mine {
                        since: until - self.slice_ns,
                        until,
                    };
                }
                Some(_) if now < until + GRACE_NS => {
                    self.set_wanted(me, true);
                    if word.load(SeqCst) == seen {
                        return Grant::Wait(Duration::from_nanos(until + GRACE_NS - now));
                    }
                }
                // Expired, or free since `until`.
                _ => {
                    let since = match owner {
                        Some(_) => now + self.switch_ns,
                        None => ready.max(until).min(now),
                    };
                    let until = self.end_of_slice(since);
                    if word
                        .compare_exchange(seen, pack(me, until), SeqCst, SeqCst)
                        .is_ok()
                    {
                        self.set_wanted(me, false);
                        return Grant::Mine { since, until };
                    }
                }
            }
        }
    }

    /// Ends a slice with work left: keeps the turn if no process waits, otherwise hands it on and queues for
    /// it. The device was used until `at`. Returns the new end if the turn is kept.
    pub(crate) fn renew(&self, at: u64) -> Option<u64> {
        let me = self.member.slot();
        let word = &self.member.shared(self.device).turn;
        let seen = word.load(SeqCst);
        if unpack(seen).0 != Some(me) {
            return None;
        }
        if let Some(next) = self.next() {
            self.set_wanted(me, true);
            self.give(seen, next, at);
            return None;
        }
        let until = self.end_of_slice(at);
        word.compare_exchange(seen, pack(me, until), SeqCst, SeqCst)
            .is_ok()
            .then_some(until)
    }

    /// Releases the turn with no work left: hands it to the next process or frees it. The device was used
    /// until `at`.
    pub(crate) fn release(&self, at: u64) {
        let word = &self.member.shared(self.device).turn;
        let seen = word.load(SeqCst);
        if unpack(seen).0 != Some(self.member.slot()) {
            return;
        }
        match self.next() {
            Some(next) => self.give(seen, next, at),
            None => {
                let free = at.next_multiple_of(1 << UNIT_BITS) >> UNIT_BITS << OWNER_BITS;
                let _ = word.compare_exchange(seen, free, SeqCst, SeqCst);
                // A process may have queued while the turn was still ours.
                if let Some(next) = self.next() {
                    clock::ring(self.member.bell_of(next, self.device));
                }
            }
        }
    }

    fn give(&self, seen: u64, next: usize, at: u64) {
        self.set_wanted(next, false);
        let given = pack(next, self.end_of_slice(at + self.switch_ns));
        let _ = self
            .member
            .shared(self.device)
            .turn
            .compare_exchange(seen, given, SeqCst, SeqCst);
        clock::ring(self.member.bell_of(next, self.device));
    }

    /// Returns the end of a slice that starts at `at`. Rounded up: the start is computed from the end and
    /// must not lie in the preceding slice.
    fn end_of_slice(&self, at: u64) -> u64 {
        (at + self.slice_ns).next_multiple_of(1 << UNIT_BITS)
    }

    /// Returns the next waiting process after this one, in the order of slots.
    fn next(&self) -> Option<usize> {
        let wanted = &self.member.shared(self.device).wanted;
        let words = wanted.len();
        let first = self.member.slot() + 1;
        for step in 0..=words {
            let index = (first / 64 + step) % words;
            let mut word = wanted[index].load(SeqCst);
            if step == 0 {
                word &= u64::MAX << (first % 64);
            }
            let found = (word != 0).then(|| index * 64 + word.trailing_zeros() as usize);
            if let Some(next) = found.filter(|&next| next != self.member.slot()) {
                return Some(next);
            }
        }
        None
    }

    fn set_wanted(&self, slot: usize, wanted: bool) {
        let word = &self.member.shared(self.device).wanted[slot / 64];
        let bit = 1 << (slot % 64);
        if (word.load(SeqCst) & bit != 0) == wanted {
            return;
        }
        match wanted {
            true => word.fetch_or(bit, SeqCst),
            false => word.fetch_and(!bit, SeqCst),
        };
    }
}

fn pack(slot: usize, until: u64) -> u64 {
    (until >> UNIT_BITS << OWNER_BITS) | (slot as u64 + 1)
}

fn unpack(word: u64) -> (Option<usize>, u64) {
    let owner = usize::try_from(word & ((1 << OWNER_BITS) - 1)).unwrap_or(0);
    (owner.checked_sub(1), word >> OWNER_BITS << UNIT_BITS)
}

const _: () = assert!(MAX_PROCESSES < (1 << OWNER_BITS) - 1);

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> (Turn, Turn) {
        let [a, b] = Member::two();
        (Turn::new(a, 0), Turn::new(b, 0))
    }

    const SLICE: u64 = 2_000_000;
    const NOW: u64 = 1 << 30;

    #[test]
    fn idle_device_goes_to_any_process() {
        let (a, b) = two();
        assert!(matches!(a.ask(NOW, NOW), Grant::Mine { since: NOW, .. }));
        assert!(matches!(b.ask(NOW, NOW), Grant::Wait(_)));
        a.release(NOW);
        assert!(matches!(b.ask(NOW, NOW), Grant::Mine { .. }));
    }

    #[test]
    fn idle_device_runs_work_from_the_time_at_which_it_was_submitted() {
        let (a, b) = two();
        a.ask(NOW, NOW);
        a.release(NOW + 5 * 1024);
        let Grant::Mine { since, until } = b.ask(NOW + SLICE / 2, NOW + 100_000) else {
            panic!("b did not get the free turn")
        };
        assert_eq!(since, NOW + 100_000);
        b.release(until);
        let Grant::Mine { since, .. } = a.ask(until + SLICE, NOW) else {
            panic!("a did not get the free turn")
        };
        assert_eq!(since, until, "not while another process had it");
    }

    #[test]
    fn turns_alternate_while_both_processes_wait() {
        let (a, b) = two();
        a.ask(NOW, NOW);
        b.ask(NOW, NOW);
        for round in 0..4 {
            let (owner, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let now = NOW + (round + 1) * SLICE;
            assert_eq!(owner.renew(now), None, "round {round}");
            assert!(matches!(other.ask(now, now), Grant::Mine { .. }), "round {round}");
            assert!(matches!(owner.ask(now, now), Grant::Wait(_)), "round {round}");
        }
    }

    #[test]
    fn lone_owner_keeps_the_turn() {
        let (a, _) = two();
        a.ask(NOW, NOW);
        assert!(a.renew(NOW + SLICE).is_some_and(|until| until > NOW + SLICE));
    }

    #[test]
    fn late_waker_has_its_slice_from_end_of_the_last_one() {
        let (a, b) = two();
        a.ask(NOW, NOW);
        b.ask(NOW, NOW);
        let ended = NOW + SLICE + 333;
        a.renew(ended);
        let Grant::Mine { since, until } = b.ask(ended + SLICE + GRACE_NS / 2, NOW) else {
            panic!("b did not get the turn")
        };
        assert!((ended..ended + 1024).contains(&since), "{since} after {ended}");
        assert_eq!(until, since + SLICE);
        // Unless another process has taken it since.
        b.renew(until);
        assert!(matches!(
            b.ask(until + SLICE + GRACE_NS + 1024, NOW),
            Grant::Mine { .. }
        ));
        assert!(matches!(
            a.ask(until + SLICE + GRACE_NS + 1024, NOW),
            Grant::Wait(_)
        ));
    }

    #[test]
    fn switch_delays_the_next_owner_alone() {
        let (a, b) = two();
        let a = Turn {
            switch_ns: SLICE / 4,
            ..a
        };
        a.ask(NOW, NOW);
        let until = a.renew(NOW + SLICE).expect("no process waits");
        assert!((NOW + 2 * SLICE..NOW + 2 * SLICE + 1024).contains(&until));
        b.ask(until, until);
        a.renew(until);
        let Grant::Mine { since, .. } = b.ask(until, until) else {
            panic!("b did not get the turn")
        };
        assert!((until + SLICE / 4..until + SLICE / 4 + 1024).contains(&since));
    }

    #[test]
    fn expired_turn_is_taken() {
        let (a, b) = two();
        let Grant::Mine { until, .. } = a.ask(NOW, NOW) else {
            panic!("a did not get the free turn")
        };
        assert!(matches!(b.ask(until, NOW), Grant::Wait(_)));
        assert!(matches!(b.ask(until + GRACE_NS, NOW), Grant::Mine { .. }));
        assert_eq!(a.renew(until), None);
    }
}
