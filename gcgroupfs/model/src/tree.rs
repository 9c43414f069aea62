//! The model: devices, governed processes, groups and their settings. It knows no mount, no GPU, no disk and
//! no clock but the one that it is given. It stores into control blocks, reads usage blocks, and notifies
//! listeners of changes that others must act on.
//!
//! All state is behind one lock, held for loads and stores only, so no caller waits for a system call.
#![doc = include_str!("tree/groups.md")]

mod access;
mod activity;
mod arbitration;
mod awaited;
mod byte_seconds;
mod change;
mod claims;
mod configured;
mod context_sizes;
mod contexts;
mod counter_records;
mod creation;
mod device;
mod device_stat;
mod device_users;
mod devices;
mod directory;
mod edit;
mod ended;
mod ends;
mod energy;
mod enforce;
mod event_changes;
mod events;
mod exchange;
mod exited;
mod explain;
mod given_access;
mod grants;
mod group;
mod group_devices;
mod groups;
mod held_time;
mod high;
mod holders;
mod holds;
mod host_claims;
mod identity;
mod idle;
mod idle_action;
mod idle_state;
mod inherited;
mod job_limits;
mod joined_above;
mod joining;
mod kill;
mod lease;
mod lease_action;
mod lookup;
mod memory_holders;
mod move_notices;
mod moves;
mod notice;
mod origin;
mod orphaned;
mod peaks;
mod places;
mod pressure;
mod process;
mod protection;
mod quota_changes;
mod records;
mod refusals;
mod refused;
mod requests;
mod retained;
mod saved;
mod scan;
mod settings;
mod stall;
mod storage;
mod sums;
mod suspend;
mod suspension;
mod swap_bounds;
mod transient;
mod ungoverned;
mod unmanaged;
mod untrusted;
mod unused;
mod usage;
mod user_change;
mod view;
mod waits;

#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod fixture;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use gcgroup_abi::Control;
use parking_lot::{Mutex, RwLock};

use self::device::Devices;
use self::grants::{Grants, Resource};
use crate::arbiter::Policy;
use crate::error::Result;
use crate::user_counts::UserCounts;

pub use crate::arbiter::MAX_PRIORITY;
pub use crate::quota::Quota;
pub use activity::{Activity, DeviceActivity};
pub use arbitration::{Arbitration, Opened, Remainder};
pub use change::Change;
pub use contexts::{Awaited, Measured};
pub use counter_records::add_to_ancestors;
pub use creation::Job;
pub use device::{Device, Host};
pub use device_stat::{DeviceSample, DeviceStat};
pub use directory::{
    Access, Caller, DIRECTORY_MODE, Directory, Entity, GroupId, Item, Level, Owner, ProcessId,
};
pub use edit::Edit;
pub use ended::NR_EXITED;
pub use enforce::GateOrder;
pub use exited::{Ending, Exited, Refusal};
pub use explain::{Explanation, Line, Section};
pub use given_access::GivenAccess;
pub use group::{Group, MAX_DEPTH, NewGroup, check_name};
pub use group_devices::{VisibleDevices, check_device_list};
pub use holds::NewHold;
pub use identity::Identity;
pub use idle_action::described_idle_actions;
pub use kill::{Doomed, KillCause, Killer};
pub use lease::Expired;
pub use lease_action::{LEASE_ACTIONS, LeaseAction, described_lease_actions};
pub use move_notices::MOST_GRACE;
pub use notice::{Listener, Notice};
pub use origin::{Origin, Origins};
pub use orphaned::EndedOwner;
pub use pressure::Sight;
pub use process::{Evidence, Process};
pub use records::Subject;
pub use saved::Saved;
pub use settings::*;
pub use storage::Storage;
pub use sums::{Counter, Sums, Swapped, all_counters};
pub use suspend::Pending;
pub use suspension::{Exchange, Step};
pub use transient::Transient;
pub use unmanaged::{OnUnmanaged, Reason, Unmanaged};
pub use untrusted::{Intake, Ledger, Untrusted};
pub use user_change::{Action, UserChange};
pub use view::{Scope, View};
pub use waits::WaitsFor;

/// The two mapped blocks of a process. Implementations keep them mapped while they live.
pub trait Blocks: fmt::Debug + Send + Sync {
    fn control(&self) -> &Control;
    fn usage(&self) -> Untrusted<'_>;
}

/// The model, behind its lock.
pub struct Tree {
    state: Mutex<State>,
    listeners: RwLock<Vec<Arc<dyn Listener>>>,
}

