//! One process on one GPU, as the arbiter has seen it over time: what it has used, and whether it wants more.

use super::Settings;
use super::division::Claim;
use super::policy::{Time, virtual_time};

/// What the blocks of a process say now. It may lie: nothing here is an index, and every difference is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen<Id> {
    pub id: Id,
    pub priority: u32,
    /// Nanoseconds for which there was work.
    pub busy_nsec: u64,
    /// Whether there is some.
    pub is_busy: bool,
    /// Nanoseconds of GPU time that it has submitted, as it reckons; zero: it does not say.
    pub submitted_nsec: u64,
    /// When that will have ended, if nobody else has the GPU.
    pub queued_until: Time,
    /// Threads at a closed gate.
    pub nr_waiting: u32,
    pub is_frozen: bool,
    /// Whether somebody has read its GPU time of late.
    pub is_watched: bool,
}

/// How long a process that has been let go on may take to show work: its threads must be scheduled first.
const RESPONSE: u64 = 5_000_000;

/// By no more than this is a process's account of its work taken back.
const CORRECTION: u64 = 10_000_000;

/// No more than this is taken to be queued.
const MOST_QUEUED: u64 = 1_000_000_000;

/// Who has had the GPU alone for so long knows what it has queued: its marks have passed since.
const ALONE: u64 = 4_000_000;

/// A slice of the hardware's, about, as drivers set it by default: so long another may have the GPU before what is queued.
const SLICE: u64 = 2_000_000;

/// Work that was queued when a gate closed, and since.
#[derive(Debug, Clone, Copy, Default)]
struct Tail {
    /// GPU time, as far as is known.
    queued: u64,
    /// For how long there was some of it.
    busy: u64,
    /// What has been charged for it.
    had: u64,
}

/// One bit for each of the last pauses between work: whether it was so short that lingering would have bridged it. At
/// first they are taken to be.
const SHORT: u16 = u16::MAX;

/// Who has always paused for longer is waited for by so small a part of the time: for a moment of its program's, not of
/// its user's.
const BRIEFLY: u64 = 4;

/// Remembered from tick to tick.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    pub priority: u32,
    /// GPU time had, by its weight; see [`virtual_time`].
    pub virtual_time: u128,
    /// Whether it was told to publish what it does when it was last looked at.
    pub is_tracked: bool,
    pub is_held: bool,
    pub has_demand: bool,
    pub has_woken: bool,
    /// Since when it is held although it has demand.
    pub held_since: Option<Time>,
    pub is_busy: bool,
    busy_nsec: u64,
    last_busy: Option<Time>,
    /// The pause that has ended with the last look, and which of those before were short.
    pause: Option<u64>,
    pauses: u16,
    /// When it was let go on with threads that waited, and no work of theirs has been seen since.
    opened: Option<Time>,
    /// Whether its waiting threads did not go on when they could: they are not believed before it has shown work.
    is_deaf: bool,
    /// While its gate is closed: what it has queued is all that it can have of the GPU.
    tail: Option<Tail>,
    /// Nanoseconds of GPU time that it has queued, and what it had submitted in all.
    queued: u64,
    submitted_nsec: u64,
    /// Since when nobody else had work.
    alone_since: Option<Time>,
    /// For how long others had work beside what it has queued.
    beside: u64,
}

impl Member {
    pub fn new<Id>(seen: &Seen<Id>) -> Self {
        Self {
            priority: seen.priority,
            virtual_time: 0,
            is_tracked: false,
            is_held: false,
            has_demand: false,
            has_woken: false,
            held_since: None,
            is_busy: false,
            busy_nsec: seen.busy_nsec,
            last_busy: None,
            pause: None,
            pauses: SHORT,
            opened: None,
            is_deaf: false,
            tail: None,
            queued: 0,
            submitted_nsec: seen.submitted_nsec,
            alone_since: None,
            beside: 0,
        }
    }

    /// For how long there was work since the last look, which was at `last`.
    pub fn look<Id>(&mut self, now: Time, last: Time, seen: &Seen<Id>) -> Claim {
        let passed = now.saturating_sub(last);
        let busy = match self.is_tracked {
            true => seen.busy_nsec.saturating_sub(self.busy_nsec).min(passed),
            false => 0,
        };
        // The end of work is set a little before the moment in which it was seen: what has been counted stays counted.
        if seen.busy_nsec >= self.busy_nsec
            || self.busy_nsec - seen.busy_nsec > CORRECTION
            || !self.is_tracked
        {
            self.busy_nsec = seen.busy_nsec;
        }
        self.priority = seen.priority;
        if !self.is_busy && (seen.is_busy || busy > 0) {
            let began = now.saturating_sub(busy);
            self.pause = self.last_busy.map(|when| began.saturating_sub(when));
        }
        self.is_busy = seen.is_busy;
        if seen.is_busy {
            self.last_busy = Some(now);
        } else if busy > 0 {
            // Exactly so if it was busy at the last look and then ended; else a little early.
            self.last_busy = Some(last + busy);
        }
        let more = seen.submitted_nsec.saturating_sub(self.submitted_nsec);
        if seen.is_busy || busy > 0 || more > 0 {
            (self.opened, self.is_deaf) = (None, false);
        }
        self.submitted_nsec = seen.submitted_nsec;
        self.queued = self.queued.saturating_add(more).min(MOST_QUEUED);
        let tail = self.tail.as_mut().filter(|_| seen.submitted_nsec != 0);
        let most = tail.map(|tail| {
            tail.queued = tail.queued.saturating_add(more).min(MOST_QUEUED);
            tail.busy = tail.busy.saturating_add(busy);
            tail.most()
        });
        Claim { busy, most }
    }

