//! One GPU: charges its processes, remembers whose turn it is, and decides their gates.
//!
//! This module reads no block and no clock: observations go in, orders come out.

use std::collections::BTreeMap;

use gcgroup_abi::Gate;

use super::Settings;
use super::contest::{Field, Groups};
use super::division::{Claim, divide};
use super::member::{Member, Seen};
use super::memory_turns::{Holder, Look, MemoryTurn, MemoryTurns};
use super::parts::{is_near, parts, percent};
use super::place::Place;
use super::plan::{Plan, Quotas, Tick, Used};
use super::policy::{Time, Weigh};
use super::rank::{below, ranks};
use super::settings::LONGEST_DEBT;
use super::tree::Tree;
use super::turns::{Contest, Decision, Turns, View};
use super::waits;
use crate::tree::GateOrder;

/// Nanoseconds between ticks while several processes are busy and their time is measured.
const DIVISION: u64 = 2_000_000;
/// As [`DIVISION`], while nobody watches and there are no quotas.
const COARSE: u64 = 10_000_000;
/// Nanoseconds between ticks while a single process is busy and measures its time by itself.
const SELDOM: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Gpu<Id> {
    /// Processes of the last observation, sorted by id.
    members: Vec<(Id, Member)>,
    /// Where they compete; `None`: they have changed since it was made.
    tree: Option<Tree>,
    /// Processes that were seen before the last observation, and not in it.
    gone: Vec<Id>,
    turns: Turns,
    /// Number of classes that had work at the last decision.
    nr_classes: usize,
    /// Time of the last measurement.
    last: Time,
    groups: Groups,
    memory: MemoryTurns<Id>,
}

impl<Id: Copy + Ord> Gpu<Id> {
    pub(super) fn new() -> Self {
        Self {
            members: Vec::new(),
            tree: None,
            gone: Vec::new(),
            turns: Turns::default(),
            nr_classes: 0,
            last: 0,
            groups: Groups::default(),
            memory: MemoryTurns::new(),
        }
    }

    /// Returns the GPU time of each observed process, in the order of ids.
    pub(super) fn measure(&mut self, now: Time, seen: &[Seen<Id>], settings: &Settings) -> Vec<Used> {
        self.meet(now, seen);
        let last = std::mem::replace(&mut self.last, now);
        let passed = now.saturating_sub(last);
        let looks = self.members.iter_mut().zip(seen);
        let busy: Vec<u64> = looks
            .map(|((_, member), one)| member.look(now, last, one))
            .collect();
        let worked = busy.iter().fold(0, |sum: u64, busy| sum.saturating_add(*busy));
        let bounded = self.members.iter_mut().zip(seen).zip(&busy);
        let claims: Vec<Claim> = bounded
            .map(|(((_, member), one), busy)| member.claim(*busy, worked.max(passed), passed, one))
            .collect();
        let had = divide(passed, &claims);
        let beside = if worked > passed { passed } else { 0 };
        for (((_, member), one), nsec) in self.members.iter_mut().zip(seen).zip(&had) {
            member.charge(now, *nsec, beside, one);
        }
        self.lend(now, last, &had, settings);
        let unused = passed.saturating_sub(had.iter().sum());
        let held = self.charge_idle(passed.saturating_sub(worked), unused);
        let each = had.into_iter().zip(held);
        each.map(|(charged, held)| Used { charged, held }).collect()
    }

    /// Charges groups with GPU time since the last measurement of a process that has left.
    pub(super) fn charge_remainder(&mut self, groups: &[u64], nsec: u64) {
        self.groups.charge(groups, nsec);
    }

    /// Returns for how long nothing was measured at `now`, nanoseconds.
    pub(super) fn unmeasured(&self, now: Time) -> u64 {
        now.saturating_sub(self.last)
    }

