//! One group: its position, owner, settings, members, and the counts that only the daemon has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gcgroup_abi::Submission;
use serde::{Deserialize, Serialize};

use super::creation::{Creation, Job, is_default};
use super::events::{Events, Standing, nr_places};
use super::inherited::Inherited;
use super::origin::Origins;
use super::refused::Refusals;
use super::stall::totals::Stalls;
use super::{Access, Caller, Directory, GroupId, ProcessId, Settings, Sums};
use crate::error::{Error, Result};

/// Maximum nesting depth; a group in the root has depth 1.
pub const MAX_DEPTH: usize = 8;

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 255;

/// Maximum number of groups made by one user other than root.
pub(super) const MAX_PER_UID: usize = 1024;

/// Maximum number of groups.
pub(super) const MAX_GROUPS: usize = 64 << 10;

/// Number of existing groups at which only root may make another.
pub(super) const MAX_OTHERS: usize = 60 << 10;

/// A directory of processes and of other groups.
#[derive(Debug)]
pub struct Group {
    pub(super) id: GroupId,
    pub(super) name: String,
    pub(super) parent: Option<GroupId>,
    /// The number that it had before it was removed and made again.
    pub(super) former: Option<GroupId>,
    /// The uid of the creator.
    pub(super) maker: u32,
    /// True if the group is removed with its last process and last child group.
    pub(super) is_transient: bool,
    /// The command for which the group is held.
    pub(super) job: Option<Job>,
    pub(super) access: Access,
    pub(super) settings: Settings,
    pub(super) has_lease_expired: bool,
    pub(super) children: BTreeMap<String, GroupId>,
    /// Processes directly in this group.
    pub(super) members: BTreeSet<ProcessId>,
    /// Number of processes in this group and below.
    pub(super) nr_members: usize,
    /// Number of processes expected to register or between two programs, in this group and below.
    pub(super) nr_holds: usize,
    /// Number of processes that may use the GPU though they are not registered, in this group and below.
    pub(super) nr_ungoverned: usize,
    /// Number of frozen processes among `nr_members`: index 0 is as a whole, i + 1 is device i, as in
    /// [`Events`].
    pub(super) nr_frozen: Vec<usize>,
    /// Number of suspended processes among `nr_members`.
    pub(super) nr_suspended: usize,
    /// Settings inherited from this group and all above.
    pub(super) inherited: Arc<Inherited>,
    /// Counts by device; `None` is the group as a whole.
    pub(super) counted: BTreeMap<Option<usize>, Box<Counted>>,
    /// True if a peak has grown that has not been written to the journal.
    pub(super) has_grown: bool,
    pub(super) events: Events,
    pub(super) stalls: Stalls,
    pub(super) origins: Origins,
    pub(super) refusals: Refusals,
    /// Whether the group was made for a job, also after the job's command has ended.
    pub(super) is_job: bool,
    /// Whether a process or a job asked for the group.
    pub(super) is_requested: bool,
    /// `memory.current` of processes that have left over time, bytes times seconds.
    pub(super) byte_seconds: u128,
}

/// Counts of a group that its processes do not report, and the highest usage seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Counted {
    /// Counts of processes that have left, and of the group itself.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) before: Sums,
    /// Counts that processes brought from elsewhere when they entered.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) arrived: Sums,
    /// Highest `memory.current` seen since the last reset, or its value at the reset.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) peak: u64,
    /// True after the peak has been reset; then the processes' own peaks are not used.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) is_reset: bool,
}

/// A group to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewGroup<'a> {
    pub parent: Directory,
    pub name: &'a str,
    /// The creator: charged with the group, and its owner unless the group is transient.
    pub caller: Caller,
    /// Permission bits of the directory.
    pub mode: u16,
}