/// State protected by the lock.
#[derive(Debug)]
pub struct State {
    /// Owner of the root: the user that runs the daemon. This user has root's rights in it.
    owner: Owner,
    devices: Devices,
    /// Settings of the root, which hold for all processes.
    root: Settings,
    /// Owner and mode of the root's directory.
    access: Option<Access>,
    groups: BTreeMap<GroupId, Group>,
    /// Groups directly in the root.
    top: BTreeMap<String, GroupId>,
    /// Number of the next group.
    next_group: GroupId,
    /// Grants of the groups' memory limits.
    grants: Grants,
    /// Grants of the groups' swap limits.
    swap_grants: Grants,
    /// Requests for grants that cannot be answered yet.
    asking: BTreeSet<ProcessId>,
    /// Processes that leave grants unused, and how often each is still checked.
    unused: BTreeMap<ProcessId, u8>,
    /// Processes of groups that may use the GPU although they are not registered, by pid and start time.
    ungoverned: BTreeMap<(u32, u64), GroupId>,
    /// Claims of host memory that processes are about to take.
    host_claims: host_claims::HostClaims,
    holders: holders::Holders,
    retained: retained::RetainedGroups,
    /// Ends of the leases that have not expired, in milliseconds since boot.
    leases: BTreeMap<GroupId, u64>,
    contexts: context_sizes::Contexts,
    orphaned: orphaned::Orphaned,
    configured: saved::Configured,
    /// By device.
    device_samples: Vec<DeviceSample>,
    /// Last critical XID error of each GPU that reports them, by PCI address; 0: none.
    critical_xids: BTreeMap<String, u64>,
    /// Number of existing groups that each user has created.
    nr_made: UserCounts,
    /// Policy in force until `compute.policy` is written.
    default_policy: &'static Policy,
    /// Boxed, because the map moves its values and has spare capacity.
    processes: BTreeMap<ProcessId, Box<Process>>,
    device_users: device_users::DeviceUsers,
    /// Numbers of the processes and groups whose quotas the arbiter has yet to read.
    quota_changes: BTreeSet<u64>,
    /// GPU time of processes that have left since the last tick, to be charged to their groups.
    remainders: Vec<Remainder>,
    /// Groups whose last process has ended since then.
    quota_ends: BTreeSet<GroupId>,
    /// Process that owns the directory of each pid.
    pids: BTreeMap<u32, ProcessId>,
    exited: VecDeque<Exited>,
    pressure: pressure::Pressure,
    /// Counts of processes that have left, and of events of groups, under this daemon and earlier ones, so
    /// that a total never falls.
    departed: Sums,
    /// Number of changes of the root's `memory.events`.
    nr_count_changes: u64,
    /// Subjects that changed together and may not all be stored yet, if records are kept.
    unwritten: Option<Vec<Notice>>,
    audit: unmanaged::Audit,
    storage: Storage,
    /// Number of requests to look for new devices.
    nr_devices_asked: u64,
    ends: ends::Ends,
    stalls: stall::totals::RootStalls,
    /// Major version of the driver, if it is known.
    driver: Option<u32>,
}

impl Tree {
    /// Creates an empty tree with `devices` of `host`, without those beyond the blocks' slots. Its root
    /// belongs to `owner`.
    pub fn new(owner: Owner, devices: Vec<Device>, host: Host) -> Self {
        let devices = Devices::new(devices, host);
        let grants = Grants::new(Resource::Memory, &devices);
        let swap_grants = Grants::new(Resource::Swap, &devices);
        let state = State {
            owner,
            devices,
            root: Settings::default(),
            access: None,
            groups: BTreeMap::new(),
            top: BTreeMap::new(),
            next_group: GroupId::FIRST,
            grants,
            swap_grants,
            asking: BTreeSet::new(),
            unused: BTreeMap::new(),
            ungoverned: BTreeMap::new(),
            host_claims: host_claims::HostClaims::default(),
            holders: holders::Holders::default(),
            retained: retained::RetainedGroups::default(),
            leases: BTreeMap::new(),
            contexts: context_sizes::Contexts::default(),
            orphaned: orphaned::Orphaned::default(),
            configured: saved::Configured::new(),
            device_samples: Vec::new(),
            critical_xids: BTreeMap::new(),
            nr_made: UserCounts::default(),
            default_policy: Default::default(),
            processes: BTreeMap::new(),
            device_users: device_users::DeviceUsers::default(),
            quota_changes: BTreeSet::new(),
            remainders: Vec::new(),
            quota_ends: BTreeSet::new(),
            pids: BTreeMap::new(),
            exited: VecDeque::new(),
            pressure: pressure::Pressure::default(),
            departed: Sums::default(),
            nr_count_changes: 0,
            unwritten: None,
            audit: unmanaged::Audit::default(),
            storage: Storage::default(),
            nr_devices_asked: 0,
            ends: ends::Ends::default(),
            stalls: stall::totals::RootStalls::new((host.now)()),
            driver: None,
        };
        Self {
            state: Mutex::new(state),
            listeners: RwLock::default(),
        }
    }

