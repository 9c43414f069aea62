//! The state file: data shared by the processes of a machine. It contains no lock and no pointer; file locks
//! show which processes are alive (see `lock`), so a process may die at any point.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::config::Config;
use crate::held::Held;
use crate::mig::{MAX_DEVICES, Mig};

/// Maximum number of concurrent processes.
pub(crate) const MAX_PROCESSES: usize = 4096;

/// Maximum number of concurrent exports.
pub(crate) const MAX_EXPORTS: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"simgpu\0\x04");

/// Layout of the whole file.
#[repr(C)]
pub(crate) struct Layout {
    /// Stored last when the file is created.
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
    /// The last serial given to an export; see `export`.
    pub(crate) next_export: AtomicU64,
    /// MIG configuration: the words of a [`Mig`].
    mig: [AtomicU64; 2 * MAX_DEVICES + 1],
    reserved: [AtomicU64; 21],
    pub(crate) device: [SharedDevice; MAX_DEVICES],
    pub(crate) export: [SharedExport; MAX_EXPORTS],
    pub(crate) slot: [Slot; MAX_PROCESSES],
}

/// State of one device.
#[repr(C, align(64))]
pub(crate) struct SharedDevice {
    /// The current turn: its owner and end; see `turn`.
    pub(crate) turn: AtomicU64,
    /// Nanoseconds of work done by processes that have left.
    pub(crate) busy_of_gone_ns: AtomicU64,
    /// Start of accounting of process lifetimes, in microseconds since 1970; 0: disabled.
    pub(crate) kept_since_usec: AtomicU64,
    /// Lifetimes that ended before this time are not reported.
    pub(crate) forgotten_usec: AtomicU64,
    /// Number of charges of memory; changed before each of them.
    pub(crate) nr_charges: AtomicU64,
    reserved: [AtomicU64; 3],
    /// One bit per slot that waits for the device.
    pub(crate) wanted: [AtomicU64; MAX_PROCESSES / 64],
}

/// An export: an object shared between processes.
#[repr(C)]
pub(crate) struct SharedExport {
    /// Serial number; 0: free.
    pub(crate) serial: AtomicU64,
    /// Type of the export: see `export::Tag`.
    pub(crate) tag: AtomicU64,
    /// Device of the memory, and its size in bytes.
    pub(crate) device: AtomicU64,
    pub(crate) size: AtomicU64,
    /// Slot of the process that is charged, plus 1; 0: none.
    pub(crate) owner: AtomicU64,
}

/// One process. Written only by its owner, the holder of the slot's file lock.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// The owner's pid in its own pid namespace.
    pub(crate) pid: AtomicU32,
    /// Uid of the owner plus 1, if it serves requests for checkpoints.
    pub(crate) checkpoints: AtomicU32,
    /// Bytes of host memory by kind.
    pub(crate) host: [AtomicU64; Held::ON_HOST],
    more: [AtomicU64; 7 - Held::ON_HOST],
    pub(crate) device: [SlotDevice; MAX_DEVICES],
}

/// Usage of one device by one process.
#[repr(C, align(64))]
pub(crate) struct SlotDevice {
    /// Bytes of device memory.
    pub(crate) used: AtomicU64,
    /// Nanoseconds of work done.
    pub(crate) busy_ns: AtomicU64,
    /// Kernels started.
    pub(crate) nr_launches: AtomicU64,
    /// Existing contexts.
    pub(crate) contexts: AtomicU32,
    /// Futex on which the owner's device thread sleeps; incremented to wake it.
    pub(crate) bell: AtomicU32,
    /// Peak of `used`.
    pub(crate) peak: AtomicU64,
    /// Nanoseconds of work done by copy engines.
    pub(crate) copy_ns: AtomicU64,
    /// Times of the first and the last use of the device, in microseconds since 1970.
    pub(crate) began_usec: AtomicU64,
    pub(crate) seen_usec: AtomicU64,
    /// `used` divided by kind.
    pub(crate) held: [AtomicU64; Held::ON_DEVICE],
    /// Bytes of all charges since the process began.
    pub(crate) taken: AtomicU64,
}

impl Layout {
    /// Returns the configuration, if one has been published.
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

    /// Returns the current MIG configuration.
    pub(crate) fn mig(&self) -> Mig {
        Mig::of_words(self.mig.each_ref().map(|word| word.load(Acquire)))
    }

    pub(crate) fn divide(&self, mig: &Mig) {
        for (word, value) in self.mig.iter().zip(mig.words()) {
            word.store(value, Release);
        }
    }

    /// Initializes a machine. The file must not be in use.
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

    /// Returns every slot that was ever claimed.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        let claimed = usize::try_from(self.claimed.load(Acquire)).unwrap_or(0);
        self.slot.iter().take(claimed)
    }
}

impl Slot {
    /// Resets the slot to that of a process that holds nothing.
    pub(crate) fn clear(&self) {
        self.pid.store(0, Relaxed);
        self.checkpoints.store(0, Relaxed);
        for device in &self.device {
            device.used.store(0, Relaxed);
            device.busy_ns.store(0, Relaxed);
            device.nr_launches.store(0, Relaxed);
            device.contexts.store(0, Relaxed);
            let rest = [
                &device.peak,
                &device.taken,
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
