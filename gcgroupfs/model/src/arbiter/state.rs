//! One tick: reads every process on every GPU, charges what was used, decides, and sets the gates.

use std::collections::{BTreeMap, BTreeSet};

use super::Settings;
use super::gpu::Gpu;
use super::member::Seen;
use super::memory_turns::MemoryNews;
use super::plan::{Quotas, Tick, Used};
use super::policy::{Policy, Time};
use super::quota::{Key, Meter, Passed};
use crate::tree::{Arbitration, GateOrder, ProcessId, Quota, Remainder};

/// Nanoseconds between ticks while a busy process's GPU time is being watched and nothing else causes a tick.
const MEASURE: u64 = 10_000_000;

/// Shortest interval, in nanoseconds, between ticks for the sake of a quota.
const SHORTEST: u64 = 200_000;

#[derive(Debug)]
pub struct State {
    settings: Settings,
    gpus: Vec<Gpu<ProcessId>>,
    /// By GPU; `None` unless it is at rest.
    rests: Vec<Option<Rest>>,
    meters: BTreeMap<Key, Meter>,
    watches: BTreeMap<ProcessId, Time>,
    /// Whether it has ticked: before that, it knows no quota, and gates are as an earlier state left them.
    has_ticked: bool,
}

/// Input of the decision about a GPU at rest. A tick passes the GPU by until this input changes.
#[derive(Debug)]
struct Rest {
    seen: Vec<Seen<ProcessId>>,
    policy: &'static Policy,
    /// Numbers of the processes and of the groups that they are in.
    entities: BTreeSet<u64>,
}

/// Work that remains when the tree's lock is released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// When to tick again; `None`: only when notified.
    pub at: Option<Time>,
    /// Work began before its process saw that it must ring: tick again at once.
    pub again: bool,
    /// Changes of memory turns to be logged, with the devices.
    pub memory_news: Vec<(usize, MemoryNews)>,
}

