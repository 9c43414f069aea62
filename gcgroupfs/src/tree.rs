//! The model: devices, governed processes and what is asked of them. It knows no mount, no GPU, no clock and no
//! disk; it stores into control blocks and reads usage blocks, and tells listeners what others must act on.
//!
//! Everything is behind one lock, held for loads and stores only, so no caller ever waits for a system call.

mod arbitration;
mod enforce;
mod events;
mod exited;
mod process;
mod quota;
mod settings;
mod sums;
mod unmanaged;
mod view;

#[cfg(any(test, fuzzing))]
pub mod fixture;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use gcgroup_abi::{Control, MAX_DEVICES, OTHER_DEVICE, Usage};
use parking_lot::{Mutex, RwLock};

use crate::arbiter::Policy;
use crate::error::{Error, Result};

pub use arbitration::{Arbitration, GateOrder, Opened};
pub use exited::Exited;
pub use process::{Identity, Process};
pub use quota::Quota;
pub use settings::Settings;
pub use sums::Sums;
pub use unmanaged::{Reason, Unmanaged};
pub use view::{Edit, Scope, View};

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

/// One program that a process runs. It is made of what the kernel says of the process, so that a daemon that starts
/// again gives it again; and long enough that a stale one reaches nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// The two blocks of a process, mapped. Whoever implements it keeps them mapped while it lives.
pub trait Blocks: fmt::Debug + Send + Sync {
    fn control(&self) -> &Control;
    fn usage(&self) -> &Usage;
}

/// Whom a directory and its files belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Who is asking: of a mounted file whoever opened it, on the socket its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// One directory. `entity` is zero for the root, else a [`ProcessId`]'s number (later also a group's: they share
/// one count); `device` makes it the directory of that entity on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub entity: u64,
    pub device: Option<u8>,
}

impl Place {
    pub const ROOT: Self = Self {
        entity: 0,
        device: None,
    };

    pub fn process(id: ProcessId) -> Self {
        Self {
            entity: id.0,
            device: None,
        }
    }
}

/// The kinds of directory; which files one has depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Root,
    Process,
    ProcessDevice,
}

/// What has happened that the model cannot act on itself. Delivered after the lock has been released, so two
/// notices may overtake each other: take them as "look again", and look in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A process's directory has appeared.
    Joined {
        id: ProcessId,
        pid: u32,
        start_time: u64,
    },
    /// A process's directory has gone.
    Left {
        id: ProcessId,
        pid: u32,
        start_time: u64,
    },
    /// The process's settings are not what they were: write them down.
    SettingsChanged(ProcessId),
    /// The root's settings are not what they were: write them down.
    RootChanged,
    /// The control block has something for the process's helper thread: ring its doorbell, and wake the waiters
    /// of those of its gates that do not hold any more.
    Ring(ProcessId),
    /// The process has rung: something in its usage block is worth a look.
    Rung(ProcessId),
    /// The contents of the process's `*.events` may have changed.
    Events(ProcessId),
    /// Somebody has read the GPU time of these.
    Watched(Vec<ProcessId>),
    /// Somebody wants to know who uses the devices past the hooks.
    AuditAsked,
}

