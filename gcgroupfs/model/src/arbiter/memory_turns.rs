//! Memory turns on one GPU: where the movable memory of its busy processes does not fit together, they run
//! one after the other, each with all of its memory on the device.
//!
//! Pure decisions in given time. `account` remembers one process; the hooks move memory to the bounds that
//! are decided here.

mod account;
mod moved;
mod news;
mod share;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gcgroup_abi::NO_LIMIT;

use self::account::Account;
use self::moved::{Moved, quantum};
use super::contest::{Field, Groups, Standing};
use super::parts::parts;
use super::place::Place;
use super::policy::Time;
use super::tree::Tree;

pub use self::news::MemoryNews;
pub(super) use self::share::{Holder, Look};
pub use self::share::{Holding, MemoryTurn, Share};

/// Nanoseconds between two looks.
const LOOK: u64 = 20_000_000;
/// Time for which the memory of no process may change while a turn begins, nanoseconds, and the slowest rate
/// of a move, bytes per second: below that it is taken to be stuck.
const STUCK: u64 = 5_000_000_000;
const SLOWEST: u64 = 2 << 30;
/// Time without turns after processes have not made room, nanoseconds; doubled each time, up to the longest.
const REST: u64 = 30_000_000_000;
const LONGEST_REST: u64 = 16 * REST;
/// Least time between two log lines that say that turns begin, nanoseconds.
const QUIET: u64 = 60_000_000_000;
/// Size of the largest part of an allocation that moves by itself, bytes. Less room than that may stay empty.
const LARGEST_PART: u64 = 256 << 20;
/// Time for which nothing may have moved then, nanoseconds.
const SETTLED: u64 = 250_000_000;
/// Part of the time of its moves, or of the shortest turn, one in so many, that a turn lasts while the next
/// process has had none.
const FIRST_PART: u64 = 4;

/// Time for which the turns of a group without processes are remembered, nanoseconds.
const KEPT: u64 = 600_000_000_000;

/// Largest ratio of the weights of two priorities between which turns are in proportion, and a bit more.
const LARGEST_RATIO: u64 = 1 << 16;

#[derive(Debug)]
struct Turn<Id> {
    owner: Id,
    began: Time,
    /// Until when the owner's account has been charged.
    charged: Time,
    /// While memory moves for it.
    moving: Option<Moving>,
}

#[derive(Debug)]
struct Moving {
    since: Time,
    /// When memory last moved.
    changed: Time,
}

#[derive(Debug)]
pub(super) struct MemoryTurns<Id> {
    accounts: BTreeMap<Id, Account>,
    groups: Groups,
    turn: Option<Turn<Id>>,
    /// The last decision.
    shares: BTreeMap<Id, Share>,
    next: Time,
    /// Time that the moves of a turn take, nanoseconds.
    move_nsec: u64,
    moved: Moved,
    /// Until when there are no turns, and how long that is.
    rest: (Time, u64),
    news: Option<MemoryNews>,
    /// When the beginning of turns was last logged, and whether their end is to be logged.
    told: Option<Time>,
    tells_end: bool,
}

impl<Id: Copy + Ord> MemoryTurns<Id> {
    pub(super) fn new() -> Self {
        Self {
            accounts: BTreeMap::new(),
            groups: Groups::default(),
            turn: None,
            shares: BTreeMap::new(),
            next: 0,
            move_nsec: 0,
            moved: Moved::default(),
            rest: (0, 0),
            news: None,
            told: None,
            tells_end: false,
        }
    }

    /// Returns whether a look is due, for which the caller has to find out the capacity.
    pub(super) fn is_due(&self, now: Time, is_any_out: bool) -> bool {
        (is_any_out || !self.shares.is_empty()) && now >= self.next
    }

    /// Returns the last decision about a process.
    pub(super) fn share(&self, id: Id) -> Share {
        self.shares.get(&id).copied().unwrap_or_default()
    }

