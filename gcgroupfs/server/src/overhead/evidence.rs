//! Evidence that processes use a device as they claim. A usage block can claim anything; the driver knows
//! which processes have a context.
//!
//! A claim is refuted where
//!
//! * the driver lists the processes on the device, and this one is not among them;
//! * the process has never submitted work, and has occupied the device for a fifth of the time or more since
//!   the last look, [`APART`] ago, or at all in three looks;
//! * it has occupied the device for a fifth of the time in each of three looks, has submitted nothing
//!   meanwhile, and the driver's utilisation of the device by processes says that it did nothing.
//!
//! A process occupies a device for the time that it is charged, and the time for which the device is kept
//! free for it.
//!
//! A process can forge its own counts, so only the first rule holds against every lie. A process that has a
//! real context and forges the counts takes no more than its share: it is charged for what it claims.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{Governed, Source};
use gcgroupfs_model::tree::{Blocks, Evidence, ProcessId, Tree};

/// Least time between two comparisons of counts.
const APART: Duration = Duration::from_secs(1);

/// Comparisons in a row without any evidence of work after which a claim is refuted: a kernel may be long,
/// and the driver updates its figures about once a second.
const MOST_IDLE: u32 = 3;

/// A process that occupies the device for less than one part in this many of the time is not compared with
/// the driver's figures: these are whole percents.
const NOTEWORTHY: u32 = 5;

/// A process's claims about its use of a device, read before the driver is asked: the driver's answer must
/// include it.
#[derive(Debug, Clone, Copy)]
pub(super) struct UseClaim {
    /// Set if the process has claimed to use the device since the last look.
    pub(super) is_any: bool,
    /// Set if the process claims so now.
    pub(super) claims_now: bool,
    /// Sum of the process's counts of submissions.
    progress: u64,
    /// Time for which the process has occupied the device, nanoseconds.
    occupied: u64,
}

impl UseClaim {
    pub(super) fn of(tree: &Tree, id: ProcessId, blocks: &dyn Blocks, device: usize) -> Option<Self> {
        let known = tree.evidence(id, device);
        let usage = blocks.usage();
        let here = usage.device(device)?;
        let claims_now = here.claims_use();
        let charged = blocks.control().devices.get(device)?.usage_nsec.load(Relaxed);
        Some(Self {
            is_any: claims_now || matches!(known, Evidence::Asked | Evidence::Refuted),
            claims_now,
            progress: usage.progress(device),
            occupied: charged.saturating_add(tree.held_nsec(id, device)),
        })
    }
}

/// The last comparison for a process on a device.
#[derive(Debug, Clone, Copy)]
struct Record {
    at: Instant,
    progress: u64,
    occupied: u64,
    nr_idle: u32,
    is_refuted: bool,
}

/// The last comparisons for all processes.
#[derive(Debug, Default)]
pub(super) struct UseRecords {
    records: HashMap<(ProcessId, usize), Record>,
}

impl UseRecords {
    pub(super) fn retain(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.records.retain(|(id, _), _| is_there(*id));
    }