    /// Notifies `listener` of all changes from now on.
    pub fn listen(&self, listener: Arc<dyn Listener>) {
        self.listeners.write().push(listener);
    }

    /// Handles a process's doorbell: its usage block has changed, in its work, its requests for grants, or
    /// what events files show.
    pub fn rung(&self, id: ProcessId) {
        // Done first: the process, or one of higher priority, may be waiting.
        self.update(|state, notices| {
            state.step_idle(id, notices);
            state.answer_requests(id, notices);
            state.note_unused(id);
            let now = (state.devices.host.uptime)();
            state.answer_claim(id, now, notices);
            state.note_pressure(id);
            state.note_contexts(id, notices);
            state.note_users(id);
            notices.push(Notice::Rung(id));
        });
        self.note_events(id);
    }

    /// Returns a process's pid and the driver error (CUresult) that prevents its freeze from being known to
    /// have drained, if there is one: `drain_error` of `gcgroup.events`.
    pub fn drain_error(&self, id: ProcessId) -> Option<(u32, u32)> {
        let state = self.state.lock();
        let process = state.processes.get(&id)?;
        let error = process.drain_error(None, state.devices.len())?;
        Some((process.identity.pid, error))
    }

    /// Notifies listeners of changes in what events files show.
    fn note_events(&self, id: ProcessId) {
        self.update(|state, notices| state.note_events(id, notices));
    }

    /// Sets whether the process still has its connection. If not, it is shown as `hook lost`.
    pub fn set_hook(&self, id: ProcessId, ok: bool) {
        if let Some(process) = self.state.lock().processes.get_mut(&id) {
            process.hook_ok = ok;
        }
        self.note_events(id);
    }

    /// Sets the policy that holds until `compute.policy` is written.
    pub fn set_default_policy(&self, policy: &'static Policy) {
        self.state.lock().default_policy = policy;
    }

    /// Returns whether the caller has root's rights: root, and the user that runs the daemon.
    pub fn is_root(&self, caller: Caller) -> bool {
        self.state.lock().is_root(caller)
    }

    /// Reads: calls `show` with a view of a directory.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::error::Error::Gone), and those of `show`.
    pub fn view<T>(&self, directory: Directory, show: impl FnOnce(&View<'_>) -> Result<T>) -> Result<T> {
        self.update(|state, notices| state.view(directory, show, notices))
    }

    /// Reads an events file like [`view`](Self::view), after counting every change that `show` sees. A
    /// process changes its usage block before it rings, so otherwise a reader could see a change that is
    /// counted and reported to pollers later.
    ///
    /// # Errors
    /// Those of [`view`](Self::view).
    pub fn view_events<T>(&self, directory: Directory, show: impl Fn(&View<'_>) -> Result<T>) -> Result<T> {
        /// Maximum number of attempts, because processes change meanwhile. Pollers of one that changes
        /// continually are woken once too often.
        const MOST: usize = 4;
        self.update(|state, notices| {
            state.note_events_below(directory, notices);
            let mut result = state.view(directory, &show, notices);
            for _ in 1..MOST {
                if !state.note_events_below(directory, notices) {
                    break;
                }
                result = state.view(directory, &show, notices);
            }
            result
        })
    }

    /// Writes: calls `store` with an editor of a directory, with the caller's rights. The changes are in the
    /// control block when this returns.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::error::Error::Gone), and those of `store`, which then has changed nothing.
    pub fn edit(
        &self,
        directory: Directory,
        caller: Caller,
        store: impl FnOnce(&mut Edit<'_>) -> Result<()>,
    ) -> Result<Change> {
        let mut state = self.state.lock();
        state.level(directory)?;
        let mut edit = Edit::new(&mut state, directory, caller);
        store(&mut edit)?;
        Ok(Change::new(edit.into_notices()))
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl State {
    fn view<T>(
        &mut self,
        directory: Directory,
        show: impl FnOnce(&View<'_>) -> Result<T>,
        notices: &mut Vec<Notice>,
    ) -> Result<T> {
        let view = View::new(self, self.scope(directory)?);
        let result = show(&view);
        let (told, shown) = view.into_parts();
        notices.extend(told);
        for (group, device, bytes) in shown {
            self.was_shown(group, device, bytes);
        }
        result
    }

    fn is_root(&self, caller: Caller) -> bool {
        caller.uid == 0 || caller.uid == self.owner.uid
    }

    fn policy(&self) -> &'static Policy {
        self.root.policy().unwrap_or(self.default_policy)
    }
}
