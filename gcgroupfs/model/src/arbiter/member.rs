//! One process on one GPU, as the arbiter remembers it from tick to tick: its GPU time, and whether it wants
//! more.

use gcgroup_abi::UNKNOWN_COST;

use super::Settings;
use super::contest::Standing;
use super::debt::Debt;
use super::division::Claim;
use super::memory_turns::Holding;
use super::pauses::{Outlook, Pauses};
use super::place::Place;
use super::policy::Time;
use super::settings::LONGEST_DEBT;

/// One reading of a process's blocks. Untrusted: nothing here is used as an index, and every difference is
/// bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen<Id> {
    pub id: Id,
    pub place: Place,
    /// Nanoseconds for which there was work, in all.
    pub busy_nsec: u64,
    /// Whether there is work now.
    pub is_busy: bool,
    /// Nanoseconds of GPU time that it has submitted, by its own estimate; 0 if it publishes none.
    pub submitted_nsec: u64,
    /// When that will have completed if no other process uses the GPU.
    pub queued_until: Time,
    /// Threads at a closed gate.
    pub nr_waiting: u32,
    pub is_frozen: bool,
    /// Whether its `compute.stat` was read within the last [`Settings::watch`].
    pub is_watched: bool,
    /// Whether it measures its work also while its gate is open.
    pub is_measuring: bool,
    pub memory: Holding,
}

/// Nanoseconds within which a process whose gate was opened must show work: its threads have to be scheduled
/// first.
const RESPONSE: u64 = 5_000_000;

/// Nanoseconds for which a process without work is expected to have some again.
const RECENT: u64 = 10_000_000_000;

/// Largest backward step of `busy_nsec`, in nanoseconds, that is taken for a correction of the end of work.
const CORRECTION: u64 = 10_000_000;

/// Upper bound of the queued GPU time, nanoseconds.
const MOST_QUEUED: u64 = 1_000_000_000;

/// Upper bound of the GPU time that is submitted and not charged, nanoseconds.
const MOST_OWED: u64 = 1_000_000_000_000;

/// Longest time, nanoseconds, after which a hook publishes the GPU time of what it has submitted.
const LOOK: u64 = 20_000_000;

/// Nanoseconds alone on the GPU after which a process's own estimate of its queue is exact: its markers have
/// passed since.
const ALONE: u64 = 4_000_000;

/// Approximate time slice of the hardware by the driver's default, nanoseconds: for this long another context
/// may run before queued work.
const SLICE: u64 = 2_000_000;

/// Work that was queued when a gate closed, and what has become of it since.
#[derive(Debug, Clone, Copy, Default)]
struct Tail {
    /// Queued GPU time as far as is known, nanoseconds.
    queued: u64,
    /// Time that it can have had while some of it was left, if the hardware gave all processes with work
    /// equal slices, nanoseconds.
    even: u64,
    /// GPU time charged for it, nanoseconds.
    had: u64,
}

/// State of one process on one GPU from tick to tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub place: Place,
    pub standing: Standing,
    /// GPU time that its standing is not charged with yet, nanoseconds.
    pub unpaid: u64,
    /// Its part if all processes that have lately had work compete; 0 if it has not.
    pub fair: u64,
    /// Whether others have a larger one although they are of no higher priority.
    pub is_crowded: bool,
    /// Index of its class in the last decision, whether that has the regular turn and the process runs, and
    /// whether the class has the extra turn.
    pub class: Option<usize>,
    pub is_of_turn: bool,
    pub has_turn: bool,
    pub has_extra: bool,
    /// Whether it was told at the last decision to publish its work.
    pub is_tracked: bool,
    pub is_held: bool,
    /// Whether it is held because another process has the memory turn: it takes no part in the policy's
    /// turns.
    pub is_parked: bool,
    /// Whether the policy has given the turn to others: what it uses meanwhile is a debt.
    pub is_out_of_turn: bool,
    /// Whether it would have to wait if it began: a group that it is in leads a sibling.
    pub is_ahead: bool,
    /// GPU time that all processes of its class have used out of turn.
    pub debt: Debt,
    /// Since when a quota of it is used up.
    over_since: Option<Time>,
    pub has_demand: bool,
    /// Since when it is held although it has demand, and others have the turn.
    pub held_since: Option<Time>,
    pub is_busy: bool,
    busy_nsec: u64,
    /// GPU time that it has submitted by its own account and that is not charged yet, nanoseconds.
    owed: u64,
    /// Whether it tells that at its hook's looks, and not with each submission; then the time for which it
    /// had work that is not charged yet, nanoseconds.
    is_told_late: bool,
    worked: u64,
    last_busy: Option<Time>,
    /// The pause that ended with the last look, and earlier ones.
    pause: Option<u64>,
    pauses: Pauses,
    /// While it has no work: what is expected.
    outlook: Outlook,
    /// When its gate opened with threads waiting, if it has shown no work since.
    opened: Option<Time>,
    /// Whether its waiting threads did not go on when they could: they are ignored until it has shown work.
    is_deaf: bool,
    /// While its gate is closed: its queued work, which bounds its GPU time.
    tail: Option<Tail>,
    /// Nanoseconds of GPU time that it has queued, and `Seen::submitted_nsec` of the last look.
    queued: u64,
    submitted_nsec: u64,
    /// Since when no other process had work.
    alone_since: Option<Time>,
    /// Time for which others had work beside its queued work, nanoseconds.
    beside: u64,
}