    /// Aligns `members` with `seen`: from here on the same index means the same process.
    fn meet(&mut self, now: Time, seen: &[Seen<Id>]) {
        let has_moved = |((_, member), one): (&(Id, Member), &Seen<Id>)| member.place != one.place;
        if self.members.iter().zip(seen).any(has_moved) {
            self.tree = None;
        }
        let is_same = self.members.len() == seen.len()
            && self.members.iter().zip(seen).all(|((id, _), one)| *id == one.id);
        if is_same {
            return;
        }
        self.tree = None;
        let known = std::mem::take(&mut self.members);
        let member = |one: &Seen<Id>| match known.binary_search_by_key(&one.id, |(id, _)| *id) {
            Ok(place) => known[place],
            Err(_) => (one.id, Member::new(now, one)),
        };
        self.members = seen.iter().map(member).collect();
        let is_gone = |id: &Id| seen.binary_search_by_key(id, |one| one.id).is_err();
        let gone = known.into_iter().map(|(id, _)| id);
        self.gone.extend(gone.filter(is_gone));
    }

    /// Returns the processes that have disappeared since the last call: their gates are to be opened.
    pub(super) fn take_gone(&mut self) -> Vec<Id> {
        std::mem::take(&mut self.gone)
    }

    /// Records what processes have used out of their turn as a debt of all processes of their class.
    fn lend(&mut self, now: Time, last: Time, had: &[u64], settings: &Settings) {
        // A process without a class stands for itself.
        let class = |(at, member): (usize, &Member)| member.class.ok_or(at);
        let mut used: BTreeMap<Result<usize, usize>, u64> = BTreeMap::new();
        let each = self.members().enumerate().zip(had);
        for (one, nsec) in each.filter(|((_, member), nsec)| member.is_out_of_turn && **nsec > 0) {
            let sum = used.entry(class(one)).or_default();
            *sum = sum.saturating_add(*nsec);
        }
        if used.is_empty() {
            return;
        }
        let members = self.members.iter_mut().enumerate();
        for (at, (_, member)) in members.filter(|(_, (_, member))| member.is_out_of_turn) {
            if let Some(nsec) = used.get(&class((at, member))) {
                member
                    .debt
                    .add(now, last, settings.repayment(*nsec, self.nr_classes));
            }
        }
    }

    /// Charges the processes that have the turn for `idle` nanoseconds in which they surely left the GPU idle
    /// while others waited. Counts for turns only, not for quotas. Returns the part of each in the `unused`
    /// nanoseconds: these include the time until the end of work was seen.
    fn charge_idle(&mut self, idle: u64, unused: u64) -> Vec<u64> {
        if unused == 0 || !self.members().any(Member::waits) {
            return vec![0; self.members.len()];
        }
        let has_turn = |member: &Member| member.has_turn && member.competes();
        let sharers = self.members().filter(|member| has_turn(member)).count().max(1) as u64;
        let charge = |(_, member): &mut (Id, Member)| {
            if !has_turn(member) {
                return 0;
            }
            member.owe(idle / sharers);
            unused / sharers
        };
        self.members.iter_mut().map(charge).collect()
    }

