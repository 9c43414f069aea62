//! Memory pressure: the driver refused memory to a process because the device is full. Processes of less
//! priority that can swap are asked to move memory out. They are the donors; the process that asks is the
//! requester. For what cannot be moved, such as a context, processes of equal priority are donors as well,
//! and so is the requester itself.
//!
//! Both may lie, so each request is checked with NVML: whether memory is short, what each donor holds and has
//! delivered, and whether the requester then uses the freed memory. A request is recorded when its process
//! rings, and served by the thread that asks NVML ([`Tree::relieve`]); it looks every 10 ms while there are
//! requests.
//!
//! Where NVML does not answer, claims are believed: memory is short if a process says so, and a donor has
//! delivered when it says so. Then at most four requests of a user are served in a second.

mod credit;
mod donor;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use self::credit::Credits;
use self::donor::{Asked, Idle};
use super::{Notice, Process, ProcessId, State, Tree, enforce};

/// Time within which a donor must deliver more; after it other donors are asked too.
const DELIVERY: Duration = Duration::from_secs(1);

/// Longest life of a request: longer than its hook waits.
const PATIENCE: Duration = Duration::from_secs(12);

/// Limit of the factor by which more than is wanted is requested, as a power of two.
const MAX_DOUBLINGS: u32 = 8;

/// Memory is short where less than this part of the device is free beyond the request: contexts need some,
/// and free memory may be fragmented.
const SHORT_PART: u64 = 16;

/// NVML's answers about a device at one time.
#[derive(Debug, Clone)]
pub struct Sight {
    pub device: usize,
    pub at: Instant,
    /// Free bytes; `None` if NVML does not answer.
    pub free: Option<u64>,
    /// Bytes held, by pid; `None` if NVML does not answer.
    pub held: Option<HashMap<u32, Option<u64>>>,
}

impl Sight {
    /// Returns the bytes that a process holds, if they are known; 0 for a process that is not listed.
    fn held_by(&self, process: &Process) -> Option<u64> {
        let held = self.held.as_ref()?.get(&process.identity.pid);
        held.copied().unwrap_or(Some(0))
    }
}

/// Unanswered requests, by requester and device, and the records of requesters and donors.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    requests: BTreeMap<(ProcessId, usize), Request>,
    credits: Credits,
    /// Donors that did not deliver, by device: they are not asked again for 30 s.
    idle: HashMap<(ProcessId, usize), Idle>,
}

#[derive(Debug)]
struct Request {
    number: u32,
    /// When it was first served.
    since: Option<Instant>,
    /// Set when NVML is asked after the request was recorded.
    is_due: bool,
    /// Set once donors were asked.
    begun: Option<Begun>,
}

/// Bytes that donors are to be asked for.
struct Need<'a> {
    requester: ProcessId,
    wanted: u64,
    /// Donors are asked for this many times the bytes, if they have them.
    factor: u64,
    /// Processes that are not asked.
    but: &'a BTreeSet<ProcessId>,
}

#[derive(Debug)]
struct Begun {
    wanted: u64,
    /// Free bytes at that time.
    free: Option<u64>,
    /// Donors that may be awaited, or did not deliver.
    asked: Vec<Asked>,
    /// Bytes that other donors have delivered.
    delivered: u64,
    /// How often donors were asked.
    nr_rounds: u32,
}

impl Tree {
    /// Returns the devices with requests. The caller asks NVML about them and then calls
    /// [`relieve`](Self::relieve).
    pub fn pressed_devices(&self) -> Vec<usize> {
        let mut state = self.state.lock();
        let Pressure {
            requests, credits, ..
        } = &mut state.pressure;
        requests.values_mut().for_each(|request| request.is_due = true);
        let requests = requests.keys().map(|(_, device)| *device);
        let mut devices: Vec<usize> = requests.chain(credits.devices()).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Serves all requests for room on a device, by what NVML says of it.
    pub fn relieve(&self, sight: &Sight) {
        let mut notices = Vec::new();
        self.state.lock().relieve(sight, &mut notices);
        self.tell(&notices);
    }
}

impl State {
    /// Records the request of a process, if it is new.
    pub(super) fn note_pressure(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        for device in 0..self.devices.len() {
            let (Some(usage), Some(control)) = (
                process.usage().device(device),
                process.control().devices.get(device),
            ) else {
                continue;
            };
            let number = usage.pressure_request();
            if control.pressure_answer.load(Relaxed) != number {
                let request = Request {
                    number,
                    since: None,
                    is_due: false,
                    begun: None,
                };
                self.pressure.requests.entry((id, device)).or_insert(request);
            }
        }
    }

