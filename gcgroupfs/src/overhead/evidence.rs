//! Whether processes use a device as they claim to. A usage block may say anything; the driver knows who has a context.
//!
//! A claim is refuted where
//!
//! * the driver lists who is on the device, and the process is not;
//! * the process has had work for a fifth of the time or more since the last look, [`APART`] ago, and has never submitted any;
//! * it has had so much work in three looks, has submitted nothing meanwhile, and the driver's utilisation of the device by
//!   processes says that it did nothing.
//!
//! What a process counts it can forge, so the second and third are for those who do not take the trouble. A process that
//! has a real context and forges the counts takes no more than its share by it: it is charged for what it claims.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gcgroup_abi::OTHER_DEVICE;

use super::Source;
use crate::tree::{Blocks, Evidence, ProcessId, Tree};

/// The time from one comparison of counts to the next, at least.
const APART: Duration = Duration::from_secs(1);

/// Comparisons in a row without any evidence of work after which a claim is refuted: a kernel may be long, and the driver
/// updates its figures about once a second.
const MOST_IDLE: u32 = 3;

/// The part of the time, one in so many, below which a claim is not looked into: the driver's figures are whole percents.
const NOTEWORTHY: u32 = 5;

/// What a process says of a device, before the driver is asked: what it claims then must be in the driver's answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Whether it has claimed to use the device since the last look.
    pub(super) is_any: bool,
    /// Whether it does so now.
    pub(super) claims_now: bool,
    /// What its counts of submissions come to.
    progress: u64,
    /// GPU time that it has been charged with, nanoseconds.
    charged: u64,
}

impl Claim {
    pub(super) fn of(tree: &Tree, id: ProcessId, blocks: &dyn Blocks, device: usize) -> Option<Self> {
        let known = tree.evidence(id, device);
        let usage = blocks.usage();
        let here = usage.devices.get(device)?;
        let claims_now = here.claims_use();
        Some(Self {
            is_any: claims_now || matches!(known, Evidence::Asked | Evidence::Refuted),
            claims_now,
            // They may have been before the device had a number.
            progress: usage.progress(OTHER_DEVICE).wrapping_add(usage.progress(device)),
            charged: blocks.control().devices.get(device)?.usage_nsec.load(Relaxed),
        })
    }
}

/// What is remembered of a process on a device.
#[derive(Debug, Clone, Copy)]
struct Record {
    at: Instant,
    progress: u64,
    charged: u64,
    nr_idle: u32,
    is_refuted: bool,
}

/// What is remembered of everybody.
#[derive(Debug, Default)]
pub(super) struct Claims {
    records: HashMap<(ProcessId, usize), Record>,
}

impl Claims {
    pub(super) fn retain(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.records.retain(|(id, _), _| is_there(*id));
    }

    /// Finds out, `now`, whether anything supports what a process claims. What the driver says is of a time after the claim.
    pub(super) fn judge<S: Source>(
        &mut self,
        now: Instant,
        (id, pid): (ProcessId, u32),
        claim: &Claim,
        driver: &Driver<'_, S>,
    ) -> Evidence {
        if driver.is_absent(pid) {
            return if claim.is_any {
                Evidence::Refuted
            } else {
                Evidence::Unknown
            };
        }
        let has_worked = || driver.has_worked(pid);
        if self.is_idle(now, (id, driver.device), claim, has_worked) {
            Evidence::Refuted
        } else {
            Evidence::Confirmed
        }
    }

    /// Whether it claims to have work, and neither its counts nor the driver's figures say that it does any. The driver is
    /// asked only if it matters.
    fn is_idle(
        &mut self,
        now: Instant,
        key: (ProcessId, usize),
        claim: &Claim,
        has_worked: impl FnOnce() -> Option<bool>,
    ) -> bool {
        let record = self.records.entry(key).or_insert(Record {
            at: now,
            progress: claim.progress,
            charged: claim.charged,
            nr_idle: 0,
            is_refuted: false,
        });
        let passed = now.saturating_duration_since(record.at);
        if claim.progress != record.progress {
            *record = Record {
                at: now,
                progress: claim.progress,
                charged: claim.charged,
                nr_idle: 0,
                is_refuted: false,
            };
        } else if passed >= APART {
            let charged = Duration::from_nanos(claim.charged.saturating_sub(record.charged));
            let is_noteworthy = record.is_refuted || charged > passed / NOTEWORTHY;
            if is_noteworthy && claim.progress == 0 {
                record.is_refuted = true;
            } else if is_noteworthy {
                match has_worked() {
                    Some(true) => (record.nr_idle, record.is_refuted) = (0, false),
                    Some(false) => record.nr_idle += 1,
                    None => {}
                }
                record.is_refuted |= record.nr_idle >= MOST_IDLE;
            }
            (record.at, record.charged) = (now, claim.charged);
        }
        record.is_refuted
    }
}

