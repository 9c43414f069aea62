//! The driver's state in this process, created by `cuInit`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Once, OnceLock};

use parking_lot::Mutex;
use simgpu::memory::Space;
use simgpu::{Device, Engine, Machine, Member};

use crate::abi::{CUdevice, CUerror};
use crate::error::{INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED, OUT_OF_MEMORY, UNKNOWN};
use crate::registry::Registry;
use crate::{
    array, conditional, context, event, graph, graph_memory, green, ipc, link, module, multicast, physical,
    pool, primary, resource, stream, user_object, visible,
};

/// The driver's state of a process.
pub(crate) struct Process {
    pub(crate) member: &'static Member,
    pub(crate) space: &'static Space,
    /// The visible devices, in the process's order.
    pub(crate) devices: Vec<OneDevice>,
    pub(crate) contexts: Registry<context::Context>,
    pub(crate) streams: Registry<stream::Stream>,
    pub(crate) events: Registry<event::Event>,
    pub(crate) modules: Registry<module::Module>,
    pub(crate) functions: Registry<module::Function>,
    pub(crate) libraries: Registry<module::Library>,
    pub(crate) kernels: Registry<module::Kernel>,
    pub(crate) links: Registry<Mutex<link::Link>>,
    pub(crate) pools: Registry<pool::Pool>,
    /// Pools by `CUmemLocationType`, location id and `CUmemAllocationType`.
    pub(crate) pools_of: Mutex<HashMap<(u32, i32, u32), pool::LocationPools>>,
    pub(crate) handles: Registry<physical::Handle>,
    pub(crate) multicasts: Registry<multicast::Multicast>,
    /// Reserved address ranges: start and length.
    pub(crate) reservations: Mutex<BTreeMap<u64, u64>>,
    pub(crate) ipc: Mutex<ipc::Ipc>,
    pub(crate) arrays: Registry<array::Array>,
    pub(crate) mipmaps: Registry<array::Mipmap>,
    pub(crate) graphs: Registry<graph::Graph>,
    pub(crate) nodes: Registry<graph::Node>,
    pub(crate) execs: Registry<graph::Exec>,
    pub(crate) conditions: Registry<conditional::Condition>,
    pub(crate) user_objects: Registry<user_object::Held>,
    pub(crate) resources: Registry<resource::Description>,
    pub(crate) greens: Registry<green::Green>,
}

/// A visible device.
pub(crate) struct OneDevice {
    /// Index on the machine when the process began, which numbers it in [`Member`].
    pub(crate) index: usize,
    pub(crate) engine: &'static Engine,
    pub(crate) primary: Mutex<primary::Primary>,
    pub(crate) graph_memory: Mutex<graph_memory::OfDevice>,
}

static PROCESS: OnceLock<Result<Process, CUerror>> = OnceLock::new();

/// Begins to serve requests for checkpoints.
static SERVED: Once = Once::new();

/// Whether this process is a forked child of one that called `cuInit`: its memory holds the parent's locks.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Returns the driver's state, if `cuInit` has created it in this process.
pub(crate) fn get() -> Result<&'static Process, CUerror> {
    if IS_FORKED.load(Relaxed) {
        return Err(NOT_INITIALIZED);
    }
    match PROCESS.get() {
        Some(Ok(process)) => Ok(process),
        _ => Err(NOT_INITIALIZED),
    }
}

/// Creates the driver's state, once; fails in a forked child of a process that has called this.
pub(crate) fn init() -> Result<(), CUerror> {
    if IS_FORKED.load(Relaxed) {
        return Err(NOT_INITIALIZED);
    }
    let process = PROCESS.get_or_init(|| {
        // SAFETY: the C library drops the handler with this library.
        unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
        Process::new()
    });
    let process = process.as_ref().map_err(|error| *error)?;
    SERVED.call_once(|| crate::checkpoint::serve(process));
    Ok(())
}

extern "C" fn note_fork() {
    IS_FORKED.store(true, Relaxed);
}

impl Process {
    fn new() -> Result<Process, CUerror> {
        let complain = |what: &str, error: std::io::Error| {
            eprintln!("simgpu: {what}: {error}");
            UNKNOWN
        };
        let machine = Machine::attached().map_err(|e| complain("no simulated machine", e))?;
        if machine.config().null {
            crate::call::set_null_mode();
        }
        let visible = visible::of(machine, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
        if visible.is_empty() {
            return Err(NO_DEVICE);
        }
        let member: &'static Member = Box::leak(Box::new(
            Member::join(machine).map_err(|e| complain("no place on the machine", e))?,
        ));
        let space: &'static Space = Box::leak(Box::new(Space::new().map_err(|_| OUT_OF_MEMORY)?));
        let device = |index| OneDevice {
            index,
            engine: Engine::new(member, index),
            primary: Mutex::default(),
            graph_memory: Mutex::default(),
        };
        Ok(Process {
            member,
            space,
            devices: visible.into_iter().map(device).collect(),
            contexts: Registry::new(0x51),
            streams: Registry::new(0x52),
            events: Registry::new(0x53),
            modules: Registry::new(0x54),
            functions: Registry::new(0x55),
            libraries: Registry::new(0x56),
            kernels: Registry::new(0x57),
            links: Registry::new(0x58),
            pools: Registry::new(0x59),
            pools_of: Mutex::default(),
            handles: Registry::new(0x5a),
            multicasts: Registry::new(0x62),
            reservations: Mutex::default(),
            ipc: Mutex::default(),
            arrays: Registry::new(0x5b),
            mipmaps: Registry::new(0x5c),
            graphs: Registry::new(0x5d),
            nodes: Registry::new(0x5e),
            execs: Registry::new(0x5f),
            conditions: Registry::new(0x61),
            user_objects: Registry::new(0x60),
            resources: Registry::new(0x63),
            greens: Registry::new(0x64),
        })
    }

    pub(crate) fn device(&self, device: CUdevice) -> Result<&OneDevice, CUerror> {
        usize::try_from(device)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(INVALID_DEVICE)
    }

    /// Returns the device on the machine.
    pub(crate) fn on_machine(&self, device: CUdevice) -> Result<Device<'static>, CUerror> {
        let index = self.member.on_machine(self.device(device)?.index);
        self.member.machine().device(index).ok_or(INVALID_DEVICE)
    }

    /// Returns the ordinal of a device, by its number in [`Member`].
    pub(crate) fn ordinal(&self, index: usize) -> Option<CUdevice> {
        let ordinal = self.devices.iter().position(|device| device.index == index)?;
        CUdevice::try_from(ordinal).ok()
    }

    /// Wakes every device's engine to check again what its streams wait for.
    pub(crate) fn nudge_engines(&self) {
        self.devices.iter().for_each(|device| device.engine.nudge());
    }
}