impl Member {
    pub(super) fn new<Id>(now: Time, seen: &Seen<Id>) -> Self {
        Self {
            place: seen.place,
            standing: Standing::default(),
            unpaid: 0,
            fair: 0,
            is_crowded: false,
            class: None,
            is_of_turn: false,
            has_turn: false,
            has_extra: false,
            is_tracked: false,
            is_held: false,
            is_parked: false,
            is_out_of_turn: false,
            is_ahead: false,
            debt: Debt::default(),
            over_since: None,
            has_demand: false,
            held_since: None,
            is_busy: false,
            busy_nsec: seen.busy_nsec,
            owed: seen.queued_until.saturating_sub(now).min(MOST_QUEUED),
            is_told_late: false,
            worked: 0,
            last_busy: None,
            pause: None,
            pauses: Pauses::default(),
            outlook: Outlook::Unknown,
            opened: None,
            is_deaf: false,
            tail: None,
            queued: 0,
            submitted_nsec: seen.submitted_nsec,
            alone_since: None,
            beside: 0,
        }
    }

    /// Returns the time for which it had work since the last look, which was at `last`.
    pub(super) fn look<Id>(&mut self, now: Time, last: Time, seen: &Seen<Id>) -> u64 {
        let passed = now.saturating_sub(last);
        let busy = match self.is_tracked {
            true => seen.busy_nsec.saturating_sub(self.busy_nsec).min(passed),
            false => 0,
        };
        // The hook sets the end of work slightly before the moment in which it was seen, so the counter can
        // step back. What was counted stays counted.
        if seen.busy_nsec >= self.busy_nsec
            || self.busy_nsec - seen.busy_nsec > CORRECTION
            || !self.is_tracked
        {
            self.busy_nsec = seen.busy_nsec;
        }
        if !seen.place.is_beside(&self.place) {
            // It is placed beside its new siblings.
            self.standing = Standing::default();
        }
        self.place = seen.place;
        if !self.is_busy && (seen.is_busy || busy > 0) {
            let began = now.saturating_sub(busy);
            self.pause = self.last_busy.map(|when| began.saturating_sub(when));
        }
        self.is_busy = seen.is_busy;
        if seen.is_busy {
            self.last_busy = Some(now);
        } else if busy > 0 {
            // Exact if it was busy at the last look and then ended; otherwise slightly early.
            self.last_busy = Some(last + busy);
        }
        // Less than before if the process has learned what a submission of unknown cost took.
        let more = seen.submitted_nsec.cast_signed() - self.submitted_nsec.cast_signed();
        if seen.is_busy || busy > 0 || more > 0 {
            (self.opened, self.is_deaf) = (None, false);
        }
        self.submitted_nsec = seen.submitted_nsec;
        self.owed = self.owed.saturating_add_signed(more).min(MOST_OWED);
        self.worked = self.worked.saturating_add(busy);
        let guess = more.rem_euclid(UNKNOWN_COST.cast_signed()).cast_unsigned();
        self.queued = self.queued.saturating_add(guess).min(MOST_QUEUED);
        if let Some(tail) = &mut self.tail {
            tail.queued = tail.queued.saturating_add(guess).min(MOST_QUEUED);
        }
        busy
    }

