//! Room for those whom the driver refused memory, since the device is full: less important processes that can swap are
//! asked to give way.
//!
//! A request is begun and ended by whoever is heard of: the process that asks, those that were asked, one that leaves.
//! Nobody waits here, and there is no clock: who asks waits for as long as it likes, and takes its request back.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use gcgroup_abi::NO_LIMIT;

use super::{Notice, Process, ProcessId, State, enforce};

/// Requests that are not answered yet, by who asks for which device.
pub(super) type Pressure = BTreeMap<(ProcessId, usize), Request>;

#[derive(Debug)]
pub(super) struct Request {
    number: u32,
    /// Who was asked, and the `reclaim_generation` that they have dealt with it at.
    asked: Vec<(ProcessId, u32)>,
}

/// Somebody who can give way.
struct Candidate {
    id: ProcessId,
    priority: u32,
    bytes: u64,
}

impl State {
    /// Sees to what a process wants and to what it has done for others, or that it is gone.
    pub(super) fn relieve(&mut self, id: ProcessId, notices: &mut Vec<Notice>) {
        if !self.processes.contains_key(&id) {
            self.pressure.retain(|(asker, _), _| *asker != id);
        }
        let involved = |(key, request): (&(ProcessId, usize), &Request)| {
            let is_asked = request.asked.iter().any(|(asked, _)| *asked == id);
            is_asked.then_some(*key)
        };
        let waiting: Vec<_> = self.pressure.iter().filter_map(involved).collect();
        let own = (0..self.devices.len()).map(|device| (id, device));
        for (asker, device) in waiting.into_iter().chain(own) {
            self.end_request(asker, device, notices);
            self.begin_request(asker, device, notices);
        }
    }

    /// Answers a request if all who were asked have done what they could.
    fn end_request(&mut self, asker: ProcessId, device: usize, notices: &mut Vec<Notice>) {
        let Some(request) = self.pressure.get(&(asker, device)) else {
            return;
        };
        let is_done = |(id, generation): &(ProcessId, u32)| {
            let process = self.processes.get(id);
            let usage = process.and_then(|process| process.usage().devices.get(device));
            // A generation that is not behind; one that has left has given all.
            usage.is_none_or(|usage| {
                let dealt_with = usage.reclaim_generation.load(Acquire);
                dealt_with.wrapping_sub(*generation) < 1 << 31
            })
        };
        if request.asked.iter().all(is_done) {
            let number = request.number;
            self.pressure.remove(&(asker, device));
            self.answer(asker, device, number, true, notices);
        }
    }

    /// Takes up what the process asks for, if that is new.
    fn begin_request(&mut self, asker: ProcessId, device: usize, notices: &mut Vec<Notice>) {
        let Some(process) = self.processes.get(&asker) else {
            return;
        };
        let (Some(usage), Some(control)) = (
            process.usage().devices.get(device),
            process.control().devices.get(device),
        ) else {
            return;
        };
        let number = usage.pressure_request.load(Acquire);
        let is_answered = control.pressure_answer.load(Relaxed) == number;
        if is_answered || self.pressure.contains_key(&(asker, device)) {
            return;
        }
        let total = self.devices.get(device).map_or(0, |device| device.total);
        let wanted = usage.pressure_wanted.load(Relaxed);
        let priority = control.priority.load(Relaxed);
        let asked = if wanted == 0 || wanted > total {
            Vec::new()
        } else {
            self.ask(asker, device, priority, wanted, notices)
        };
        if asked.is_empty() {
            self.answer(asker, device, number, false, notices);
        } else {
            self.pressure.insert((asker, device), Request { number, asked });
        }
    }

    /// Asks less important ones for that many bytes, the least important and then the largest first; nobody, if they have
    /// not so much together.
    fn ask(
        &mut self,
        asker: ProcessId,
        device: usize,
        priority: u32,
        wanted: u64,
        notices: &mut Vec<Notice>,
    ) -> Vec<(ProcessId, u32)> {
        let mut candidates: Vec<_> = self
            .processes
            .values()
            .filter(|process| process.id != asker && process.is_hook_ok())
            .filter_map(|process| Candidate::of(process, device, self.swap_left(process, device)))
            .filter(|candidate| candidate.priority > priority)
            .collect();
        candidates.sort_unstable_by_key(|one| Reverse((one.priority, one.bytes)));
        let all = candidates
            .iter()
            .fold(0, |sum: u64, one| sum.saturating_add(one.bytes));
        let mut left = if all < wanted { 0 } else { wanted };
        let mut asked = Vec::new();
        for one in candidates {
            let bytes = one.bytes.min(left);
            let Some(process) = self.processes.get_mut(&one.id).filter(|_| bytes != 0) else {
                break;
            };
            left -= bytes;
            if let Some(generation) = enforce::reclaim(process, device, bytes, true) {
                asked.push((one.id, generation));
            }
            if let Some(kept) = process.kept_mut(Some(device)) {
                kept.nr_reclaim += 1;
            }
            self.note_events(one.id, notices);
            notices.push(Notice::Ring(one.id));
        }
        asked
    }

    fn answer(
        &self,
        asker: ProcessId,
        device: usize,
        number: u32,
        is_granted: bool,
        notices: &mut Vec<Notice>,
    ) {
        if let Some(process) = self.processes.get(&asker) {
            enforce::answer_pressure(process, device, number, is_granted);
            notices.push(Notice::Ring(asker));
        }
    }
}