    /// Judges the claim of a process by what the driver said after the claim was read.
    pub(super) fn judge<S: Source>(
        &mut self,
        now: Instant,
        (id, pid): (ProcessId, u32),
        claim: &UseClaim,
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

    /// Returns whether the process claims to have work while neither its counts nor the driver's figures show
    /// any. Asks the driver only if its answer decides.
    fn is_idle(
        &mut self,
        now: Instant,
        key: (ProcessId, usize),
        claim: &UseClaim,
        has_worked: impl FnOnce() -> Option<bool>,
    ) -> bool {
        let record = self.records.entry(key).or_insert(Record {
            at: now,
            progress: claim.progress,
            occupied: claim.occupied,
            nr_idle: 0,
            is_refuted: false,
        });
        let passed = now.saturating_duration_since(record.at);
        if claim.progress != record.progress {
            *record = Record {
                at: now,
                progress: claim.progress,
                occupied: claim.occupied,
                nr_idle: 0,
                is_refuted: false,
            };
        } else if passed >= APART {
            let occupied = Duration::from_nanos(claim.occupied.saturating_sub(record.occupied));
            let is_noteworthy = record.is_refuted || occupied > passed / NOTEWORTHY;
            if claim.progress == 0 {
                // Even a little time, since it was not for work. Three looks, since the first submission may
                // just begin.
                record.nr_idle += u32::from(!occupied.is_zero());
                record.is_refuted |= is_noteworthy;
            } else if is_noteworthy {
                match has_worked() {
                    Some(true) => (record.nr_idle, record.is_refuted) = (0, false),
                    Some(false) => record.nr_idle += 1,
                    None => {}
                }
            }
            record.is_refuted |= record.nr_idle >= MOST_IDLE;
            (record.at, record.occupied) = (now, claim.occupied);
        }
        record.is_refuted
    }
}

/// The driver's answers about a device.
pub(super) struct Driver<'a, S> {
    source: &'a S,
    pub(super) device: usize,
    /// Bytes by pid; `None` if the driver does not say.
    held: Option<&'a HashMap<u32, Option<u64>>>,
    /// Set if the list is complete, and its pids are those of the daemon's pid namespace.
    is_complete: bool,
    /// Pids of the processes that have worked within the last [`APART`]; asked for once.
    active: OnceCell<Option<HashSet<u32>>>,
}

impl<'a, S: Source> Driver<'a, S> {
    /// `all` are the governed processes. The list `held` is taken to be complete if it contains one of them.
    /// Outside the first pid namespace all listed pids must be theirs, and they must report contexts: pids of
    /// another namespace do not fit so well by chance.
    pub(super) fn new(
        source: &'a S,
        device: usize,
        held: Option<&'a HashMap<u32, Option<u64>>>,
        all: &[Governed],
    ) -> Self {
        let is_governed = |pid: &u32| all.iter().any(|(_, governed, _)| governed == pid);
        let has_context = |pid: &u32| {
            let mut found = all.iter().filter(|(_, governed, _)| governed == pid);
            found.any(|(_, _, blocks)| blocks.usage().nr_contexts(device) != 0)
        };
        let is_complete = |held: &HashMap<u32, Option<u64>>| {
            let mut pids = held.keys();
            match source.sees_everybody() {
                true => pids.any(is_governed),
                false => !held.is_empty() && pids.all(has_context),
            }
        };
        Self {
            source,
            device,
            held,
            is_complete: held.is_some_and(is_complete),
            active: OnceCell::new(),
        }
    }

    /// Returns whether the process is certainly not on the device.
    pub(super) fn is_absent(&self, pid: u32) -> bool {
        self.is_complete && self.held.is_some_and(|held| !held.contains_key(&pid))
    }

    /// Returns the bytes that the process holds; `None` if they are not known.
    pub(super) fn bytes(&self, pid: u32) -> Option<u64> {
        self.held
            .and_then(|held| held.get(&pid).copied().unwrap_or(Some(0)))
    }

    /// Returns whether the process has worked within the last [`APART`]; `None` if the driver does not say,
    /// or lists no process.
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
        let (mut claims, mut now) = (UseRecords::default(), Instant::now());
        let look = |(progress, msec, has_worked): &(u64, u64, Option<bool>)| {
            let claim = UseClaim {
                is_any: true,
                claims_now: true,
                progress: *progress,
                occupied: msec * 1_000_000,
            };
            now += APART;
            claims.is_idle(now, KEY, &claim, || *has_worked)
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn claimed_work_without_submissions_is_refuted() {
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
    fn little_time_without_any_submission_is_refuted() {
        let toggled = [(0, 0), (0, 150), (0, 150), (0, 290), (0, 291), (0, 291), (1, 292)];
        let verdicts = looks(&toggled.map(|(progress, msec)| (progress, msec, Some(false))));
        assert_eq!(verdicts, [false, false, false, false, true, true, false]);
    }

    #[test]
    fn three_idle_looks_refute_a_claim_unless_work_shows() {
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
    fn claim_to_little_time_is_not_checked() {
        let little: Vec<_> = (1..10).map(|at| (7, at * 190, Some(false))).collect();
        assert!(!looks(&little).contains(&true));
    }
}
