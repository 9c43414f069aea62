//! A tree with processes that tests play themselves.

#![allow(clippy::unwrap_used, reason = "for tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::{Control, Kind, Submission, Usage};
use parking_lot::Mutex;

use super::{
    Blocks, Caller, Device, Entity, GroupId, Identity, Listener, Notice, Owner, Place, ProcessId, Saved,
    Settings, Tree,
};
use crate::block;
use crate::error::Result;
use crate::file::{Node, resolve};
use crate::sys::{ControlMap, UsageMap};

/// Bytes that each test device has.
pub const TOTAL: u64 = 8 << 30;
pub const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};
/// Whom every test process belongs to.
pub const OWNER: Caller = Caller {
    uid: 1000,
    gid: 1000,
    pid: 2,
};
pub const STRANGER: Caller = Caller {
    uid: 1001,
    gid: 1001,
    pid: 3,
};

/// Both blocks, both writable.
#[derive(Debug)]
struct Pair {
    control: ControlMap,
    usage: UsageMap,
}

impl Blocks for Pair {
    fn control(&self) -> &Control {
        &self.control
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// Blocks as of a process that has just started.
pub fn blocks() -> Arc<dyn Blocks> {
    let (control, _) = block::new_control().unwrap();
    let usage = UsageMap::new(&block::theirs::good_usage_file()).unwrap();
    usage.publish();
    Arc::new(Pair { control, usage })
}

/// So that each runs a program of its own.
static NR_IDENTITIES: AtomicU64 = AtomicU64::new(1);

/// Identity of a test process.
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
    }
}

/// A device of that index.
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

/// Keeps what it is told.
#[derive(Default)]
struct Recorder(Mutex<Vec<Notice>>);

impl Listener for Recorder {
    fn notice(&self, notice: &Notice) {
        self.0.lock().push(notice.clone());
    }
}

/// A tree, and whoever listens to it.
pub struct World {
    pub tree: Arc<Tree>,
    recorder: Arc<Recorder>,
}

impl World {
    pub fn new(nr_devices: usize) -> Self {
        let devices = (0..nr_devices).map(device).collect();
        let tree = Arc::new(Tree::new(Owner { uid: 0, gid: 0 }, devices));
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

    /// Makes the group of that path, and those above that are not there.
    pub fn group(&self, path: &str) -> GroupId {
        let mut at = None;
        for name in path.split('/') {
            at = match self.tree.directory(Place::of(at), name).map(Place::whose) {
                Ok(Entity::Group(id)) => Some(id),
                _ => Some(self.tree.make_group(Place::of(at), name, ROOT, 0o755).unwrap()),
            };
        }
        at.unwrap()
    }

    /// What listeners were told since the last call.
    pub fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.recorder.0.lock())
    }

    pub fn control(&self, id: ProcessId) -> Held {
        Held(self.tree.blocks(id).unwrap())
    }

    pub fn usage(&self, id: ProcessId) -> HeldUsage {
        HeldUsage(self.tree.blocks(id).unwrap())
    }

    /// Contents of the file at `path`.
    pub fn show(&self, path: &str) -> String {
        match resolve(&self.tree, path).unwrap() {
            Node::File(place, file) => file.show(&self.tree, place).unwrap(),
            Node::Dir(_) => panic!("{path} is a directory"),
        }
    }

    pub fn store(&self, path: &str, caller: Caller, text: &str) -> Result<()> {
        match resolve(&self.tree, path).unwrap() {
            Node::File(place, file) => file.store(&self.tree, place, caller, text.as_bytes()),
            Node::Dir(_) => panic!("{path} is a directory"),
        }
    }

    /// Has the process submit kernels.
    pub fn submit(&self, id: ProcessId, device: u32, kernels: u64) {
        let usage = self.usage(id);
        usage.nr_threads.store(1, Relaxed);
        usage.threads[0].device.store(device, Relaxed);
        usage.threads[0]
            .exited(Submission::Kernel)
            .fetch_add(kernels, Relaxed);
    }

    /// Has the process write `word` wherever it can.
    pub fn fill_usage(&self, id: ProcessId, word: u64) {
        let usage = self.usage(id);
        usage.nr_threads.store(u32::MAX, Relaxed);
        let fill = |words: &[&AtomicU64]| words.iter().for_each(|at| at.store(word, Relaxed));
        fill(&[
            &usage.memory_elsewhere,
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
            fill(&[&device.swappable, &device.swap_current, &device.pressure_wanted]);
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

/// A process's control block, held.
pub struct Held(Arc<dyn Blocks>);

impl std::ops::Deref for Held {
    type Target = Control;

    fn deref(&self) -> &Control {
        self.0.control()
    }
}

/// A process's usage block, held.
pub struct HeldUsage(Arc<dyn Blocks>);

impl std::ops::Deref for HeldUsage {
    type Target = Usage;

    fn deref(&self) -> &Usage {
        self.0.usage()
    }
}
