//! The model: devices, governed processes and what is asked of them. It knows no mount, no GPU and no disk,
//! and of clocks only how old a process is; it stores into control blocks and reads usage blocks, and tells
//! listeners what others must act on.
//!
//! Everything is behind one lock, held for loads and stores only, so no caller ever waits for a system call.
//!
#![doc = include_str!("tree/groups.md")]

mod access;
mod arbitration;
mod claims;
mod devices;
mod directories;
mod edit;
mod enforce;
mod events;
mod exited;
mod grants;
mod group;
mod groups;
mod host_claims;
mod inherited;
mod joining;
mod later;
mod legacy;
mod moves;
mod notice;
mod peaks;
mod place;
mod pressure;
mod process;
mod quota;
mod records;
mod requests;
mod saved;
mod settings;
mod storage;
mod sums;
mod swap_bounds;
mod transient;
mod ungoverned;
mod unmanaged;
mod view;

#[cfg(any(test, fuzzing))]
pub mod fixture;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use gcgroup_abi::{Control, OTHER_DEVICE, Usage};
use parking_lot::{Mutex, RwLock};

use self::grants::{Grants, Resource};
use crate::arbiter::Policy;
use crate::error::Result;

pub use arbitration::{Arbitration, GateOrder, Opened};
pub use edit::Edit;
pub use exited::Exited;
pub use group::{Group, MAX_DEPTH, check_name};
pub use later::{Later, put_off};
pub use legacy::leave_behind;
pub use notice::{Listener, Notice};
pub use place::{Access, Caller, DIRECTORY_MODE, Entity, GroupId, Level, Owner, Place, ProcessId};
pub use pressure::Sight;
pub use process::{Evidence, Identity, Process};
pub use quota::Quota;
pub use records::Subject;
pub use saved::Saved;
pub use settings::Settings;
pub use storage::Storage;
pub use sums::Sums;
pub use transient::Transient;
pub use unmanaged::{Reason, Unmanaged};
pub use view::{Scope, View};

/// The least important `compute.priority`.
pub const MAX_PRIORITY: u32 = 15;

/// One GPU, or one MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its slot in every block, and its directory's name. Equals its position in the tree's list.
    pub index: usize,
    /// As the driver's `cuDeviceGetUuid_v2` gives it.
    pub uuid: [u8; 16],
    /// As NVML spells it (`GPU-...`, `MIG-...`); settings are kept by it, so that they outlive a renumbering.
    pub uuid_text: String,
    /// As NVML spells it (`00000000:01:00.0`). That of the GPU, for all its instances.
    pub pci: String,
    /// Bytes of memory; zero if unknown.
    pub total: u64,
    pub name: String,
}

/// The two blocks of a process, mapped. Whoever implements it keeps them mapped while it lives.
pub trait Blocks: fmt::Debug + Send + Sync {
    fn control(&self) -> &Control;
    fn usage(&self) -> &Usage;
}

/// All there is to know, and the lock around it.
pub struct Tree {
    state: Mutex<State>,
    listeners: RwLock<Vec<Arc<dyn Listener>>>,
}

/// What the lock protects.
#[derive(Debug)]
pub struct State {
    /// Whom the root belongs to: whoever runs the daemon, and as good as root in it.
    owner: Owner,
    devices: Vec<Device>,
    /// What is asked of everybody.
    root: Settings,
    /// Whom the root's directory was given to, and what it lets others do.
    access: Option<Access>,
    groups: BTreeMap<GroupId, Group>,
    /// The groups in the root.
    top: BTreeMap<String, GroupId>,
    /// The number of the next one.
    next_group: GroupId,
    /// What processes have of the groups' limits.
    grants: Grants,
    /// What they have of the groups' bounds of what may be swapped out.
    swap_grants: Grants,
    /// Who has asked for more and cannot be answered yet.
    asking: BTreeSet<ProcessId>,
    /// Processes of groups that may use the GPU though they are not registered, by pid and start time.
    ungoverned: BTreeMap<(u32, u64), GroupId>,
    /// Processes that are about to take memory of the host.
    host_claims: host_claims::HostClaims,
    /// How many groups there are that a user has made.
    nr_made: HashMap<u32, usize>,
    /// Holds until another is asked for.
    default_policy: Policy,
    /// Boxed: the map moves its values about, and keeps room for more of them.
    processes: BTreeMap<ProcessId, Box<Process>>,
    /// The process that has a pid's directory.
    pids: BTreeMap<u32, ProcessId>,
    exited: VecDeque<Exited>,
    pressure: pressure::Pressure,
    /// Counts of those that have left, with this daemon and those before: a total never falls.
    departed: Sums,
    /// Of what has changed together and may not all be on file, if anybody keeps records.
    unwritten: Option<Vec<Notice>>,
    audit: unmanaged::Audit,
    storage: Storage,
    /// How often somebody has asked whether there are new devices.
    nr_devices_asked: u64,
}

