//! The model: devices, governed processes and what is asked of them. It knows no mount, no GPU, no clock and no
//! disk; it stores into control blocks and reads usage blocks, and tells listeners what others must act on.
//!
//! Everything is behind one lock, held for loads and stores only, so no caller ever waits for a system call.

mod arbitration;
mod edit;
mod enforce;
mod events;
mod exited;
mod grants;
mod group;
mod groups;
mod inherited;
mod moves;
mod notice;
mod place;
mod pressure;
mod process;
mod quota;
mod requests;
mod saved;
mod settings;
mod sums;
mod swap_bounds;
mod transient;
mod unmanaged;
mod view;

#[cfg(any(test, fuzzing))]
pub mod fixture;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use gcgroup_abi::{Control, OTHER_DEVICE, Usage};
use parking_lot::{Mutex, RwLock};

use self::grants::Grants;
use crate::arbiter::Policy;
use crate::error::{Error, Result};

pub use arbitration::{Arbitration, GateOrder, Opened};
pub use edit::Edit;
pub use exited::Exited;
pub use group::Group;
pub use notice::{Listener, Notice};
pub use place::{Access, Caller, DIRECTORY_MODE, Entity, GroupId, Level, Owner, Place, ProcessId};
pub use process::{Identity, Process};
pub use quota::Quota;
pub use saved::Saved;
pub use settings::Settings;
pub use sums::Sums;
pub use transient::Transient;
pub use unmanaged::{Reason, Unmanaged};
pub use view::{Scope, View};

/// The least important `compute.priority`.
pub const MAX_PRIORITY: u32 = 15;

/// How many of those that left are remembered in `exited`.
const NR_EXITED: usize = 64;

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
    /// Who has asked for more and cannot be answered yet.
    asking: BTreeSet<ProcessId>,
    /// How many groups there are that a user has made.
    nr_made: HashMap<u32, usize>,
    /// Holds until another is asked for.
    default_policy: Policy,
    processes: BTreeMap<ProcessId, Process>,
    /// The process that has a pid's directory.
    pids: BTreeMap<u32, ProcessId>,
    exited: VecDeque<Exited>,
    pressure: pressure::Pressure,
    /// Counts of those that have left: a total never falls.
    departed: Sums,
    audit: unmanaged::Audit,
}