    /// Drops the requests of a process that has left.
    pub(super) fn forget_pressure(&mut self, id: ProcessId) {
        self.pressure
            .requests
            .retain(|(requester, _), _| *requester != id);
        self.pressure.idle.retain(|(donor, _), _| *donor != id);
        self.pressure.credits.forget(id);
    }

    fn relieve(&mut self, sight: &Sight, notices: &mut Vec<Notice>) {
        self.judge(sight);
        let device = sight.device;
        let requests = self.pressure.requests.iter();
        let here = requests.filter(|((_, on), request)| *on == device && request.is_due);
        let here: Vec<ProcessId> = here.map(|((id, _), _)| *id).collect();
        for requester in here {
            let key = (requester, device);
            let Some(mut request) = self.pressure.requests.remove(&key) else {
                continue;
            };
            let since = *request.since.get_or_insert(sight.at);
            let may_wait = sight.at.saturating_duration_since(since) < PATIENCE;
            let answer = match &mut request.begun {
                None => self.begin_request((requester, may_wait), &mut request, sight, notices),
                Some(begun) => self.go_on((requester, may_wait), begun, sight, notices),
            };
            let donor = answer.is_none().then(|| self.awaited_donor(key, &request, sight));
            self.note_wait_for_room(key, donor.flatten());
            match answer {
                None => {
                    self.pressure.requests.insert(key, request);
                }
                Some(is_granted) => {
                    self.answer(key, request.number, is_granted, notices);
                    if let (true, Some(begun)) = (is_granted, &request.begun) {
                        self.expect_use(requester, begun.wanted, sight);
                    }
                    // The process may have asked again since.
                    self.note_pressure(requester);
                }
            }
        }
    }

    /// Asks donors, if the request is valid. Returns the answer, if there is one at once. A request for what
    /// cannot be moved waits while the donors that there are do not deliver.
    fn begin_request(
        &mut self,
        (requester, may_wait): (ProcessId, bool),
        request: &mut Request,
        sight: &Sight,
        notices: &mut Vec<Notice>,
    ) -> Option<bool> {
        let (device, now) = (sight.device, sight.at);
        let process = self.processes.get(&requester)?;
        let (usage, control) = (
            process.usage().device(device)?,
            process.control().devices.get(device)?,
        );
        let who = (requester, process.identity.uid);
        let wanted = usage.pressure_wanted();
        let size = usage.pressure_size().max(wanted);
        let most = [
            self.devices.get(device)?.total,
            control.memory_limit.load(Relaxed),
            control.group_limit.load(Relaxed),
            process.control().memory_limit.load(Relaxed),
        ];
        let can_have = |size: u64| most.into_iter().all(|most| size <= most);
        let margin = self.devices.get(device)?.total / SHORT_PART;
        let is_short = sight.free.is_none_or(|free| free < size.saturating_add(margin));
        if wanted == 0 || !can_have(size) || !is_short || self.pressure.credits.is_refused(who, now) {
            return Some(false);
        }
        let may_wait = may_wait && process.usage().asks_for_fixed();
        let need = Need {
            requester,
            wanted,
            factor: 1,
            but: &BTreeSet::new(),
        };
        let chosen = self.choose_donors(&need, sight, false);
        if chosen.is_empty() {
            let may_come = may_wait && !self.choose_donors(&need, sight, true).is_empty();
            return (!may_come).then_some(false);
        }
        if !self.pressure.credits.is_its_turn(who, sight.held.is_some(), now) {
            return None;
        }
        let asked = self.ask(chosen, sight, notices);
        request.begun = Some(Begun {
            wanted,
            free: sight.free,
            asked,
            delivered: 0,
            nr_rounds: 1,
        });
        None
    }