impl State {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            gpus: Vec::new(),
            rests: Vec::new(),
            meters: BTreeMap::new(),
            watches: BTreeMap::new(),
            has_ticked: false,
        }
    }

    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
        self.rests.clear();
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Measures a process's GPU time for [`Settings::watch`] nanoseconds from `now`.
    pub fn watch(&mut self, now: Time, id: ProcessId) {
        self.watches.insert(id, now + self.settings.watch);
    }

    pub fn tick(&mut self, now: Time, tree: &mut Arbitration<'_>) -> Next {
        let policy = tree.policy();
        self.watches.retain(|id, until| *until > now && tree.has(*id));
        self.charge_remainders(now, tree);
        let mut changed = self.set_meters(now, tree);
        self.gpus.resize_with(tree.nr_devices(), Gpu::new);
        self.rests.resize_with(tree.nr_devices(), || None);

        self.meters.values_mut().for_each(Meter::look);

        let mut all: Vec<Vec<Seen<ProcessId>>> = Vec::with_capacity(self.gpus.len());
        for (device, gpu) in self.gpus.iter_mut().enumerate() {
            let seen = tree.seen(now, device, |id| self.watches.contains_key(&id));
            if self.rests[device].as_ref().is_some_and(|rest| rest.seen == seen) {
                gpu.pass(now);
                all.push(seen);
                continue;
            }
            self.rests[device] = None;
            for (one, used) in seen.iter().zip(gpu.measure(now, &seen, &self.settings)) {
                let nsec = used.charged;
                let wants = (one.is_busy || one.nr_waiting > 0 || gpu.has_demand(one.id)) && !one.is_frozen;
                if used == Used::default() && !wants {
                    continue;
                }
                let to = keys(&self.meters, tree, one.id, device);
                for key in &to {
                    if let Some(meter) = self.meters.get_mut(key) {
                        meter.attribute(one.id.0, wants.then(|| gpu.part(one.id)), nsec);
                    }
                }
                tree.charge(one.id, device, nsec);
                tree.count_held(one.id, device, used.held, now);
                charge(&mut self.meters, now, &Passed { device, nsec, to });
            }
            all.push(seen);
        }
        let mut released = Vec::new();
        for meter in self.meters.values_mut() {
            meter.charge(now, 0);
            released.extend(meter.release());
        }
        for passed in &released {
            charge(&mut self.meters, now, passed);
        }
        let turned = self
            .meters
            .iter_mut()
            .filter_map(|((entity, _), meter)| meter.has_turned().then_some(*entity));
        changed.extend(turned);

        let is_first = !std::mem::replace(&mut self.has_ticked, true);
        let mut next: Vec<Time> = Vec::new();
        let (mut again, mut memory_news) = (false, Vec::new());
        for (device, seen) in all.iter().enumerate() {
            let rest = self.rests.get(device).and_then(Option::as_ref);
            if rest.is_some_and(|rest| rest.policy == policy && rest.entities.is_disjoint(&changed)) {
                continue;
            }
            let each = seen.iter().map(|one| self.quotas(now, tree, one.id, device));
            let quotas: Vec<Quotas> = each.collect();
            let Some(gpu) = self.gpus.get_mut(device) else {
                continue;
            };
            let capacity = gpu.wants_capacity(now, seen).then(|| tree.capacity(device));
            let decided = Tick {
                now,
                capacity,
                seen,
                quotas: &quotas,
                policy,
            };
            let plan = gpu.decide(&decided, &self.settings);
            let rest = gpu.is_at_rest(&plan, seen).then(|| Rest {
                seen: seen.clone(),
                policy,
                entities: seen.iter().flat_map(|one| tree.entities(one.id)).collect(),
            });
            self.rests[device] = rest;
            next.extend(plan.next);
            memory_news.extend(plan.memory_news.map(|news| (device, news)));
            if let Some(one) = plan.memory_turn.and_then(|place| seen.get(place)) {
                tree.count_memory_turn(one.id, device);
            }
            let gone = gpu.take_gone();
            if is_first {
                tree.open_absent(device, seen);
            }
            for id in gone {
                tree.order(id, device, &GateOrder::OPEN);
            }
            for (one, order) in seen.iter().zip(&plan.orders) {
                tree.order(one.id, device, order);
            }
            tree.fence();
            for (one, order) in seen.iter().zip(&plan.orders) {
                again |= order.wants_bell && tree.has_begun(device, one);
            }
        }
        next.extend(self.next(now, tree, &all));
        Next {
            at: next.into_iter().min(),
            again,
            memory_news,
        }
    }

    /// Charges quotas and groups with what processes that have left used since the last tick: together no
    /// more than the time that has passed.
    fn charge_remainders(&mut self, now: Time, tree: &mut Arbitration<'_>) {
        let mut passed: Vec<u64> = self.gpus.iter().map(|gpu| gpu.unmeasured(now)).collect();
        for Remainder {
            device,
            nsec,
            entities,
        } in tree.take_remainders()
        {
            let Some((gpu, left)) = self.gpus.get_mut(device).zip(passed.get_mut(device)) else {
                continue;
            };
            let nsec = nsec.min(*left);
            *left -= nsec;
            gpu.charge_remainder(&entities, nsec);
            let to = metered(&self.meters, entities.into_iter(), device);
            charge(&mut self.meters, now, &Passed { device, nsec, to });
        }
    }

    /// Creates, updates and removes meters so that each quota has one. Returns the processes and groups whose
    /// quotas may have changed.
    fn set_meters(&mut self, now: Time, tree: &mut Arbitration<'_>) -> BTreeSet<u64> {
        let changed = tree.quota_changes(!self.has_ticked);
        let quotas: BTreeMap<Key, Quota> = changed
            .iter()
            .flat_map(|entity| {
                tree.quotas(*entity)
                    .into_iter()
                    .map(|(slot, quota)| ((*entity, slot), quota))
            })
            .collect();
        let all = |entity: u64| (entity, None)..=(entity, Some(usize::MAX));
        let known = changed.iter().flat_map(|entity| self.meters.range(all(*entity)));
        let known = known.map(|(key, _)| *key);
        let gone: Vec<Key> = known.filter(|key| !quotas.contains_key(key)).collect();
        let gone = gone.iter().filter_map(|key| self.meters.remove(key));
        let settled: Vec<Passed> = gone.flat_map(Meter::settle).collect();
        for passed in &settled {
            charge(&mut self.meters, now, passed);
        }
        for group in tree.quota_ends() {
            let meters = self.meters.range_mut(all(group.0));
            meters.for_each(|(_, meter)| meter.drop_deferred());
        }
        for (key, quota) in quotas {
            let meter = self.meters.entry(key).or_insert_with(|| Meter::new(quota, now));
            if meter.quota() != quota {
                meter.set(quota);
            }
        }
        changed
    }

    /// Returns the state on one GPU of the process's own quotas and those of all groups that it is in.
    fn quotas(&self, now: Time, tree: &Arbitration<'_>, id: ProcessId, device: usize) -> Quotas {
        let mut quotas = Quotas::default();
        for key in keys(&self.meters, tree, id, device) {
            let Some(meter) = self.meters.get(&key) else {
                continue;
            };
            let quota = meter.quota().usec.saturating_mul(1000);
            quotas.has_any = true;
            quotas.least = Some(quotas.least.map_or(quota, |least| least.min(quota)));
            let over_until = match meter.is_over() {
                true => Some(meter.repaid()),
                false => meter.waits_until(id.0, now),
            };
            quotas.over_until = quotas.over_until.max(over_until);
        }
        quotas
    }

    /// Returns when to tick next: when a quota in use may be used up or a used-up one is repaid, when GPU
    /// time is to be measured, and when a watch ends.
    fn next(&self, now: Time, tree: &Arbitration<'_>, seen: &[Vec<Seen<ProcessId>>]) -> Option<Time> {
        let mut used = BTreeSet::new();
        for (device, (gpu, seen)) in self.gpus.iter().zip(seen).enumerate() {
            for one in seen.iter().filter(|one| gpu.has_demand(one.id)) {
                used.extend(keys(&self.meters, tree, one.id, device));
            }
        }
        let meters = self
            .meters
            .iter()
            .filter_map(|(key, meter)| match meter.is_over() {
                true => Some(meter.repaid()),
                false => used.contains(key).then(|| meter.lasts(now).max(now + SHORTEST)),
            });
        let is_measured = !self.watches.is_empty()
            && seen
                .iter()
                .flatten()
                .any(|one| one.is_busy && self.watches.contains_key(&one.id));
        let measure = is_measured.then_some(now + MEASURE);
        meters.chain(measure).chain(self.watches.values().copied()).min()
    }
}

/// Charges meters, each with what the one before passes on.
fn charge(meters: &mut BTreeMap<Key, Meter>, now: Time, passed: &Passed) {
    let mut nsec = passed.nsec;
    for (at, key) in passed.to.iter().enumerate() {
        if let Some(meter) = meters.get_mut(key) {
            meter.charge(now, nsec);
            nsec = meter.pass(passed.device, nsec, &passed.to[at + 1..]);
        }
    }
}

/// Returns the keys of the meters that a process on a device is charged to, innermost first.
fn keys(meters: &BTreeMap<Key, Meter>, tree: &Arbitration<'_>, id: ProcessId, device: usize) -> Vec<Key> {
    if meters.is_empty() {
        return Vec::new();
    }
    metered(meters, tree.entities(id), device)
}

/// Returns the keys of the meters of a process and groups, innermost first, for their use of a device.
fn metered(meters: &BTreeMap<Key, Meter>, entities: impl Iterator<Item = u64>, device: usize) -> Vec<Key> {
    let keys = entities.flat_map(|entity| [Some(device), None].map(|slot| (entity, slot)));
    keys.filter(|key| meters.contains_key(key)).collect()
}
