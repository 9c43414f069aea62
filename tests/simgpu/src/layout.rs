//! The state file: what the processes that share a machine have in common. It holds no lock and no
//! pointer; who is alive is told by file locks (see `lock`), so a process may die at any point.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::config::{Config, MAX_DEVICES};
use crate::held::Held;
use crate::mig::Mig;

/// Most processes that can use the machine at once.
pub const MAX_PROCESSES: usize = 4096;

/// Most things that processes can share at once.
pub const MAX_EXPORTS: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"simgpu\0\x03");

/// The whole of the file.
#[repr(C)]
pub(crate) struct Layout {
    /// Stored last when the file is made.
    magic: AtomicU64,
    devices: AtomicU64,
    memory: AtomicU64,
    context_memory: AtomicU64,
    timeslice_ns: AtomicU64,
    null: AtomicU64,
    /// One past the highest slot ever claimed.
    pub(crate) claimed: AtomicU64,
    host_bandwidth: AtomicU64,
    device_bandwidth: AtomicU64,
    /// The last number given to a thing that processes share; see `export`.
    pub(crate) next_export: AtomicU64,
    /// How devices are divided: the words of a [`Mig`].
    mig: [AtomicU64; 2 * MAX_DEVICES + 1],
    reserved: [AtomicU64; 21],
    pub(crate) device: [SharedDevice; MAX_DEVICES],
    pub(crate) export: [SharedExport; MAX_EXPORTS],
    pub(crate) slot: [Slot; MAX_PROCESSES],
}

/// One device.
#[repr(C, align(64))]
pub(crate) struct SharedDevice {
    /// Whose turn it is and until when; see `turn`.
    pub(crate) turn: AtomicU64,
    /// Nanoseconds of work done by processes that have left.
    pub(crate) busy_of_gone_ns: AtomicU64,
    /// Since when the lives of processes are kept, in microseconds since 1970; 0: they are not.
    pub(crate) kept_since_usec: AtomicU64,
    /// The lives that ended before this time are forgotten.
    pub(crate) forgotten_usec: AtomicU64,
    reserved: [AtomicU64; 4],
    /// One bit for each slot that waits for the device.
    pub(crate) wanted: [AtomicU64; MAX_PROCESSES / 64],
}

/// A thing that processes share.
#[repr(C)]
pub(crate) struct SharedExport {
    /// Its number; 0: none.
    pub(crate) serial: AtomicU64,
    /// What it is: see `export::Tag`.
    pub(crate) tag: AtomicU64,
    /// The device that it is memory of, and how much.
    pub(crate) device: AtomicU64,
    pub(crate) size: AtomicU64,
    /// One more than the slot of the process that it is charged to; 0: none.
    pub(crate) owner: AtomicU64,
}

/// One process. Only its owner, the holder of the slot's file lock, writes it.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// The owner's pid as the owner sees it.
    pub(crate) pid: AtomicU32,
    reserved: [AtomicU32; 1],
    /// Bytes of host memory by kind.
    pub(crate) host: [AtomicU64; Held::ON_HOST],
    more: [AtomicU64; 7 - Held::ON_HOST],
    pub(crate) device: [SlotDevice; MAX_DEVICES],
}

/// What one process has on one device.
#[repr(C, align(64))]
pub(crate) struct SlotDevice {
    /// Bytes of device memory.
    pub(crate) used: AtomicU64,
    /// Nanoseconds of work done.
    pub(crate) busy_ns: AtomicU64,
    /// Kernels begun.
    pub(crate) nr_launches: AtomicU64,
    /// Contexts that exist.
    pub(crate) contexts: AtomicU32,
    /// What the owner's device thread sleeps on: a futex, bumped to wake it.
    pub(crate) bell: AtomicU32,
    /// The most bytes of device memory there ever were.
    pub(crate) peak: AtomicU64,
    /// Nanoseconds of work done by copy engines.
    pub(crate) copy_ns: AtomicU64,
    /// When it first had anything here and when it last did anything, in microseconds since 1970.
    pub(crate) began_usec: AtomicU64,
    pub(crate) seen_usec: AtomicU64,
    /// The bytes of device memory by kind.
    pub(crate) held: [AtomicU64; Held::ON_DEVICE],
    reserved: [AtomicU64; 8 - Held::ON_DEVICE],
}

