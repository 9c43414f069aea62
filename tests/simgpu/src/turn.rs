//! Whose turn it is on a device: round robin among the processes with work, a slice each.
//!
//! The turn is one word: the owner's slot and the time until which it is the owner's. Nobody must give
//! it back: once it has lapsed by [`GRACE_NS`], whoever wants it takes it, so that neither a killed nor
//! a stopped owner holds others up for more than a slice.
//!
//! Who gives it on does so as of the time it used the device last, however late its thread is to notice, and
//! who is given it has it from then on, however late it wakes: the device is not idle because threads of the
//! host are slow.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::clock;
use crate::layout::MAX_PROCESSES;
use crate::member::Member;

/// How late an owner may be to give its turn on before others take it.
pub(crate) const GRACE_NS: u64 = 1_000_000;

/// Low bits of the word: the owner's slot and one, or 0 for nobody. The rest is the time, in units of
/// 1024 ns.
const OWNER_BITS: u32 = 16;
const UNIT_BITS: u32 = 10;

/// What a request for the turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// The device is this process's from the first time to the second.
    Mine { since: u64, until: u64 },
    /// Somebody else's; worth asking again when the bell rings, or after this long.
    Wait(Duration),
}

/// One process's side of the turn on one device.
#[derive(Debug)]
pub(crate) struct Turn {
    member: &'static Member,
    device: usize,
    slice_ns: u64,
}

impl Turn {
    pub(crate) fn new(member: &'static Member, device: usize) -> Self {
        let slice_ns = member.machine().config().timeslice_ns.max(2048);
        Turn {
            member,
            device,
            slice_ns,
        }
    }

    /// Asks for the turn, and gets in line if it is somebody else's.
    pub(crate) fn ask(&self, now: u64) -> Grant {
        let me = self.member.slot();
        let word = &self.member.shared(self.device).turn;
        loop {
            let seen = word.load(SeqCst);
            let (owner, until) = unpack(seen);
            match owner {
                // Late or not: nobody else has had it since it was given to us.
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
                // Nobody's, or lapsed.
                _ => {
                    let until = self.end_of_slice(now);
                    if word
                        .compare_exchange(seen, pack(me, until), SeqCst, SeqCst)
                        .is_ok()
                    {
                        self.set_wanted(me, false);
                        return Grant::Mine { since: now, until };
                    }
                }
            }
        }
    }

    /// At the end of a slice, with work left: keeps the turn if nobody wants it, else gives it on and
    /// gets in line. The device was used until `at`. Returns the new end, if kept.
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

    /// With no work left: gives the turn on, or to nobody. The device was used until `at`.
    pub(crate) fn release(&self, at: u64) {
        let word = &self.member.shared(self.device).turn;
        let seen = word.load(SeqCst);
        if unpack(seen).0 != Some(self.member.slot()) {
            return;
        }
        match self.next() {
            Some(next) => self.give(seen, next, at),
            None => {
                let _ = word.compare_exchange(seen, 0, SeqCst, SeqCst);
                // Somebody may have got in line while the turn was still ours.
                if let Some(next) = self.next() {
                    clock::ring(self.member.bell_of(next, self.device));
                }
            }
        }
    }

    fn give(&self, seen: u64, next: usize, at: u64) {
        self.set_wanted(next, false);
        let given = pack(next, self.end_of_slice(at));
        let _ = self
            .member
            .shared(self.device)
            .turn
            .compare_exchange(seen, given, SeqCst, SeqCst);
        clock::ring(self.member.bell_of(next, self.device));
    }

    /// When a slice that begins at `at` ends. Rounded up: a slice's beginning is told from its end, and must
    /// not be in the time of the one before.
    fn end_of_slice(&self, at: u64) -> u64 {
        (at + self.slice_ns).next_multiple_of(1 << UNIT_BITS)
    }

    /// The next in line after this process, in the order of slots.
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
    fn an_idle_device_is_anybodys() {
        let (a, b) = two();
        assert!(matches!(a.ask(NOW), Grant::Mine { since: NOW, .. }));
        assert!(matches!(b.ask(NOW), Grant::Wait(_)));
        a.release(NOW);
        assert!(matches!(b.ask(NOW), Grant::Mine { .. }));
    }

    #[test]
    fn turns_alternate_while_both_want_them() {
        let (a, b) = two();
        a.ask(NOW);
        b.ask(NOW);
        for round in 0..4 {
            let (owner, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let now = NOW + (round + 1) * SLICE;
            assert_eq!(owner.renew(now), None, "round {round}");
            assert!(matches!(other.ask(now), Grant::Mine { .. }), "round {round}");
            assert!(matches!(owner.ask(now), Grant::Wait(_)), "round {round}");
        }
    }

    #[test]
    fn a_lone_owner_keeps_the_turn() {
        let (a, _) = two();
        a.ask(NOW);
        assert!(a.renew(NOW + SLICE).is_some_and(|until| until > NOW + SLICE));
    }

    #[test]
    fn who_wakes_late_has_its_slice_from_where_the_last_one_ended() {
        let (a, b) = two();
        a.ask(NOW);
        b.ask(NOW);
        let ended = NOW + SLICE + 333;
        a.renew(ended);
        let Grant::Mine { since, until } = b.ask(ended + SLICE + GRACE_NS / 2) else {
            panic!("it was given to it")
        };
        assert!((ended..ended + 1024).contains(&since), "{since} after {ended}");
        assert_eq!(until, since + SLICE);
        // Unless another has taken it since.
        b.renew(until);
        assert!(matches!(
            b.ask(until + SLICE + GRACE_NS + 1024),
            Grant::Mine { .. }
        ));
        assert!(matches!(a.ask(until + SLICE + GRACE_NS + 1024), Grant::Wait(_)));
    }

    #[test]
    fn a_turn_that_is_not_given_on_is_taken() {
        let (a, b) = two();
        let Grant::Mine { until, .. } = a.ask(NOW) else {
            panic!("it is nobody's")
        };
        assert!(matches!(b.ask(until), Grant::Wait(_)));
        assert!(matches!(b.ask(until + GRACE_NS), Grant::Mine { .. }));
        assert_eq!(a.renew(until), None);
    }
}