impl Tree {
    /// An empty tree over `devices`, of which those beyond the blocks' slots are left out. Its root belongs
    /// to `owner`.
    pub fn new(owner: Owner, mut devices: Vec<Device>) -> Self {
        devices.truncate(OTHER_DEVICE);
        for (index, device) in devices.iter_mut().enumerate() {
            device.index = index;
        }
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
            ungoverned: BTreeMap::new(),
            host_claims: host_claims::HostClaims::default(),
            nr_made: HashMap::new(),
            default_policy: Policy::default(),
            processes: BTreeMap::new(),
            pids: BTreeMap::new(),
            exited: VecDeque::new(),
            pressure: pressure::Pressure::default(),
            departed: Sums::default(),
            unwritten: None,
            audit: unmanaged::Audit::default(),
            storage: Storage::default(),
            nr_devices_asked: 0,
        };
        Self {
            state: Mutex::new(state),
            listeners: RwLock::default(),
        }
    }

    /// Tells `listener` of everything from now on.
    pub fn listen(&self, listener: Arc<dyn Listener>) {
        self.listeners.write().push(listener);
    }

    /// The process has rung: its usage block says something new, about its work, about what it wants to be
    /// granted, or about what events files show.
    pub fn rung(&self, id: ProcessId) {
        // First of all: it may be waiting, or somebody more important.
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        state.answer_requests(id, &mut notices);
        state.answer_claim(id, Instant::now(), &mut notices);
        state.note_pressure(id);
        drop(state);
        notices.push(Notice::Rung(id));
        self.tell(&notices);
        self.note_events(id);
    }

    /// A process's pid, and the driver's error (CUresult) that keeps the process from being known to stand
    /// still, if there is one: `drain_error` of `gcgroup.events`.
    pub fn drain_error(&self, id: ProcessId) -> Option<(u32, u32)> {
        let state = self.state.lock();
        let process = state.processes.get(&id)?;
        let error = process.drain_error(None, state.devices.len())?;
        Some((process.identity.pid, error))
    }

    /// Tells of changes of what events files show.
    fn note_events(&self, id: ProcessId) {
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        state.note_events(id, &mut notices);
        drop(state);
        self.tell(&notices);
    }

    /// Whether the process still answers. One that does not is shown as `hook lost`.
    pub fn set_hook(&self, id: ProcessId, ok: bool) {
        if let Some(process) = self.state.lock().processes.get_mut(&id) {
            process.hook_ok = ok;
        }
        self.note_events(id);
    }

    /// The policy that holds until `compute.policy` is written.
    pub fn set_default_policy(&self, policy: Policy) {
        self.state.lock().default_policy = policy;
    }

    /// Notes what the driver says the process holds on a device beyond its own ledger, in bytes.
    pub fn set_overhead(&self, id: ProcessId, device: usize, bytes: u64) {
        let mut state = self.state.lock();
        let State {
            processes, devices, ..
        } = &mut *state;
        if let (Some(process), true) = (processes.get_mut(&id), device < devices.len()) {
            // The peak is the ledger's and the overhead of now; what it was with that of before is not to
            // fall.
            process.keep_peaks(device, devices);
            enforce::store_overhead(process, device, bytes);
            state.grants.set_overhead(id, device, bytes);
            state.observe(id);
        }
    }

    /// Returns whether there is evidence that the process uses a device as it claims; `Unknown` if it has
    /// left.
    pub fn evidence(&self, id: ProcessId, device: usize) -> Evidence {
        let state = self.state.lock();
        let process = state.processes.get(&id);
        let kept = process.and_then(|process| process.devices.get(device));
        kept.map_or(Evidence::Unknown, |kept| kept.evidence)
    }

    /// Notes whether there is evidence that the process uses a device as it claims.
    pub fn set_evidence(&self, id: ProcessId, device: usize, evidence: Evidence) {
        let mut state = self.state.lock();
        let process = state.processes.get_mut(&id);
        let before = process
            .and_then(|process| process.kept_mut(Some(device)))
            .map(|kept| std::mem::replace(&mut kept.evidence, evidence));
        drop(state);
        let before = before.unwrap_or(evidence);
        if (before == Evidence::Refuted) != (evidence == Evidence::Refuted) {
            // Others may go on, or have to wait.
            self.tell(&[Notice::Rung(id)]);
        }
    }

    /// NVML shows these processes to hold so many bytes on a device, contexts and all.
    pub fn show_held(&self, device: usize, held: &[(ProcessId, u64)]) {
        // Others come in between.
        for some in held.chunks(64) {
            let mut state = self.state.lock();
            for (id, bytes) in some {
                state.grants.show(*id, device, *bytes);
            }
        }
    }

    /// Everybody's pid and blocks, for who compares them with what the driver says.
    pub fn ledgers(&self) -> Vec<(ProcessId, u32, Arc<dyn Blocks>)> {
        let state = self.state.lock();
        let ledger = |(pid, id): (&u32, &ProcessId)| {
            let process = state.processes.get(id)?;
            Some((*id, *pid, process.blocks.clone()))
        };
        state.pids.iter().filter_map(ledger).collect()
    }

    /// How often somebody has asked who uses the devices past the hooks.
    pub fn nr_audits_asked(&self) -> u64 {
        self.state.lock().audit.nr_asked()
    }

    /// Answers those who had asked when it was `asked` times.
    pub fn set_unmanaged(&self, found: Vec<Unmanaged>, asked: u64) {
        self.state.lock().audit.answer(found, asked);
    }

    /// How many devices there are.
    pub fn nr_devices(&self) -> usize {
        self.state.lock().devices.len()
    }

    /// Who the process is, or nothing if it has left.
    pub fn identity(&self, id: ProcessId) -> Option<Identity> {
        let state = self.state.lock();
        Some(state.processes.get(&id)?.identity.clone())
    }

    /// The process's blocks, or nothing if it has left.
    #[cfg(any(test, fuzzing))]
    pub fn blocks(&self, id: ProcessId) -> Option<Arc<dyn Blocks>> {
        self.state
            .lock()
            .processes
            .get(&id)
            .map(|process| process.blocks.clone())
    }

    /// The process whose directory is named `pid`.
    pub fn find(&self, pid: u32) -> Option<ProcessId> {
        self.state.lock().pids.get(&pid).copied()
    }

    /// Everybody, by pid.
    pub fn processes(&self) -> Vec<(ProcessId, Identity)> {
        let state = self.state.lock();
        state
            .pids
            .values()
            .filter_map(|id| Some((*id, state.processes.get(id)?.identity.clone())))
            .collect()
    }

    /// Whether the caller may do what root may: root, and whoever runs the daemon.
    pub fn is_root(&self, caller: Caller) -> bool {
        self.state.lock().is_root(caller)
    }

    /// Reads: calls `show` with what there is to see at a place.
    ///
    /// # Errors
    /// [`Error::Gone`], and those of `show`.
    pub fn view<T>(&self, place: Place, show: impl FnOnce(&View<'_>) -> Result<T>) -> Result<T> {
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        let result = state.view(place, show, &mut notices);
        drop(state);
        self.tell(&notices);
        result
    }

    /// Reads an events file: as [`view`](Self::view), and every change that `show` sees has been counted
    /// before. A process changes its usage block before it rings, so a reader could see a change that is
    /// counted, and told to pollers, later.
    ///
    /// # Errors
    /// As [`view`](Self::view).
    pub fn view_events<T>(&self, place: Place, show: impl Fn(&View<'_>) -> Result<T>) -> Result<T> {
        /// Processes change while they are looked at. One that does so all the time has its pollers woken
        /// once too often.
        const MOST: usize = 4;
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        state.note_events_below(place, &mut notices);
        let mut result = state.view(place, &show, &mut notices);
        for _ in 1..MOST {
            if !state.note_events_below(place, &mut notices) {
                break;
            }
            result = state.view(place, &show, &mut notices);
        }
        drop(state);
        self.tell(&notices);
        result
    }

    /// Writes: calls `store` with what can be changed at a place, in the caller's name. What it changes is in
    /// the control block when this returns.
    ///
    /// # Errors
    /// [`Error::Gone`], and those of `store`, which then has changed nothing.
    pub fn edit(
        &self,
        place: Place,
        caller: Caller,
        store: impl FnOnce(&mut Edit<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        state.level(place)?;
        let mut edit = Edit::new(&mut state, place, caller);
        let result = store(&mut edit);
        let notices = edit.into_notices();
        drop(state);
        self.tell(&notices);
        result
    }

    fn tell(&self, notices: &[Notice]) {
        if notices.is_empty() {
            return;
        }
        // What a listener does about it may have others to be told.
        let is_put_off = later::is_put_off(notices);
        for listener in self.listeners.read_recursive().iter() {
            if !(is_put_off && listener.may_wait()) {
                listener.notices(notices);
            }
        }
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
        place: Place,
        show: impl FnOnce(&View<'_>) -> Result<T>,
        notices: &mut Vec<Notice>,
    ) -> Result<T> {
        let view = View::new(self, self.scope(place)?);
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

    fn policy(&self) -> Policy {
        self.root.policy().unwrap_or(self.default_policy)
    }
}