/// Takes [`Notice`]s on whatever thread caused them. Must not wait.
pub trait Listener: Send + Sync {
    fn notice(&self, notice: &Notice);
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
    /// Holds until another is asked for.
    default_policy: Policy,
    processes: BTreeMap<ProcessId, Process>,
    /// The process that has a pid's directory.
    pids: BTreeMap<u32, ProcessId>,
    exited: VecDeque<Exited>,
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
        let state = State {
            owner,
            devices,
            root: Settings::default(),
            default_policy: Policy::default(),
            processes: BTreeMap::new(),
            pids: BTreeMap::new(),
            exited: VecDeque::new(),
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

    /// Adds a process with the settings that hold for it from the start, fills its control block and publishes it.
    /// A process that already has the pid's directory leaves first: its pid was recycled, or it has executed
    /// another program.
    ///
    /// Before the call, `grace_msec` is the caller's to set. Hand the block out only afterwards.
    pub fn join(&self, identity: Identity, blocks: Arc<dyn Blocks>, settings: Settings) -> ProcessId {
        let pid = identity.pid;
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        let old = state
            .pids
            .get(&pid)
            .copied()
            .and_then(|id| state.leave(id, identity.started, &mut notices));
        let id = state.number(&identity);
        // The same program once more: its directory stays.
        notices.retain(|notice| !matches!(notice, Notice::Left { id: left, .. } if *left == id));
        let start_time = identity.start_time;
        let mut process = Process::new(id, identity, blocks, settings, &state.devices);
        enforce::publish(&process, &state.devices);
        // Nobody can have seen anything else yet.
        process.note_events(&state.devices, &mut Vec::new());
        state.pids.insert(pid, id);
        state.processes.insert(id, process);
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
        let gone = self.state.lock().leave(id, end, &mut notices);
        drop(gone);
        self.tell(&notices);
    }

    /// The process has rung: its usage block says something new, about its work or about what events files show.
    pub fn rung(&self, id: ProcessId) {
        // First of all: somebody more important may be waiting.
        self.tell(&[Notice::Rung(id)]);
        self.note_events(id);
    }

    /// Tells of changes of what events files show.
    fn note_events(&self, id: ProcessId) {
        let mut notices = Vec::new();
        let mut state = self.state.lock();
        let State {
            processes, devices, ..
        } = &mut *state;
        match processes.get_mut(&id) {
            Some(process) => process.note_events(devices, &mut notices),
            None => notices.clear(),
        }
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

    /// What is asked of everybody.
    pub fn root_settings(&self) -> Settings {
        self.state.lock().root.clone()
    }

    /// Asks it of everybody, as it was before a restart: nobody is told.
    pub fn restore_root(&self, settings: Settings) {
        self.state.lock().root = settings;
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

    /// Who the process is and what is asked of it, or nothing if it has left.
    pub fn settings(&self, id: ProcessId) -> Option<(Identity, Settings)> {
        let state = self.state.lock();
        let process = state.processes.get(&id)?;
        Some((process.identity.clone(), process.settings.clone()))
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

    /// Whom a directory belongs to.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn owner(&self, place: Place) -> Result<Owner> {
        let state = self.state.lock();
        match state.scope(place)? {
            Scope::Root => Ok(state.owner),
            Scope::Process(process) | Scope::Device(process, _) => Ok(process.identity.owner()),
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
        Ok(match state.level(place)? {
            Level::Root => state
                .pids
                .iter()
                .map(|(pid, id)| (pid.to_string(), Place::process(*id)))
                .collect(),
            Level::Process => state
                .devices
                .iter()
                .filter_map(|device| Some((device.index.to_string(), place.on(device.index)?)))
                .collect(),
            Level::ProcessDevice => Vec::new(),
        })
    }

    /// The directory of that name in a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], also if `place` itself is gone.
    pub fn directory(&self, place: Place, name: &str) -> Result<Place> {
        let state = self.state.lock();
        let number = canonical_number(name).ok_or(Error::NotFound)?;
        match state.level(place).map_err(|_| Error::NotFound)? {
            Level::Root => state.pids.get(&number).map(|id| Place::process(*id)),
            Level::Process => {
                let index = number as usize;
                state.devices.get(index).and_then(|device| place.on(device.index))
            }
            Level::ProcessDevice => None,
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
            Scope::Process(_) => Level::Process,
            Scope::Device(..) => Level::ProcessDevice,
        })
    }

    fn scope(&self, place: Place) -> Result<Scope<'_>> {
        if place == Place::ROOT {
            return Ok(Scope::Root);
        }
        let process = self.processes.get(&ProcessId(place.entity)).ok_or(Error::Gone)?;
        match place.device.map(usize::from) {
            None => Ok(Scope::Process(process)),
            Some(device) if device < self.devices.len() => Ok(Scope::Device(process, device)),
            Some(_) => Err(Error::Gone),
        }
    }

    fn leave(&mut self, id: ProcessId, end: u64, notices: &mut Vec<Notice>) -> Option<Process> {
        let process = self.processes.remove(&id)?;
        let Identity { pid, start_time, .. } = process.identity;
        if self.pids.get(&pid) == Some(&id) {
            self.pids.remove(&pid);
        }
        let exited = Exited::new(&process, &self.devices, end);
        self.departed += exited.sums.departed();
        self.exited.truncate(NR_EXITED - 1);
        self.exited.push_front(exited);
        notices.push(Notice::Left { id, pid, start_time });
        Some(process)
    }
}

impl Place {
    /// The directory this one is in; the root's is itself.
    pub fn parent(self) -> Self {
        if self.device.is_some() {
            Self { device: None, ..self }
        } else {
            Self::ROOT
        }
    }

    fn on(self, device: usize) -> Option<Self> {
        let device = u8::try_from(device)
            .ok()
            .filter(|index| usize::from(*index) < MAX_DEVICES)?;
        Some(Self {
            device: Some(device),
            ..self
        })
    }
}

/// A number spelt as we spell it: `007` is no directory's name.
fn canonical_number(name: &str) -> Option<u32> {
    let number: u32 = name.parse().ok()?;
    (number.to_string() == name).then_some(number)
}