    /// Returns the claim of a process that was busy for `busy` nanoseconds, while all processes together were
    /// for `sum` in `passed` nanoseconds; `sum` is not below `passed`.
    pub(super) fn claim<Id>(&mut self, busy: u64, sum: u64, passed: u64, seen: &Seen<Id>) -> Claim {
        let even = u128::from(busy) * u128::from(passed) / u128::from(sum.max(1));
        let tail = self.tail.as_mut().filter(|_| seen.submitted_nsec != 0);
        let most = tail.map(|tail| {
            tail.even = tail.even.saturating_add(u64::try_from(even).unwrap_or(busy));
            tail.most(!seen.is_busy)
        });
        // Time for which it had work includes pauses shorter than the looks of its hook.
        let own = match seen.submitted_nsec {
            0 => busy,
            _ if self.is_told_late => self.worked.min(self.owed).min(passed),
            _ => busy.min(self.owed),
        };
        Claim { own, most }
    }

    /// Charges `nsec` of GPU time since the last look; others had work for `beside` nanoseconds at the same
    /// time.
    pub(super) fn charge<Id>(&mut self, now: Time, nsec: u64, beside: u64, seen: &Seen<Id>) {
        self.alone_since = (beside == 0).then(|| self.alone_since.unwrap_or(now));
        let knows = self.alone_since.is_some_and(|since| now >= since + ALONE);
        if knows || !seen.is_busy {
            self.beside = 0;
        } else {
            self.beside = self.beside.saturating_add(beside);
        }
        // Exact if it had the GPU alone; otherwise too low, as it had less than all the time.
        let least = seen.queued_until.saturating_sub(now).min(MOST_QUEUED);
        self.queued = match seen.is_busy {
            true => self
                .queued
                .saturating_sub(nsec)
                .clamp(least, least.saturating_add(self.beside)),
            false => 0,
        };
        self.owed = self.owed.saturating_sub(nsec);
        self.worked = match self.is_told_late {
            true => self
                .worked
                .saturating_sub(nsec)
                .min(self.owed.saturating_add(LOOK)),
            false => 0,
        };
        if !seen.is_busy {
            // All has ended: what is left of either is an error of the other.
            self.owed = self.owed.min(self.worked);
            self.worked = self.owed;
        }
        if let Some(tail) = &mut self.tail {
            tail.had = tail.had.saturating_add(nsec);
            if !seen.is_busy {
                *tail = Tail::default();
            }
        }
        self.owe(nsec);
    }

    /// Charges its standing with `nsec` of GPU time at the next decision.
    pub(super) fn owe(&mut self, nsec: u64) {
        self.unpaid = self.unpaid.saturating_add(nsec);
    }

    /// Returns whether it takes part in the policy's turns.
    pub(super) fn competes(&self) -> bool {
        self.has_demand && !self.is_parked
    }

    /// Returns whether it wants the GPU, or has lately had work.
    pub(super) fn is_recent<Id>(&self, now: Time, seen: &Seen<Id>) -> bool {
        let wants = self.over_since.is_some() && (seen.is_busy || seen.nr_waiting > 0);
        let worked = self.last_busy.is_some_and(|last| now < last + RECENT);
        !seen.is_frozen && (self.has_demand || wants || worked)
    }

    /// Determines whether it wants the GPU. A frozen process, or one whose quota is used up (`is_over`), does
    /// not count.
    pub(super) fn judge<Id>(&mut self, now: Time, seen: &Seen<Id>, is_over: bool, settings: &Settings) {
        if let Some(pause) = self.pause.take() {
            self.pauses.add(pause);
        }
        if self.awaited_until().is_some_and(|end| now >= end) {
            // Also if `nr_waiting` changes: otherwise a number that keeps changing would be believed for
            // ever.
            (self.opened, self.is_deaf) = (None, true);
        }
        let waits = seen.nr_waiting > 0 && !self.is_deaf;
        if waits && !self.is_held && !seen.is_busy {
            // There is room in its window, and its thread has not noticed yet.
            self.opened = self.opened.or(Some(now));
        }
        self.over_since = is_over.then(|| self.over_since.unwrap_or(now));
        self.outlook = match self.last_busy {
            Some(since) if !(seen.is_busy || seen.is_frozen || is_over) => {
                self.pauses.outlook(since, now, settings.linger)
            }
            _ => Outlook::Unknown,
        };
        let is_expected = matches!(self.outlook, Outlook::Soon(_));
        self.has_demand = !seen.is_frozen
            && !is_over
            && (seen.is_busy || waits || is_expected || self.awaited_until().is_some());
    }