    /// Returns when the next look is due; `None` if nothing changes unless a process begins to work.
    pub(super) fn next(&self) -> Option<Time> {
        if self.shares.is_empty() {
            let (rest, _) = self.rest;
            return Some(rest).filter(|rest| *rest >= self.next && !self.accounts.is_empty());
        }
        let is_any_awake = self.accounts.values().any(Account::is_awake);
        is_any_awake.then_some(self.next)
    }

    pub(super) fn take_news(&mut self) -> Option<MemoryNews> {
        self.news.take()
    }

    /// Decides anew. Returns the process whose turn begins, if one does.
    pub(super) fn look(&mut self, look: &Look<'_, Id>) -> Option<Id> {
        let Look { now, settings, .. } = *look;
        self.next = now + LOOK;
        self.update(look);
        let is_off = settings.turn_move_percent == 0 || now < self.rest.0;
        let need = |one: &Holder<Id>| self.need(now, one);
        let sum = |ones: &[Holder<Id>]| ones.iter().map(need).fold(0, u64::saturating_add);
        let is_any_out = look
            .holders
            .iter()
            .any(|one| one.holding.resident < one.holding.all);
        let fits = sum(look.holders) <= look.capacity || !is_any_out && self.shares.is_empty();
        if is_off || fits {
            self.shares.clear();
            self.end();
            return None;
        }
        let holders = look.holders.iter().copied();
        let active = |one: &Holder<Id>| self.accounts.get(&one.id).is_some_and(|one| one.is_active());
        let (mut active, idle): (Vec<_>, Vec<_>) = holders.partition(active);
        let wanted = sum(&active);
        if wanted <= look.capacity || active.len() < 2 {
            self.end();
            self.bound_idle(look, &active, &idle, wanted);
            return None;
        }
        if self.turn.is_none() {
            self.tell_begin(now, active.len(), wanted, look.capacity);
        }
        let began = self.choose(look, &mut active);
        self.advance(look, &active, &idle);
        began
    }

    /// Updates the accounts.
    fn update(&mut self, look: &Look<'_, Id>) {
        let (now, settings) = (look.now, look.settings);
        let is_here = |id: &Id| look.holders.iter().any(|one| one.id == *id);
        self.accounts.retain(|id, _| is_here(id));
        let longest = self
            .move_nsec
            .clamp(account::IDLE.min(settings.turn_most), settings.turn_most);
        let is_beginning = self.turn.as_ref().is_some_and(|turn| turn.moving.is_some());
        for one in look.holders {
            let account = self.accounts.entry(one.id).or_default();
            let moved = account.resident.abs_diff(one.holding.resident);
            account.resident = one.holding.resident;
            if moved != 0 {
                self.moved.bytes = self.moved.bytes.saturating_add(moved);
                if let Some(moving) = self.turn.as_mut().and_then(|turn| turn.moving.as_mut()) {
                    moving.changed = now;
                }
            }
            let is_busy = one.is_busy || account.is_awake() && (is_beginning || one.holding.is_moving);
            account.observe(now, is_busy, longest);
        }
    }

    /// Returns the bytes that a process is to have on the device in its turn.
    fn need(&self, now: Time, one: &Holder<Id>) -> u64 {
        let account = self.accounts.get(&one.id);
        let left_out = account.map_or(0, |account| account.left_out(now));
        let out = one.holding.all.saturating_sub(one.holding.resident);
        one.holding.all - left_out.min(out)
    }

    fn end(&mut self) {
        if self.turn.take().is_some() && std::mem::take(&mut self.tells_end) {
            self.news = Some(MemoryNews::Ended);
        }
    }

    fn tell_begin(&mut self, now: Time, processes: usize, wanted: u64, capacity: u64) {
        if self.told.is_none_or(|told| now >= told + QUIET) {
            (self.told, self.tells_end) = (Some(now), true);
            self.news = Some(MemoryNews::Begun {
                processes,
                wanted,
                capacity,
            });
        }
    }