impl Layout {
    /// The configuration, once one has been published.
    pub(crate) fn config(&self) -> Option<Config> {
        if self.magic.load(Acquire) != MAGIC {
            return None;
        }
        Some(Config {
            devices: usize::try_from(self.devices.load(Relaxed))
                .unwrap_or(1)
                .clamp(1, MAX_DEVICES),
            memory: self.memory.load(Relaxed),
            context_memory: self.context_memory.load(Relaxed),
            timeslice_ns: self.timeslice_ns.load(Relaxed).max(1),
            host_bandwidth: self.host_bandwidth.load(Relaxed),
            device_bandwidth: self.device_bandwidth.load(Relaxed),
            mig: self.mig(),
            null: self.null.load(Relaxed) != 0,
        })
    }

    /// How devices are divided now.
    pub(crate) fn mig(&self) -> Mig {
        Mig::of_words(self.mig.each_ref().map(|word| word.load(Acquire)))
    }

    pub(crate) fn divide(&self, mig: &Mig) {
        for (word, value) in self.mig.iter().zip(mig.words()) {
            word.store(value, Release);
        }
    }

    /// Makes a fresh machine. Only for a file that nobody uses.
    pub(crate) fn publish(&self, config: &Config) {
        self.magic.store(0, Relaxed);
        for device in &self.device {
            device.turn.store(0, Relaxed);
            device.busy_of_gone_ns.store(0, Relaxed);
            device.kept_since_usec.store(0, Relaxed);
            device.forgotten_usec.store(0, Relaxed);
            device.wanted.iter().for_each(|word| word.store(0, Relaxed));
        }
        self.slots().for_each(Slot::clear);
        for export in &self.export {
            export.serial.store(0, Relaxed);
            export.owner.store(0, Relaxed);
        }
        self.claimed.store(0, Relaxed);
        self.devices.store(config.devices as u64, Relaxed);
        self.memory.store(config.memory, Relaxed);
        self.context_memory.store(config.context_memory, Relaxed);
        self.timeslice_ns.store(config.timeslice_ns, Relaxed);
        self.host_bandwidth.store(config.host_bandwidth, Relaxed);
        self.device_bandwidth.store(config.device_bandwidth, Relaxed);
        self.divide(&config.mig);
        self.null.store(u64::from(config.null), Relaxed);
        self.magic.store(MAGIC, Release);
    }

    /// Every slot that was ever claimed.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        let claimed = usize::try_from(self.claimed.load(Acquire)).unwrap_or(0);
        self.slot.iter().take(claimed)
    }
}

impl Slot {
    /// Makes the slot that of a process that has nothing.
    pub(crate) fn clear(&self) {
        self.pid.store(0, Relaxed);
        for device in &self.device {
            device.used.store(0, Relaxed);
            device.busy_ns.store(0, Relaxed);
            device.nr_launches.store(0, Relaxed);
            device.contexts.store(0, Relaxed);
            let rest = [
                &device.peak,
                &device.copy_ns,
                &device.began_usec,
                &device.seen_usec,
            ];
            for word in rest.into_iter().chain(&device.held) {
                word.store(0, Relaxed);
            }
        }
        self.host.iter().for_each(|word| word.store(0, Relaxed));
    }
}

const _: () = {
    assert!(size_of::<SharedDevice>() == 64 + MAX_PROCESSES / 8);
    assert!(size_of::<SlotDevice>() == 128);
    assert!(size_of::<Slot>() == 64 + 128 * MAX_DEVICES);
    assert!(std::mem::offset_of!(Layout, device) == 512);
};