    /// It has had so much of the GPU since the last look, and others had work for so long beside it.
    pub fn charge<Id>(&mut self, now: Time, nsec: u64, beside: u64, seen: &Seen<Id>) {
        self.alone_since = (beside == 0).then(|| self.alone_since.unwrap_or(now));
        let knows = self.alone_since.is_some_and(|since| now >= since + ALONE);
        if knows || !seen.is_busy {
            self.beside = 0;
        } else {
            self.beside = self.beside.saturating_add(beside);
        }
        // Right if all the time was its own. It has had no more than that.
        let least = seen.queued_until.saturating_sub(now).min(MOST_QUEUED);
        self.queued = match seen.is_busy {
            true => self
                .queued
                .saturating_sub(nsec)
                .clamp(least, least.saturating_add(self.beside)),
            false => 0,
        };
        if let Some(tail) = &mut self.tail {
            tail.had = tail.had.saturating_add(nsec);
            if !seen.is_busy {
                *tail = Tail::default();
            }
        }
        self.owe(nsec);
    }

    /// Its turn has cost so much.
    pub fn owe(&mut self, nsec: u64) {
        self.virtual_time = self
            .virtual_time
            .saturating_add(virtual_time(nsec, self.priority));
    }

    /// Finds out whether it wants the GPU. One that is frozen, or has used up its quota, does not count.
    pub fn judge<Id>(&mut self, now: Time, seen: &Seen<Id>, is_over: bool, settings: &Settings) {
        if let Some(pause) = self.pause.take() {
            self.pauses = self.pauses << 1 | u16::from(pause <= settings.linger);
        }
        if self.awaited_until().is_some_and(|end| now >= end) {
            // However many of them it says there are now: otherwise a number that changes would be believed for ever.
            (self.opened, self.is_deaf) = (None, true);
        }
        let waits = seen.nr_waiting > 0 && !self.is_deaf;
        if waits && !self.is_held && !seen.is_busy {
            // There is room in its window, and its thread has not come to know.
            self.opened = self.opened.or(Some(now));
        }
        let had = self.has_demand;
        self.has_demand = !seen.is_frozen
            && !is_over
            && (seen.is_busy || waits || self.lease(settings).is_some_and(|end| now < end));
        self.has_woken = self.has_demand && !had;
    }

    /// Whether it is held although it has work.
    pub fn waits(&self) -> bool {
        self.is_held && self.has_demand
    }

    /// Until when it counts as busy without being so. One that has always paused for longer of late is waited for briefly:
    /// the GPU stands idle each time.
    pub fn lease(&self, settings: &Settings) -> Option<Time> {
        let linger = if self.pauses == 0 {
            settings.linger / BRIEFLY
        } else {
            settings.linger
        };
        let lingers = self.last_busy.map(|when| when + linger);
        lingers.max(self.awaited_until())
    }

    /// It was let go on with threads that waited, and has shown no work since: until when it may.
    pub fn awaited_until(&self) -> Option<Time> {
        self.opened.map(|when| when + RESPONSE)
    }

    /// Notes what was decided.
    pub fn hold<Id>(&mut self, now: Time, seen: &Seen<Id>, holds: bool) {
        if self.is_held && !holds && seen.nr_waiting > 0 && !self.is_deaf {
            self.opened = Some(now);
        }
        if holds {
            self.opened = None;
        }
        self.is_held = holds;
        let queued = self.queued;
        let closes = || Tail {
            queued,
            ..Tail::default()
        };
        self.tail = (holds || seen.is_frozen).then(|| self.tail.unwrap_or_else(closes));
        self.held_since = (holds && self.has_demand).then(|| self.held_since.unwrap_or(now));
    }
}

impl Tail {
    /// The most that can still have been its own. Who has been at it for longer than all of it can take beside others, by
    /// slices of the same length, has queued more than is known, and has half of the rest. What is nearly over has little
    /// to wait for.
    fn most(&self) -> u64 {
        let waited = SLICE.min(self.queued.saturating_mul(4));
        let explained = self.queued.saturating_mul(2).saturating_add(waited);
        let more = self.busy.saturating_sub(explained) / 2;
        self.queued.saturating_add(more).saturating_sub(self.had)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_held_has_what_was_queued_and_half_of_what_that_does_not_explain() {
        const QUEUED: u64 = 1_000_000;
        let had = |busy: u64, had: u64| {
            Tail {
                queued: QUEUED,
                busy,
                had,
            }
            .most()
        };
        assert_eq!(had(QUEUED, 0), QUEUED);
        assert_eq!(had(QUEUED, QUEUED / 4), QUEUED * 3 / 4, "some has been charged");
        assert_eq!(had(2 * QUEUED + SLICE, QUEUED), 0, "the others had slices");
        assert_eq!(had(12 * QUEUED + SLICE, QUEUED), 5 * QUEUED, "it must be longer");
        let unknown = Tail {
            busy: 10_000_000,
            ..Tail::default()
        };
        assert_eq!(unknown.most(), 5_000_000);
    }
}