impl Candidate {
    /// Nothing of a process that has nothing to give. `allowed`: what the groups above let it swap out.
    fn of(process: &Process, device: usize, allowed: u64) -> Option<Self> {
        let (usage, control) = (process.usage(), process.control());
        let charged = usage.memory_current(device);
        let (on_device, device) = (usage.devices.get(device)?, control.devices.get(device)?);
        let swapped = |usage: &gcgroup_abi::UsageDevice| usage.swap_current.load(Relaxed);
        let left = |limit: u64, used: u64| match limit {
            NO_LIMIT => NO_LIMIT,
            limit => limit.saturating_sub(used),
        };
        let in_all = usage.devices.iter().map(swapped).fold(0, u64::saturating_add);
        let bytes = on_device
            .swappable
            .load(Relaxed)
            .min(charged)
            .min(left(device.memory_swap_max.load(Relaxed), swapped(on_device)))
            .min(left(control.memory_swap_max.load(Relaxed), in_all))
            .min(allowed);
        (process.can_swap() && bytes != 0).then(|| Self {
            id: process.id,
            priority: device.priority.load(Relaxed),
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{ROOT, TOTAL, World};
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A process of that priority that can swap so much.
    fn swapping(world: &World, pid: u32, priority: u32, bytes: u64) -> ProcessId {
        let id = world.join(pid);
        let usage = world.usage(id);
        usage.can_swap.store(1, Relaxed);
        for (file, value) in [
            ("memory.swap.max", "max".to_owned()),
            ("compute.priority", priority.to_string()),
        ] {
            world.store(&format!("{pid}/{file}"), ROOT, &value).unwrap();
        }
        usage.devices[0].swappable.store(bytes, Relaxed);
        usage.devices[0].memory_current.store(bytes, Relaxed);
        id
    }

    fn want(world: &World, id: ProcessId, bytes: u64) {
        let device = &world.usage(id).devices[0];
        device.pressure_wanted.store(bytes, Relaxed);
        device.pressure_request.fetch_add(1, Relaxed);
        world.tree.rung(id);
    }

    /// The answer and the refusal of the last request.
    fn told(world: &World, id: ProcessId) -> (u32, u32) {
        let device = &world.control(id).devices[0];
        (
            device.pressure_answer.load(Relaxed),
            device.pressure_refused.load(Relaxed),
        )
    }

    fn asked(world: &World, id: ProcessId) -> (u32, u64) {
        let device = &world.control(id).devices[0];
        let is_lent = device.reclaim_is_lent.load(Relaxed);
        (is_lent, device.reclaim_bytes.load(Relaxed))
    }

    fn give(world: &World, id: ProcessId) {
        let generation = world.control(id).devices[0].reclaim_generation.load(Relaxed);
        world.usage(id).devices[0]
            .reclaim_generation
            .store(generation, Relaxed);
        world.tree.rung(id);
    }

    #[test]
    fn the_least_important_are_asked_first_and_the_answer_waits_for_all_of_them() {
        let world = World::new(1);
        let asker = swapping(&world, 1, 3, GIB);
        let equal = swapping(&world, 2, 3, GIB);
        let lesser = swapping(&world, 3, 4, 2 * GIB);
        let [small, large] = [(4, GIB), (5, 2 * GIB)].map(|(pid, bytes)| swapping(&world, pid, 9, bytes));
        want(&world, asker, 4 * GIB);
        assert_eq!(asked(&world, large), (1, 2 * GIB));
        assert_eq!(asked(&world, small), (1, GIB));
        assert_eq!(asked(&world, lesser), (1, GIB));
        assert_eq!(asked(&world, equal), (0, 0));
        assert_eq!(asked(&world, asker), (0, 0));
        for id in [small, lesser] {
            give(&world, id);
            assert_eq!(told(&world, asker), (0, 0));
        }
        world.take_notices();
        give(&world, large);
        assert_eq!(told(&world, asker), (1, 0));
        assert!(world.take_notices().contains(&Notice::Ring(asker)));
    }

    #[test]
    fn who_cannot_be_helped_is_told_at_once_and_nobody_is_asked() {
        let world = World::new(1);
        let asker = world.join(1);
        let victim = swapping(&world, 2, 9, GIB);
        for (request, wanted) in [(1, 2 * GIB), (2, TOTAL + 1), (3, u64::MAX), (4, 0)] {
            want(&world, asker, wanted);
            assert_eq!(told(&world, asker), (request, request), "{wanted}");
            assert_eq!(asked(&world, victim), (0, 0), "{wanted}");
        }
        world.store("2/memory.swap.max", ROOT, "512M").unwrap();
        want(&world, asker, GIB);
        assert_eq!(told(&world, asker), (5, 5), "it may not swap so much");
    }

    #[test]
    fn one_that_leaves_is_not_waited_for() {
        let world = World::new(1);
        let asker = world.join(1);
        let victim = swapping(&world, 2, 9, GIB);
        want(&world, asker, GIB);
        assert_eq!(told(&world, asker), (0, 0));
        world.tree.leave(victim, 0);
        assert_eq!(told(&world, asker), (1, 0));
        let other = swapping(&world, 3, 9, GIB);
        want(&world, asker, GIB);
        world.tree.leave(asker, 0);
        give(&world, other);
        let again = world.join(1);
        assert_eq!(told(&world, again), (0, 0));
    }

    #[test]
    fn what_was_asked_for_to_stay_out_stays_out() {
        let world = World::new(1);
        let asker = world.join(1);
        let victim = swapping(&world, 2, 9, 2 * GIB);
        world.store("2/memory.reclaim", ROOT, "1G").unwrap();
        assert_eq!(asked(&world, victim), (0, GIB));
        want(&world, asker, GIB);
        assert_eq!(asked(&world, victim), (0, 2 * GIB));
        give(&world, victim);
        want(&world, asker, GIB);
        assert_eq!(asked(&world, victim), (1, GIB));
        world.store("2/memory.reclaim", ROOT, "1G").unwrap();
        assert_eq!(asked(&world, victim), (0, 2 * GIB));
    }
}