    /// Returns whether it has no work and does not count as busy, and nothing holds it or is owed to it.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.is_busy && !self.has_demand && !self.is_held && !self.is_out_of_turn && self.opened.is_none()
    }

    /// Returns whether it is held although it has work, other than for a memory turn.
    pub(super) fn waits(&self) -> bool {
        self.is_held && self.has_demand && !self.is_parked
    }

    /// Returns until when others may use the pause that it makes.
    pub(super) fn gap_until(&self) -> Option<Time> {
        match self.outlook {
            Outlook::Later(until) if !self.has_demand => Some(until),
            _ => None,
        }
    }

    /// Returns when it may no longer count as busy, or counts as busy again, although it has no work.
    pub(super) fn changes(&self) -> Option<Time> {
        let expected = match self.outlook {
            Outlook::Soon(until) | Outlook::Later(until) => Some(until),
            Outlook::Unknown => None,
        };
        expected.max(self.awaited_until())
    }

    /// Returns until when it may show work after its gate opened with threads waiting; `None` if that is not
    /// pending.
    pub(super) fn awaited_until(&self) -> Option<Time> {
        self.opened.map(|when| when + RESPONSE)
    }

    /// Records whether the policy has given the turn to others. With its own turn its debts end.
    pub(super) fn take_turn(&mut self, is_out_of_turn: bool) {
        self.is_out_of_turn = is_out_of_turn;
        if !is_out_of_turn {
            self.debt = Debt::default();
        }
    }

    /// Returns for how long a thread of it waits at a closed gate if the daemon opens that when it should,
    /// nanoseconds. `over_until`: when its quota is repaid.
    pub(super) fn debt_length(&self, over_until: Option<Time>, settings: &Settings) -> u64 {
        let quota = over_until.zip(self.over_since);
        let quota = quota.map_or(0, |(until, since)| until.saturating_sub(since) + settings.window);
        quota.max(self.debt.length()).min(LONGEST_DEBT)
    }

    /// Records whether it is to tell the GPU time of its work at its hook's looks, or with each submission.
    pub(super) fn tell(&mut self, is_late: bool) {
        self.is_told_late = is_late;
    }

    /// Records the decision.
    pub(super) fn hold<Id>(&mut self, now: Time, seen: &Seen<Id>, holds: bool) {
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
        let starves = holds && self.has_demand && !self.is_of_turn;
        self.held_since = starves.then(|| self.held_since.unwrap_or(now));
    }
}

impl Tail {
    /// Returns the most that can still have been its own GPU time, nanoseconds: its known queue, but no less
    /// and not much more than slices of equal length have given it. If it is busy for longer than the known
    /// queue takes, more was queued than is known; work that is nearly done waits for less than a slice. Of a
    /// queue of more than a slice, equal slices tell best how much has run, until it has ended.
    fn most(&self, has_ended: bool) -> u64 {
        let waited = SLICE.min(self.queued.saturating_mul(4)) / 2;
        let more = SLICE.saturating_sub(self.queued / 2);
        let more = if has_ended { more.max(SLICE / 2) } else { more };
        let least = self.even.saturating_sub(waited);
        let most = self.even.saturating_add(more);
        self.queued.clamp(least, most).saturating_sub(self.had)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_most_is_queued_plus_unexplained_time() {
        const QUEUED: u64 = 1_000_000;
        let had = |even: u64, had: u64| {
            Tail {
                queued: QUEUED,
                even,
                had,
            }
            .most(false)
        };
        assert_eq!(had(QUEUED, 0), QUEUED);
        assert_eq!(
            had(QUEUED, QUEUED / 4),
            QUEUED * 3 / 4,
            "a quarter has been charged"
        );
        assert_eq!(
            had(QUEUED + SLICE / 2, QUEUED),
            0,
            "slices of others explain the time"
        );
        assert_eq!(
            had(6 * QUEUED + SLICE / 2, QUEUED),
            5 * QUEUED,
            "more was queued than is known"
        );
        let unknown = Tail {
            even: 5_000_000,
            ..Tail::default()
        };
        assert_eq!(unknown.most(false), 5_000_000);
    }
}