    /// Bounds idle processes so that the busy ones, which fit together, can have all of their memory. Without
    /// a busy process all bounds stay, so that nothing moves.
    fn bound_idle(&mut self, look: &Look<'_, Id>, active: &[Holder<Id>], idle: &[Holder<Id>], wanted: u64) {
        let before = std::mem::take(&mut self.shares);
        let mut left = look.capacity.saturating_sub(wanted);
        for one in active {
            self.shares.insert(one.id, free());
        }
        for one in sorted(idle) {
            let need = self.need(look.now, &one);
            let limit = match active.is_empty() {
                true => before.get(&one.id).map_or(NO_LIMIT, |share| share.resident_limit),
                false => bound(need, &mut left),
            };
            let share = Share {
                resident_limit: limit,
                ..free()
            };
            self.shares.insert(one.id, share);
        }
    }

    /// Ends an expired turn, starts the next one, and sorts `active` in the order of turns. Returns the owner
    /// of a new turn.
    fn choose(&mut self, look: &Look<'_, Id>, active: &mut [Holder<Id>]) -> Option<Id> {
        let Look { now, settings, .. } = *look;
        let places: Vec<Place> = look.holders.iter().map(|one| one.place).collect();
        let tree = Tree::new(&places);
        let account = |at: usize| self.accounts.get(&look.holders[at].id);
        let is_active = |at: usize| account(at).is_some_and(Account::is_active);
        let parts = parts(&tree, is_active, look.weigh);
        let part = tree.of_processes(&parts);
        let most = part.iter().max().copied().unwrap_or(0);
        let standing = |at: usize| account(at).map_or_else(Standing::default, |one| one.standing);
        let mut field = Field::new(&tree, parts, self.groups.standings(&tree, standing));
        let owner = self.turn.as_ref().map(|turn| turn.owner);
        let owner = owner.and_then(|owner| active.iter().find(|one| one.id == owner).copied());
        if let (Some(turn), Some(owner)) = (&mut self.turn, owner) {
            if turn.moving.is_some() {
                // The time of moves is nobody's: otherwise a process whose memory moves while others run
                // would get more.
                (turn.began, turn.charged) = (now, now);
            }
            let passed = now.saturating_sub(std::mem::replace(&mut turn.charged, now));
            if let Some(at) = look.holders.iter().position(|one| one.id == owner.id) {
                field.charge(at, passed);
            }
        }
        field.settle(settings.turn_most);
        self.groups.keep(now, KEPT, &tree, field.standings());
        let mut order = BTreeMap::new();
        for (at, standing) in tree.of_processes(field.standings()).into_iter().enumerate() {
            let id = look.holders[at].id;
            // A process whose part is next to nothing has turns in the gaps of the others.
            let has_part = part[at].saturating_mul(LARGEST_RATIO) >= most;
            order.insert(id, (!has_part, field.times(at)));
            if let Some(account) = self.accounts.get_mut(&id) {
                account.standing = standing;
            }
        }
        active.sort_by_key(|one| (order.get(&one.id), Reverse(one.holding.resident), one.id));
        let next = active.first()?.id;
        if let (Some(turn), Some(owner)) = (&mut self.turn, owner) {
            let is_above = |one: &Holder<Id>| one.place.is_above(&owner.place);
            let quantum = match active.iter().any(is_above) {
                true => settings.turn_least,
                false => quantum(self.move_nsec, settings),
            };
            // Until each has had one, turns are little longer than their moves.
            let is_new = self.accounts.get(&next).is_some_and(|next| !next.has_had_turn);
            let quantum = match is_new {
                true => quantum.min(self.move_nsec.max(settings.turn_least) / FIRST_PART),
                false => quantum,
            };
            if turn.moving.is_some() || now < turn.began.saturating_add(quantum) {
                return None;
            }
            if next == owner.id {
                turn.began = now;
                return None;
            }
        }
        self.moved.begin();
        if let Some(account) = self.accounts.get_mut(&next) {
            account.has_had_turn = true;
        }
        self.turn = Some(Turn {
            owner: next,
            began: now,
            charged: now,
            moving: Some(Moving {
                since: now,
                changed: now,
            }),
        });
        Some(next)
    }