    /// Checks what donors have delivered, and asks others if that is too little. Returns the answer, if there
    /// is one.
    fn go_on(
        &mut self,
        (requester, may_wait): (ProcessId, bool),
        begun: &mut Begun,
        sight: &Sight,
        notices: &mut Vec<Notice>,
    ) -> Option<bool> {
        let (device, now) = (sight.device, sight.at);
        for asked in &mut begun.asked {
            asked.look(self.processes.get(&asked.id).map(AsRef::as_ref), sight);
        }
        for asked in begun.asked.iter().filter(|asked| asked.is_overdue(now)) {
            let idle = self.pressure.idle.entry((asked.id, device));
            idle.or_insert_with(|| asked.idle(now));
        }
        let delivered = begun
            .asked
            .iter()
            .fold(begun.delivered, |sum, asked| sum.saturating_add(asked.delivered));
        let freed = sight
            .free
            .zip(begun.free)
            .map(|(now, then)| now.saturating_sub(then));
        if delivered.max(freed.unwrap_or(0)) >= begun.wanted {
            return Some(true);
        }
        // Donors that may still deliver are waited for.
        let pending = begun
            .asked
            .iter()
            .filter(|asked| !asked.is_done() && !asked.is_overdue(now));
        if pending.count() > 0 {
            return None;
        }
        // A donor that has delivered its part may be asked for more.
        begun.asked.retain(|asked| asked.is_overdue(now));
        begun.delivered = delivered;
        for asked in &begun.asked {
            begun.delivered -= asked.delivered;
        }
        let others: BTreeSet<ProcessId> = begun.asked.iter().map(|asked| asked.id).collect();
        // More each time, so that many donors that do not deliver are passed before the hook gives up.
        let need = Need {
            requester,
            wanted: begun.wanted - delivered,
            factor: 1 << (begun.nr_rounds - 1).min(MAX_DOUBLINGS),
            but: &others,
        };
        let chosen = self.choose_donors(&need, sight, false);
        let more = self.ask(chosen, sight, notices);
        if !more.is_empty() {
            begun.nr_rounds += 1;
            begun.asked.extend(more);
            return None;
        }
        let is_any_left = begun.asked.iter().any(|asked| !asked.is_done());
        if is_any_left && may_wait {
            return None;
        }
        Some(delivered > 0)
    }

    /// Returns a donor that a request waits for: one that may still deliver, or else one that did not.
    fn awaited_donor(
        &self,
        (requester, _): (ProcessId, usize),
        request: &Request,
        sight: &Sight,
    ) -> Option<ProcessId> {
        let asked = request.begun.as_ref().map_or(&[][..], |begun| &begun.asked);
        let late = |asked: &&Asked| asked.is_overdue(sight.at);
        let awaited = asked.iter().filter(|asked| !asked.is_done());
        if let Some(asked) = awaited.min_by_key(late) {
            return Some(asked.id);
        }
        let need = Need {
            requester,
            wanted: 1,
            factor: 1,
            but: &BTreeSet::new(),
        };
        let idle = self.choose_donors(&need, sight, true).into_iter().next();
        idle.map(|(source, _)| source.id)
    }

    /// Checks donors that did not deliver again, and whether requesters have used the freed memory.
    fn judge(&mut self, sight: &Sight) {
        let Self {
            processes, pressure, ..
        } = self;
        pressure.idle.retain(|(donor, on), idle| {
            let process = processes.get(donor);
            process.is_some_and(|process| *on != sight.device || idle.is_still(process, sight))
        });
        // A process that has left uses nothing.
        let held = |id: ProcessId| {
            processes
                .get(&id)
                .map_or(Some(0), |process| sight.held_by(process))
        };
        pressure.credits.judge(sight.device, held, sight.at);
    }

    /// Records that the requester is expected to use the freed memory.
    fn expect_use(&mut self, requester: ProcessId, bytes: u64, sight: &Sight) {
        let Some(process) = self.processes.get(&requester) else {
            return;
        };
        if let Some(held) = sight.held_by(process) {
            let who = (requester, process.identity.uid);
            self.pressure
                .credits
                .expect(who, sight.device, held.saturating_add(bytes / 2), sight.at);
        }
    }

    fn answer(
        &self,
        (requester, device): (ProcessId, usize),
        number: u32,
        is_granted: bool,
        notices: &mut Vec<Notice>,
    ) {
        if let Some(process) = self.processes.get(&requester) {
            enforce::answer_pressure(process, device, number, is_granted);
            notices.push(Notice::Ring(requester));
        }
    }
}