impl Tree {
    /// An empty tree over `devices`, of which those beyond the blocks' slots are left out. Its root belongs to
    /// `owner`.
    pub fn new(owner: Owner, mut devices: Vec<Device>) -> Self {
        devices.truncate(OTHER_DEVICE);
        for (index, device) in devices.iter_mut().enumerate() {
            device.index = index;
        }
        let grants = Grants::new(&devices);
        let state = State {
            owner,
            devices,
            root: Settings::default(),
            access: None,
            groups: BTreeMap::new(),
            top: BTreeMap::new(),
            next_group: GroupId::FIRST,
            grants,
            asking: BTreeSet::new(),
            nr_made: HashMap::new(),
            default_policy: Policy::default(),
            processes: BTreeMap::new(),
            pids: BTreeMap::new(),
            exited: VecDeque::new(),
            pressure: pressure::Pressure::new(),
            departed: Sums::default(),
            audit: unmanaged::Audit::default(),
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

    /// Adds a process with what is kept of it from before, or what holds for it from the start; fills its control block
    /// and publishes it. A process that already has the pid's directory leaves first: its pid was recycled, or it has
    /// executed another program. If the group it was in is gone, it is in the root.
    ///
    /// Before the call, `grace_msec` is the caller's to set. Hand the block out only afterwards.
    pub fn join(&self, identity: Identity, blocks: Arc<dyn Blocks>, saved: impl Into<Saved>) -> ProcessId {
        let (saved, pid, start_time) = (saved.into(), identity.pid, identity.start_time);
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        let before = state.pids.get(&pid).copied();
        let goes_on = before.is_some_and(|before| state.processes[&before].identity.is_same(&identity));
        let old = before.and_then(|id| state.leave(id, identity.started, goes_on, &mut notices));
        let id = state.number(&identity);
        // The same program once more: its directory stays.
        notices.retain(|notice| !matches!(notice, Notice::Left { id: left, .. } if *left == id));
        let mut process = Process::new(id, identity, blocks, saved.settings.clone(), &state.devices);
        saved.restore(&mut process, &state.devices);
        let group = saved.group.and_then(|group| state.groups.get(&group));
        if let Some(group) = group {
            process.inherited = group.inherited.clone();
        }
        enforce::publish(&process, &state.devices);
        state.pids.insert(pid, id);
        state.processes.insert(id, process);
        state.enter(id, saved.group, &mut notices);
        state.govern(id);
        state.bound_swap(saved.group);
        // Nobody can have seen anything else yet.
        state.note_events(id, &mut Vec::new());
        if let Some(old) = &old {
            state.reap(old.group, &mut notices);
        }
        drop(state);
        drop(old);
        notices.push(Notice::Joined { id, pid, start_time });
        self.tell(&notices);
        id
    }

    /// Removes a process, which ended at `end` (seconds since 1970). Its charges go with it, its counts stay in the
    /// totals. A process that has left before is left alone.
    pub fn leave(&self, id: ProcessId, end: u64) {
        let mut notices = Vec::new();
        // Dropped after the lock: the last owner of the blocks unmaps them.
        let mut state = self.state.lock();
        let gone = state.leave(id, end, false, &mut notices);
        if let Some(gone) = &gone {
            state.bound_swap(gone.group);
            state.reap(gone.group, &mut notices);
        }
        drop(state);
        drop(gone);
        self.tell(&notices);
    }

    /// The process has rung: its usage block says something new, about its work, about what it wants to be granted, or
    /// about what events files show.
    pub fn rung(&self, id: ProcessId) {
        // First of all: it may be waiting, or somebody more important.
        let mut notices = Vec::new();
        self.state.lock().answer_requests(id, &mut notices);
        notices.push(Notice::Rung(id));
        self.tell(&notices);
        notices.clear();
        self.state.lock().relieve(id, &mut notices);
        self.tell(&notices);
        self.note_events(id);
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
            // The peak is the ledger's and the overhead of now; what it was with that of before is not to fall.
            process.keep_peaks(device, devices);
            enforce::store_overhead(process, device, bytes);
            state.grants.set_overhead(id, device, bytes);
            state.observe(id);
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

    /// What kind of directory a place is.
    ///
    /// # Errors
    /// [`Error::Gone`] if it is none any more.
    pub fn level(&self, place: Place) -> Result<Level> {
        self.state.lock().level(place)
    }

    /// Whom the control files of a directory belong to.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn owner(&self, place: Place) -> Result<Owner> {
        let state = self.state.lock();
        match state.scope(place)? {
            Scope::Root => Ok(state.owner),
            Scope::Process(process, _) => Ok(process.identity.owner()),
            Scope::Group(group, _) => Ok(group.access.owner),
        }
    }

    /// Whether the caller may do what root may: root, and whoever runs the daemon.
    pub fn is_root(&self, caller: Caller) -> bool {
        self.state.lock().is_root(caller)
    }

    /// The directories in a directory, with their names, by number.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn directories(&self, place: Place) -> Result<Vec<(String, Place)>> {
        let state = self.state.lock();
        let on_devices = || {
            let devices = state.devices.iter();
            devices.filter_map(|device| Some((device.index.to_string(), place.on(device.index)?)))
        };
        let groups = |groups: &BTreeMap<String, GroupId>| -> Vec<_> {
            let named = groups.iter().map(|(name, id)| (name.clone(), Place::group(*id)));
            named.collect()
        };
        Ok(match state.scope(place)? {
            Scope::Root => {
                let processes = state.pids.iter();
                let processes = processes.map(|(pid, id)| (pid.to_string(), Place::process(*id)));
                processes.chain(groups(&state.top)).collect()
            }
            Scope::Process(_, None) => on_devices().collect(),
            Scope::Group(group, None) => on_devices().chain(groups(&group.children)).collect(),
            Scope::Process(_, Some(_)) | Scope::Group(_, Some(_)) => Vec::new(),
        })
    }

    /// The directory of that name in a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], also if `place` itself is gone.
    pub fn directory(&self, place: Place, name: &str) -> Result<Place> {
        let state = self.state.lock();
        let number = canonical_number(name);
        let on_device = || {
            let device = state.devices.get(number? as usize)?;
            place.on(device.index)
        };
        match state.scope(place).map_err(|_| Error::NotFound)? {
            Scope::Root => match number {
                Some(number) => state.pids.get(&number).map(|id| Place::process(*id)),
                None => state.top.get(name).map(|id| Place::group(*id)),
            },
            Scope::Process(_, None) => on_device(),
            Scope::Group(group, None) => match number {
                Some(_) => on_device(),
                None => group.children.get(name).map(|id| Place::group(*id)),
            },
            Scope::Process(_, Some(_)) | Scope::Group(_, Some(_)) => None,
        }
        .ok_or(Error::NotFound)
    }

    /// Reads: calls `show` with what there is to see at a place.
    ///
    /// # Errors
    /// [`Error::Gone`], and those of `show`.
    pub fn view<T>(&self, place: Place, show: impl FnOnce(&View<'_>) -> Result<T>) -> Result<T> {
        let state = self.state.lock();
        let view = View::new(&state, state.scope(place)?);
        let result = show(&view);
        let notices = view.into_notices();
        drop(state);
        self.tell(&notices);
        result
    }

    /// Writes: calls `store` with what can be changed at a place, in the caller's name. What it changes is in the
    /// control block when this returns.
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
        for listener in self.listeners.read().iter() {
            notices.iter().for_each(|notice| listener.notice(notice));
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
    fn is_root(&self, caller: Caller) -> bool {
        caller.uid == 0 || caller.uid == self.owner.uid
    }

    fn policy(&self) -> Policy {
        self.root.policy().unwrap_or(self.default_policy)
    }

    /// The number of a process's program: 48 bits of a hash (splitmix64's mixing), and not zero, which is the root's.
    fn number(&self, identity: &Identity) -> ProcessId {
        let Identity {
            pid,
            start_time,
            image,
            ..
        } = identity;
        let (text, stack) = image.unwrap_or_default();
        let mix = |mut word: u64| {
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        };
        let hash = [u64::from(*pid), *start_time, text, stack]
            .into_iter()
            .fold(0, |hash: u64, word| {
                mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ mix(word))
            });
        let mut number = (hash >> 16).max(1);
        while self.processes.contains_key(&ProcessId(number)) {
            number = (number + 1).max(1) & ((1 << 48) - 1);
        }
        ProcessId(number)
    }

    fn level(&self, place: Place) -> Result<Level> {
        Ok(match self.scope(place)? {
            Scope::Root => Level::Root,
            Scope::Process(_, None) => Level::Process,
            Scope::Process(_, Some(_)) => Level::ProcessDevice,
            Scope::Group(_, None) => Level::Group,
            Scope::Group(_, Some(_)) => Level::GroupDevice,
        })
    }

    fn scope(&self, place: Place) -> Result<Scope<'_>> {
        let device = place.device.map(usize::from);
        if device.is_some_and(|device| device >= self.devices.len()) {
            return Err(Error::Gone);
        }
        match place.whose() {
            Entity::Root if device.is_none() => Ok(Scope::Root),
            Entity::Root => Err(Error::Gone),
            Entity::Process(id) => {
                let process = self.processes.get(&id).ok_or(Error::Gone)?;
                Ok(Scope::Process(process, device))
            }
            Entity::Group(id) => {
                let group = self.groups.get(&id).ok_or(Error::Gone)?;
                Ok(Scope::Group(group, device))
            }
        }
    }

    /// Takes a process out. Of one that `goes_on` here at once, nothing is added to what others have left behind.
    fn leave(
        &mut self,
        id: ProcessId,
        end: u64,
        goes_on: bool,
        notices: &mut Vec<Notice>,
    ) -> Option<Process> {
        self.exit(id, goes_on, notices);
        self.grants.leave(id);
        self.asking.remove(&id);
        let process = self.processes.remove(&id)?;
        let Identity { pid, start_time, .. } = process.identity;
        if self.pids.get(&pid) == Some(&id) {
            self.pids.remove(&pid);
        }
        let exited = Exited::new(&process, &self.devices, end);
        if !goes_on {
            self.departed += exited.sums.departed();
        }
        self.exited.truncate(NR_EXITED - 1);
        self.exited.push_front(exited);
        notices.push(Notice::Left { id, pid, start_time });
        self.relieve(id, notices);
        Some(process)
    }
}

/// A number spelt as we spell it: `007` is no directory's name.
fn canonical_number(name: &str) -> Option<u32> {
    let number: u32 = name.parse().ok()?;
    (number.to_string() == name).then_some(number)
}