    /// Decides the gates.
    pub(super) fn decide(&mut self, tick: &Tick<'_, Id>, settings: &Settings) -> Plan<Id> {
        let Tick {
            now,
            seen,
            quotas,
            policy,
            ..
        } = *tick;
        self.judge(now, seen, quotas, settings);
        let memory_turn = self.take_memory_turns(tick, settings);
        let tree = self.tree.take().unwrap_or_else(|| {
            let places: Vec<Place> = seen.iter().map(|one| one.place).collect();
            Tree::new(&places)
        });
        let gap = |at: usize| {
            let (_, member) = &self.members[at];
            member.gap_until().filter(|_| !member.is_parked)
        };
        let ranks = ranks(&tree, |at| !seen[at].is_frozen, gap);
        let is_uneven = tree.is_uneven;
        self.crowd(tick, &tree);
        let decision = self.take_turns(now, &tree, policy.weigh, settings);

        // What a process measures by itself need not be demanded of all.
        let is_asked = |one: &Seen<Id>| one.is_watched && !(settings.measures != 0 && one.is_measuring);
        let is_measured = seen.iter().any(is_asked) || quotas.iter().any(|quotas| quotas.has_any);
        let measures = settings.measures != 0 && seen.iter().any(|one| one.is_busy && one.is_measuring);
        let ends_soon =
            decision.takes_turns && decision.next.is_some_and(|next| next <= now + wide(settings));
        let nr_busy = seen.iter().filter(|one| one.is_busy).count();
        let below = below(&tree, |at| self.members[at].1.has_turn);
        let mut orders = Vec::with_capacity(seen.len());
        let each = self
            .members
            .iter_mut()
            .zip(seen)
            .zip(quotas)
            .zip(&ranks)
            .zip(below);
        for (((((_, member), one), quotas), rank), is_below_turn) in each {
            let over = quotas.over_until.is_some();
            let memory = self.memory.share(one.id);
            let waits = member.competes() || is_below_turn || is_uneven && member.is_ahead;
            let by_policy = !(member.has_turn || member.has_extra) && waits;
            // Also the gate of a frozen process, which is in force when that thaws.
            let is_closed = by_policy || memory.is_parked || over;
            let holds = (is_closed && !one.is_frozen) || over;
            let has_memory_turn = memory.turn != MemoryTurn::None;
            let is_narrow = rank.is_below || member.is_crowded;
            let is_unknown = is_uneven && !(settings.measures != 0 && one.is_measuring);
            let gate = if is_closed {
                Gate::Throttled
            } else if quotas.has_any || has_memory_turn || decision.takes_turns || is_narrow {
                Gate::Arbitrate
            } else if is_measured || memory.resident_limit != 0 || rank.is_above || is_unknown {
                Gate::Track
            } else {
                Gate::Run
            };
            member.hold(now, one, holds);
            let is_out = by_policy && !member.is_of_turn;
            member.take_turn(is_out || member.has_extra || memory.is_parked);
            member.is_tracked = gate != Gate::Run || (settings.measures != 0 && one.is_measuring);
            member.tell(matches!(gate, Gate::Run | Gate::Track));
            orders.push(GateOrder {
                gate,
                window: window(ends_soon || is_narrow, quotas, settings),
                patience: settings.patience + member.debt_length(quotas.over_until, settings),
                gap_until: rank.gap_until.unwrap_or(0),
                wants_bell: member.is_tracked && !one.is_frozen && !member.has_demand && !over,
                wants_end: false,
                memory,
                share_percent: percent(member.fair),
                measures: settings.measures != 0,
                nr_others: u32::try_from(nr_busy - usize::from(one.is_busy)).unwrap_or(u32::MAX),
                waits_for: None,
            });
        }
        self.tree = Some(tree);
        let waits = self.members().any(Member::waits);
        for (order, member) in orders.iter_mut().zip(self.members()) {
            order.wants_end = waits && member.is_busy && !member.is_held;
        }
        waits::set(&mut orders, &self.members, seen);
        Plan {
            next: self.next(now, &decision, (is_measured, measures || is_uneven), settings),
            orders,
            memory_turn,
            memory_news: self.memory.take_news(),
        }
    }

    /// Returns whether the same decision would be taken at any later time, as long as `seen` and the quotas
    /// stay as they are: no process works, waits, or has memory elsewhere.
    pub(super) fn is_at_rest(&self, plan: &Plan<Id>, seen: &[Seen<Id>]) -> bool {
        plan.next.is_none()
            && self.members().all(Member::is_at_rest)
            && seen.iter().all(|one| one.nr_waiting == 0)
            && !self.wants_capacity(Time::MAX, seen)
    }

    /// Goes to `now` without a decision: what is observed is as it was at rest.
    pub(super) fn pass(&mut self, now: Time) {
        self.last = now;
    }