/// What the driver says of a device.
pub(super) struct Driver<'a, S> {
    source: &'a S,
    pub(super) device: usize,
    /// Bytes by pid; nothing if it does not say.
    held: Option<&'a HashMap<u32, Option<u64>>>,
    /// Whether that can be relied on to have everybody who is on the device: it has somebody who is known.
    is_complete: bool,
    /// Who has worked in the last [`APART`]; asked for once.
    active: OnceCell<Option<HashSet<u32>>>,
}

impl<'a, S: Source> Driver<'a, S> {
    pub(super) fn new(
        tree: &Tree,
        source: &'a S,
        device: usize,
        held: Option<&'a HashMap<u32, Option<u64>>>,
    ) -> Self {
        let mut pids = held.into_iter().flat_map(HashMap::keys);
        Self {
            source,
            device,
            held,
            is_complete: source.sees_everybody() && pids.any(|pid| tree.find(*pid).is_some()),
            active: OnceCell::new(),
        }
    }

    /// Whether the process is certainly not on the device.
    pub(super) fn is_absent(&self, pid: u32) -> bool {
        self.is_complete && self.held.is_some_and(|held| !held.contains_key(&pid))
    }

    /// Bytes that the process holds there; nothing if nobody can say.
    pub(super) fn bytes(&self, pid: u32) -> Option<u64> {
        self.held
            .and_then(|held| held.get(&pid).copied().unwrap_or(Some(0)))
    }

    /// Whether the process has worked of late; nothing if nobody can say, or if nobody at all has.
    fn has_worked(&self, pid: u32) -> Option<bool> {
        let active = self.active.get_or_init(|| self.source.active(self.device, APART));
        let active = active.as_ref().filter(|active| !active.is_empty())?;
        Some(active.contains(&pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: (ProcessId, usize) = (ProcessId(1), 0);

    /// The verdicts of looks that are `APART`.
    fn looks(looks: &[(u64, u64, Option<bool>)]) -> Vec<bool> {
        let (mut claims, mut now) = (Claims::default(), Instant::now());
        let look = |(progress, msec, has_worked): &(u64, u64, Option<bool>)| {
            let claim = Claim {
                is_any: true,
                claims_now: true,
                progress: *progress,
                charged: msec * 1_000_000,
            };
            now += APART;
            claims.is_idle(now, KEY, &claim, || *has_worked)
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn work_that_was_never_submitted_is_none() {
        let verdicts = looks(&[
            (0, 0, None),
            (0, 100, None),
            (0, 900, None),
            (0, 900, None),
            (1, 900, None),
        ]);
        assert_eq!(verdicts, [false, false, true, true, false]);
    }

    #[test]
    fn three_idle_looks_refute_and_any_sign_of_work_is_enough() {
        let idle = Some(false);
        let busy = |signs: [(u64, Option<bool>); 6]| -> Vec<bool> {
            let claims = (1..)
                .zip(signs)
                .map(|(at, (progress, sign))| (progress, at * 900, sign));
            looks(&claims.collect::<Vec<_>>())
        };
        let verdicts = busy([(7, idle), (7, idle), (7, idle), (7, idle), (7, None), (8, idle)]);
        assert_eq!(verdicts, [false, false, false, true, true, false]);
        let verdicts = busy([
            (7, idle),
            (7, idle),
            (7, idle),
            (7, idle),
            (7, Some(true)),
            (7, idle),
        ]);
        assert_eq!(verdicts, [false, false, false, true, false, false]);
        for signs in [
            [(7, Some(true)); 6],
            [(7, None); 6],
            [(7, idle), (7, idle), (7, idle), (8, idle), (8, idle), (8, idle)],
        ] {
            assert_eq!(busy(signs), [false; 6], "{signs:?}");
        }
    }

    #[test]
    fn a_claim_to_little_time_is_not_looked_into() {
        let little: Vec<_> = (1..10).map(|at| (7, at * 190, Some(false))).collect();
        assert!(!looks(&little).contains(&true));
    }
}
