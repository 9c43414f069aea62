//! A tree with simulated processes, for tests.

#![allow(clippy::unwrap_used, reason = "for tests")]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use gcgroup_abi::map::USAGE_SIZE;
use gcgroup_abi::{Control, Kind, Submission, Usage};
use parking_lot::Mutex;

use super::{
    Blocks, Caller, DIRECTORY_MODE, Device, Directory, Entity, GroupId, Host, Identity, Listener, NewGroup,
    Notice, Owner, ProcessId, Saved, Settings, Tree, Untrusted,
};
use crate::error::Result;
use crate::file::{Node, resolve};

/// Memory of each test device in bytes.
pub const TOTAL: u64 = 8 << 30;
/// The host of test devices, up for a day at first.
pub const HOST: Host = Host {
    memory: 1 << 40,
    nr_cpus: 8,
    ticks_per_second: 100,
    uptime: || UPTIME.get(),
    now: || NOW.get(),
    user_of: |identity| match OWNERLESS.get() == identity.pid {
        true => None,
        false => Some(identity.uid),
    },
};
thread_local! {
    static OWNERLESS: Cell<u32> = const { Cell::new(0) };
    static NOW: Cell<u64> = const { Cell::new(START) };
    static UPTIME: Cell<Duration> = const { Cell::new(Duration::from_secs(86_400)) };
}

/// Lets the process with this pid have executed a set-user-ID program.
pub fn become_root(pid: u32) {
    OWNERLESS.set(pid);
}

/// Sets the calling thread's time since boot.
pub fn set_uptime(uptime: Duration) {
    UPTIME.set(uptime);
}

/// First time on the clock of each test, nanoseconds.
pub const START: u64 = 86_400_000_000_000;

/// Sets the calling thread's clock, nanoseconds.
pub fn set_now(now: u64) {
    NOW.set(now);
}

pub const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};
/// Owner of every test process.
pub const OWNER: Caller = Caller {
    uid: 1000,
    gid: 1000,
    pid: 2,
};
pub const OTHER_USER: Caller = Caller {
    uid: 1001,
    gid: 1001,
    pid: 3,
};

/// Both blocks, writable.
#[derive(Debug)]
struct Pair {
    control: Box<Control>,
    usage: Box<Usage>,
}

impl Blocks for Pair {
    fn control(&self) -> &Control {
        &self.control
    }

    fn usage(&self) -> Untrusted<'_> {
        Untrusted::new(&self.usage)
    }
}

/// Returns blocks as of a process that has just started.
pub fn blocks() -> Arc<dyn Blocks> {
    let (control, usage) = zeroed();
    usage.publish();
    Arc::new(Pair { control, usage })
}

/// Returns blocks as the kernel maps them at first.
#[allow(unsafe_code, reason = "without files to map")]
fn zeroed() -> (Box<Control>, Box<Usage>) {
    // SAFETY: both consist of atomics, for which every bit pattern is valid.
    unsafe { (Box::new_zeroed().assume_init(), Box::new_zeroed().assume_init()) }
}

/// Returns all words of a usage block, for tests that write it without regard to their meaning.
#[allow(unsafe_code, reason = "the block has no such view")]
pub fn words(usage: &Usage) -> &[AtomicU64] {
    let words = std::ptr::from_ref(usage).cast();
    // SAFETY: the block consists of atomics, is page-aligned and USAGE_SIZE long, and stays borrowed.
    unsafe { std::slice::from_raw_parts(words, USAGE_SIZE / 8) }
}

/// Gives each identity a program of its own.
static NR_IDENTITIES: AtomicU64 = AtomicU64::new(1);

/// Returns the identity of a test process.
pub fn identity(pid: u32) -> Identity {
    let comm = "a program".into();
    Identity {
        pid,
        start_time: 1000 + u64::from(pid),
        image: Some((0, NR_IDENTITIES.fetch_add(1, Relaxed))),
        started: 5,
        uid: OWNER.uid,
        gid: OWNER.gid,
        comm,
        args: "a program --key=value".into(),
    }
}

/// Returns a test device with that index.
pub fn device(index: usize) -> Device {
    Device {
        index,
        uuid: [u8::try_from(index).unwrap(); 16],
        uuid_text: format!("GPU-{index}"),
        pci: format!("00000000:{index:02}:00.0"),
        total: TOTAL,
        name: "Simulated GPU".to_owned(),
    }
}

/// Records notices.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Notice>>);

impl Listener for Recorder {
    fn notice(&self, notice: &Notice) {
        self.0.lock().push(notice.clone());
    }
}

/// Returns a group that root makes, with the usual mode.
pub fn new_group(parent: Directory, name: &str) -> NewGroup<'_> {
    NewGroup {
        parent,
        name,
        caller: ROOT,
        mode: DIRECTORY_MODE,
    }
}

/// A tree with a recording listener.
#[derive(Debug)]
pub struct World {
    pub tree: Arc<Tree>,
    recorder: Arc<Recorder>,
}