    /// Returns whether the next decision about memory turns is due.
    pub(super) fn wants_capacity(&self, now: Time, seen: &[Seen<Id>]) -> bool {
        let is_out =
            |one: &Seen<Id>| one.memory.takes_part(one.is_frozen) && one.memory.resident < one.memory.all;
        self.memory.is_due(now, seen.iter().any(is_out))
    }

    /// Decides on memory turns, if that is due. Returns the place of the process whose turn begins.
    fn take_memory_turns(&mut self, tick: &Tick<'_, Id>, settings: &Settings) -> Option<usize> {
        let mut began = None;
        if let Some(capacity) = tick.capacity {
            let each = self.members.iter().zip(tick.seen).zip(tick.quotas);
            let holders: Vec<Holder<Id>> = each
                .filter(|((_, one), _)| one.memory.takes_part(one.is_frozen))
                .map(|(((id, member), one), quotas)| {
                    let is_over = quotas.over_until.is_some() && (one.is_busy || one.nr_waiting > 0);
                    Holder {
                        id: *id,
                        place: one.place,
                        is_busy: !one.is_frozen && (member.has_demand || is_over),
                        holding: one.memory,
                    }
                })
                .collect();
            began = self.memory.look(&Look {
                now: tick.now,
                holders: &holders,
                capacity,
                weigh: tick.policy.weigh,
                settings,
            });
        }
        for (id, member) in &mut self.members {
            member.is_parked = self.memory.share(*id).is_parked;
        }
        let began = began?;
        self.members.iter().position(|(id, _)| *id == began)
    }

    /// Returns whether the process had work at the last decision, or counted as busy.
    pub(super) fn has_demand(&self, id: Id) -> bool {
        let place = self.members.binary_search_by_key(&id, |(id, _)| *id);
        place.is_ok_and(|place| self.members[place].1.has_demand)
    }

    /// Determines which processes want the GPU.
    fn judge(&mut self, now: Time, seen: &[Seen<Id>], quotas: &[Quotas], settings: &Settings) {
        for (((_, member), one), quotas) in self.members.iter_mut().zip(seen).zip(quotas) {
            member.judge(now, one, quotas.over_until.is_some(), settings);
        }
    }

    /// Decides which class has the turn.
    fn take_turns(&mut self, now: Time, tree: &Tree, weigh: Weigh, settings: &Settings) -> Decision {
        let parts = parts(tree, |at| self.members[at].1.competes(), weigh);
        let standings = self.groups.standings(tree, |at| self.members[at].1.standing);
        let mut field = Field::new(tree, parts, standings);
        self.pay(&mut field);
        field.settle(settings.cycle / 2);
        self.pay(&mut field);
        let classes = field.classes(settings);
        self.groups.keep(now, LONGEST_DEBT, tree, field.standings());
        let views: Vec<View> = self.members().map(view).collect();
        let contest = Contest {
            classes: &classes,
            views: &views,
            settings,
        };
        let decision = contest.decide(now, self.turns);
        (self.turns, self.nr_classes) = (decision.turns, classes.len());
        let standings = tree.of_processes(field.standings());
        for (at, ((_, member), standing)) in self.members.iter_mut().zip(standings).enumerate() {
            member.standing = standing;
            member.is_ahead = field.is_ahead(at);
            (member.class, member.has_extra) = (None, false);
            (member.is_of_turn, member.has_turn) = (false, false);
        }
        for (at, class) in classes.iter().enumerate() {
            for leaf in &class.leaves {
                let member = &mut self.members[*leaf].1;
                member.class = Some(at);
                let runs = decision.single.is_none_or(|single| single == *leaf);
                member.is_of_turn = decision.regular == Some(at);
                member.has_turn = member.is_of_turn && runs;
                let runs = decision.extra_single.is_none_or(|single| single == *leaf);
                member.has_extra = decision.extra == Some(at) && runs;
            }
        }
        decision
    }