impl Group {
    pub(super) fn new(id: GroupId, parent: Option<GroupId>, creation: &Creation, access: Access) -> Self {
        Self {
            id,
            name: creation.name.clone(),
            parent,
            former: None,
            maker: creation.by,
            is_transient: creation.is_transient,
            job: creation.job.clone(),
            // Records of earlier versions have the command only.
            is_job: creation.is_job || creation.job.is_some(),
            is_requested: creation.is_requested,
            byte_seconds: creation.byte_seconds,
            access,
            settings: Settings::default(),
            has_lease_expired: false,
            children: BTreeMap::new(),
            members: BTreeSet::new(),
            nr_members: 0,
            nr_holds: 0,
            nr_ungoverned: 0,
            nr_frozen: Vec::new(),
            nr_suspended: 0,
            inherited: Inherited::nothing(),
            counted: BTreeMap::new(),
            has_grown: false,
            events: Events::default(),
            stalls: Stalls::default(),
            origins: Origins::default(),
            refusals: Refusals::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_populated() && self.children.is_empty()
    }

    /// Returns whether this group or a group below has a process, or expects one to register again.
    pub(super) fn is_populated(&self) -> bool {
        self.nr_members > 0 || self.nr_holds > 0
    }

    /// Adds what a leaving process held over time.
    pub(super) fn add_byte_seconds(&mut self, byte_seconds: u128) {
        self.byte_seconds = self.byte_seconds.saturating_add(byte_seconds);
    }

    /// Returns what the processes of a job have used, as KEY=VALUE pairs, once all have left; `None` if the
    /// group was not made for a job.
    pub(super) fn job_line(&self) -> Option<String> {
        let counted = self.counted(None);
        let sums = counted.before.less(counted.arrived);
        self.is_job.then(|| {
            format!(
                "memory.peak={} memory.byte_seconds={} compute.usage_usec={} nr_alloc={} oom={} group_max={} \
                 nr_launches={}",
                counted.peak,
                self.byte_seconds,
                sums.usage_nsec / 1000,
                sums.nr_alloc,
                sums.nr_oom,
                sums.nr_group_max,
                sums.submitted(Submission::Kernel),
            )
        })
    }

    pub(super) fn counted(&self, device: Option<usize>) -> Counted {
        self.counted
            .get(&device)
            .map_or_else(Counted::default, |counted| **counted)
    }

    pub(super) fn counted_mut(&mut self, device: Option<usize>) -> &mut Counted {
        self.counted.entry(device).or_default()
    }

    /// Raises the peak to `bytes`.
    pub(super) fn note_peak(&mut self, device: Option<usize>, bytes: u64) {
        if bytes > self.counted(device).peak {
            self.counted_mut(device).peak = bytes;
            self.has_grown = true;
        }
    }

    /// Returns whether a freeze is requested here or above, and all processes have frozen.
    pub(super) fn is_frozen(&self, device: Option<usize>) -> bool {
        let at = device.map_or(0, |device| device + 1);
        let nr_frozen = self.nr_frozen.get(at).copied().unwrap_or(0);
        self.inherited.freeze(device) && nr_frozen == self.nr_members && self.nr_ungoverned == 0
    }

    /// Returns whether a suspension is requested here or above, and all processes are suspended.
    pub(super) fn is_suspended(&self) -> bool {
        self.inherited.suspend() && self.nr_suspended == self.nr_members && self.nr_ungoverned == 0
    }

    /// Counts changes of what `gcgroup.events` shows. Returns whether there was one.
    pub(super) fn note_standing(&mut self, nr_devices: usize) -> bool {
        let mut changed = false;
        for at in 0..nr_places(nr_devices) {
            let standing = Standing {
                is_populated: self.is_populated(),
                is_frozen: self.is_frozen(at.checked_sub(1)),
                has_expired: at == 0 && self.has_lease_expired,
                is_suspended: self.is_suspended(),
                is_away: None,
                nr_suspended: self.nr_suspended,
                ..Standing::default()
            };
            changed |= self.events.set_standing(at, standing);
        }
        changed
    }
}

/// Returns the part of `held` that is believed. Excess on one device is subtracted from the whole as well.
pub(super) fn believed(held: &[u64], caps: &[u64]) -> Vec<u64> {
    let cap = |at: usize| caps.get(at).copied().unwrap_or(u64::MAX);
    let mut believed: Vec<u64> = held
        .iter()
        .enumerate()
        .map(|(at, held)| (*held).min(cap(at)))
        .collect();
    let devices = held.iter().zip(&believed).skip(1);
    let beyond = devices.fold(0, |sum: u64, (held, believed)| {
        sum.saturating_add(held - believed)
    });
    if let (Some(whole), Some(held)) = (believed.first_mut(), held.first()) {
        *whole = held.saturating_sub(beyond).min(cap(0));
    }
    believed
}

/// Checks that `name` may name a group.
///
/// # Errors
/// `EINVAL` for a name that is empty, `.` or `..`, contains a slash, newline or NUL, or has only digits as
/// the directories of processes and devices have; `ENAMETOOLONG` beyond 255 bytes.
pub fn check_name(name: &str) -> Result<()> {
    if name.len() > MAX_NAME {
        return Err(Error::LongName(MAX_NAME));
    }
    if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', '\n', '\0']) {
        return Err(Error::BadName("a group's name is one line without a slash"));
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::BadName(
            "names with only digits are reserved for processes and devices",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_name_accepts_all_but_digits_and_separators() {
        for name in ["a", "team-1", "1a", "\u{e9}", "a b", "...", &"x".repeat(255)] {
            check_name(name).unwrap();
        }
        for name in ["", "1", "007", "a/b", "a\nb", ".", "..", "/"] {
            assert_eq!(check_name(name).unwrap_err().errno(), libc::EINVAL, "{name:?}");
        }
        assert_eq!(
            check_name(&"x".repeat(256)).unwrap_err().errno(),
            libc::ENAMETOOLONG
        );
    }
}