impl World {
    pub fn new(nr_devices: usize) -> Self {
        let devices = (0..nr_devices).map(device).collect();
        let tree = Arc::new(Tree::new(Owner { uid: 0, gid: 0 }, devices, HOST));
        let recorder = Arc::new(Recorder::default());
        tree.listen(recorder.clone());
        Self { tree, recorder }
    }

    pub fn join(&self, pid: u32) -> ProcessId {
        self.join_with(pid, blocks(), Settings::default())
    }

    pub fn join_with(&self, pid: u32, blocks: Arc<dyn Blocks>, saved: impl Into<Saved>) -> ProcessId {
        self.tree.join(identity(pid), blocks, saved)
    }

    /// Makes the group at `path` and missing ones above; returns its number.
    pub fn group(&self, path: &str) -> GroupId {
        let mut at = None;
        for name in path.split('/') {
            at = match self
                .tree
                .subdirectory(Directory::of(at), name)
                .map(Directory::whose)
            {
                Ok(Entity::Group(id)) => Some(id),
                _ => {
                    let (id, change) = self.tree.make_group(&new_group(Directory::of(at), name)).unwrap();
                    self.tree.finish(change);
                    Some(id)
                }
            };
        }
        at.unwrap()
    }

    /// Returns the notices since the last call.
    pub fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.recorder.0.lock())
    }

    pub fn control(&self, id: ProcessId) -> Held {
        Held(self.tree.blocks(id).unwrap())
    }

    pub fn usage(&self, id: ProcessId) -> HeldUsage {
        HeldUsage(self.tree.blocks(id).unwrap())
    }

    /// Returns the contents of the file at `path`.
    pub fn show(&self, path: &str) -> String {
        match resolve(&self.tree, path).unwrap() {
            Node::File(directory, file) => file.show(&self.tree, directory).unwrap(),
            Node::Dir(_) => panic!("{path} is a directory"),
        }
    }

    pub fn store(&self, path: &str, caller: Caller, text: &str) -> Result<()> {
        match resolve(&self.tree, path).unwrap() {
            Node::File(directory, file) => {
                let stored = file.store(&self.tree, directory, caller, text.as_bytes());
                stored.map(|change| self.tree.finish(change))
            }
            Node::Dir(_) => panic!("{path} is a directory"),
        }
    }

    /// Lets the process submit `kernels` kernels.
    pub fn submit(&self, id: ProcessId, device: u32, kernels: u64) {
        let usage = self.usage(id);
        usage.nr_threads.store(1, Relaxed);
        usage.threads[0].device.store(device, Relaxed);
        usage.threads[0]
            .exited(Submission::Kernel)
            .fetch_add(kernels, Relaxed);
    }

    /// Lets the process write `word` to its counters.
    pub fn fill_usage(&self, id: ProcessId, word: u64) {
        let usage = self.usage(id);
        usage.nr_threads.store(u32::MAX, Relaxed);
        let fill = |words: &[&AtomicU64]| words.iter().for_each(|at| at.store(word, Relaxed));
        fill(&[
            &usage.memory_peak,
            &usage.nr_max,
            &usage.nr_oom,
            &usage.nr_unknown_symbols,
        ]);
        for device in &usage.devices {
            fill(&[
                &device.memory_current,
                &device.memory_peak,
                &device.nr_alloc,
                &device.nr_free,
            ]);
            fill(&[
                &device.nr_alloc_fail,
                &device.nr_max,
                &device.nr_oom,
                &device.nr_ended,
            ]);
            fill(&[&device.nr_frozen, &device.frozen_usec]);
            fill(&[
                &device.swappable,
                &device.movable,
                &device.swap_current,
                &device.pressure_wanted,
            ]);
            device
                .kinds
                .iter()
                .chain(&device.shared_exited)
                .for_each(|at| fill(&[at]));
        }
        for thread in &usage.threads {
            thread.device.store(u32::MAX, Relaxed);
            thread.submissions.iter().flatten().for_each(|at| fill(&[at]));
            fill(&[&thread.nr_alloc, &thread.nr_free]);
            Kind::ALL
                .iter()
                .filter_map(|(kind, ..)| thread.kind(*kind))
                .for_each(|at| fill(&[at]));
        }
        usage.threads[0].device.store(0, Relaxed);
    }
}

/// Keeps a process's blocks alive, with access to the control block.
#[derive(Debug)]
pub struct Held(Arc<dyn Blocks>);

impl std::ops::Deref for Held {
    type Target = Control;

    fn deref(&self) -> &Control {
        self.0.control()
    }
}

/// Keeps a process's blocks alive, with access to the usage block.
#[derive(Debug)]
pub struct HeldUsage(Arc<dyn Blocks>);

impl std::ops::Deref for HeldUsage {
    type Target = Usage;

    fn deref(&self) -> &Usage {
        self.0.usage().raw()
    }
}