    /// Charges GPU time to the competitors that have a part by which to do so.
    fn pay(&mut self, field: &mut Field<'_>) {
        for (at, (_, member)) in self.members.iter_mut().enumerate() {
            if member.unpaid > 0 && field.charge(at, member.unpaid) {
                member.unpaid = 0;
            }
        }
    }

    /// Determines the part of each process if all that have lately had work compete, and whether others then
    /// have a larger one, so that what it has queued delays them.
    fn crowd(&mut self, tick: &Tick<'_, Id>, tree: &Tree) {
        let is_recent = |at: usize| self.members[at].1.is_recent(tick.now, &tick.seen[at]);
        let fair = tree.of_processes(&parts(tree, is_recent, tick.policy.weigh));
        let most = fair.iter().max().copied().unwrap_or(0);
        for ((_, member), fair) in self.members.iter_mut().zip(fair) {
            member.fair = fair;
            member.is_crowded = tree.is_uneven && fair > 0 && !is_near(fair, most);
        }
    }

    /// Returns the part that a process has of the GPU if all processes that have lately had work compete.
    pub(super) fn part(&self, id: Id) -> u64 {
        let place = self.members.binary_search_by_key(&id, |(id, _)| *id);
        place.map_or(0, |place| self.members[place].1.fair)
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().map(|(_, member)| member)
    }

    /// Returns when to tick next: when the policy's decision changes, and `wide` before that if turns change
    /// (windows become narrow). When another outlook for idle processes begins. While a process waits: after
    /// [`Settings::tick`], since the end of work may not have been rung. While several measured processes are
    /// busy: after [`DIVISION`] or [`COARSE`]; while one is: after [`SELDOM`]. Every other event is rung.
    fn next(
        &self,
        now: Time,
        decision: &Decision,
        (is_measured, measures): (bool, bool),
        settings: &Settings,
    ) -> Option<Time> {
        let waits = self.members().any(Member::waits);
        let busy = self.members().filter(|member| member.is_busy).count();
        let division = match (is_measured, busy) {
            (true, 2..) => Some(DIVISION),
            (false, 2..) if measures => Some(COARSE),
            (_, 1..) if measures => Some(SELDOM),
            _ => None,
        };
        let is_wanted = self.members().any(|member| member.has_demand);
        let expected = self
            .members()
            .filter(|member| (waits || member.is_tracked) && !(member.is_held || member.is_busy))
            .filter(|member| member.has_demand || is_wanted && member.gap_until().is_some())
            .filter_map(Member::changes);
        let tick = waits.then_some(now + settings.tick());
        let narrows = decision.next.filter(|_| decision.takes_turns);
        let narrows = narrows.map(|end| end.saturating_sub(wide(settings)));
        let division = division.map(|pause| now + pause);
        expected
            .chain(decision.next)
            .chain(narrows)
            .filter(|when| *when > now)
            .chain(tick)
            .chain(division)
            .chain(self.memory.next().filter(|when| *when > now))
            .min()
    }
}

fn view(member: &Member) -> View {
    View {
        has_turn: member.has_turn,
        has_extra: member.has_extra,
        is_crowded: member.is_crowded,
        held_since: member.held_since,
        owes_until: member.debt.until(),
        awaited_until: member.awaited_until(),
    }
}

/// Returns the in-flight window of a process. `is_narrow`: a process of higher priority would wait for what
/// is queued, or what is queued when the turn ends would run in the next turn and could not be attributed.
/// Otherwise what exceeds a turn or quota is paid back later, so the window is wider and the GPU need not
/// wait for the program.
fn window(is_narrow: bool, quotas: &Quotas, settings: &Settings) -> u64 {
    if is_narrow {
        return settings.window;
    }
    let wide = wide(settings);
    let wide = quotas.least.map_or(wide, |quota| wide.min(quota / 8));
    wide.max(settings.window)
}

/// Returns the largest in-flight window, nanoseconds.
fn wide(settings: &Settings) -> u64 {
    (4 * settings.window).min(settings.cycle / 8)
}