    /// Sets the bounds for the current turn, and notes when memory has moved for it.
    fn advance(&mut self, look: &Look<'_, Id>, active: &[Holder<Id>], idle: &[Holder<Id>]) {
        let now = look.now;
        let Some(mut turn) = self.turn.take() else { return };
        let Some(owner) = active.iter().find(|one| one.id == turn.owner) else {
            return;
        };
        let need = self.need(now, owner);
        let fits = need <= look.capacity;
        let need = need.min(look.capacity);
        let mut left = look.capacity - need;
        let others = active.iter().copied().filter(|one| one.id != turn.owner);
        let others: Vec<(Holder<Id>, u64, MemoryTurn)> = others
            .map(|one| (one, MemoryTurn::Waiting))
            .chain(sorted(idle).into_iter().map(|one| (one, MemoryTurn::None)))
            .map(|(one, turn)| (one, bound(self.need(now, &one), &mut left), turn))
            .collect();
        let over = |(one, limit, _): &(Holder<Id>, u64, MemoryTurn)| {
            one.holding.resident.saturating_sub((*limit).max(1))
        };
        let to_leave = others.iter().map(over).fold(0, u64::saturating_add);
        let to_enter = need.saturating_sub(owner.holding.resident);
        if let Some(moving) = &turn.moving {
            let slowest = (to_leave + to_enter) / SLOWEST * 1_000_000_000;
            let is_stuck = now >= moving.changed.saturating_add(STUCK).saturating_add(slowest)
                || now
                    >= moving
                        .since
                        .saturating_add(look.settings.turn_most.max(2 * STUCK) + slowest);
            let is_full = !fits && to_leave == 0 && to_enter < LARGEST_PART && !owner.holding.is_moving;
            if to_enter == 0 || is_full && now >= moving.changed + SETTLED {
                let nsec = now.saturating_sub(moving.since);
                self.moved.took(nsec);
                self.move_nsec = nsec.max(self.moved.before);
                self.rest.1 = 0;
                turn.moving = None;
            } else if is_stuck && to_leave == 0 {
                // It does not bring all in, as after a request to move memory out.
                if let Some(account) = self.accounts.get_mut(&owner.id) {
                    account.leave_out(now, to_enter);
                }
                turn.moving = None;
            } else if is_stuck {
                let rest = (2 * self.rest.1).clamp(REST, LONGEST_REST);
                self.rest = (now + rest, rest);
                self.news = Some(MemoryNews::Rests(rest));
                self.tells_end = false;
                self.shares.clear();
                return;
            }
        }
        let resident = others
            .iter()
            .map(|(one, ..)| one.holding.resident)
            .fold(0, u64::saturating_add);
        self.shares.clear();
        let limit = match turn.moving.is_some() || !fits {
            // Grows as the others make room, and the hook tries again whenever it grows.
            true => look
                .capacity
                .saturating_sub(resident)
                .max(owner.holding.resident)
                .max(1),
            false => NO_LIMIT,
        };
        let share = Share {
            turn: MemoryTurn::Owner,
            is_parked: turn
                .moving
                .as_ref()
                .is_some_and(|moving| now < moving.changed + STUCK),
            resident_limit: limit,
        };
        self.shares.insert(owner.id, share);
        for one in &others {
            let (holder, limit, role) = *one;
            let share = Share {
                turn: role,
                // Until it has made room it goes on: its hook prepares that meanwhile.
                is_parked: role == MemoryTurn::Waiting && (turn.moving.is_none() || over(one) == 0),
                resident_limit: limit.max(1),
            };
            self.shares.insert(holder.id, share);
        }
        self.turn = Some(turn);
    }
}

/// Returns the share of a process that may have all of its memory on the device.
fn free() -> Share {
    Share {
        resident_limit: NO_LIMIT,
        ..Share::default()
    }
}

/// Returns processes by what they have on the device, the largest first, so that little moves.
fn sorted<Id: Copy>(holders: &[Holder<Id>]) -> Vec<Holder<Id>> {
    let mut sorted = holders.to_vec();
    sorted.sort_by_key(|one| Reverse(one.holding.resident));
    sorted
}

/// Takes up to `need` bytes of those left; at least 1, since 0 means no bound.
fn bound(need: u64, left: &mut u64) -> u64 {
    let bytes = need.min(*left);
    *left -= bytes;
    bytes.max(1)
}
