//! The process's usage and control block: their files and mappings.
//!
//! Both keep their addresses for the life of the process, also when the daemon changes, so that pointers to
//! gates and counters stay valid. This module uses no socket: `client` receives the daemon's control block.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use gcgroup_abi::map::{self, CONTROL_SIZE, USAGE_SIZE};
use gcgroup_abi::{
    ContextKind, Control, DEFAULT_CONTEXT, DEFAULT_PRIORITY, Gate, NO_LIMIT, Usage, lower_grant,
};
use parking_lot::Mutex;

use crate::sys::descriptor::{self, Descriptor};
use crate::sys::mapping::Mapping;

/// Why a control block is not accepted.
#[derive(Debug)]
pub(crate) enum NotOurs {
    /// Wrong size, seals or file type.
    Kind,
    /// This other version.
    Version(u32),
    /// The system refuses to map it.
    Forbidden(io::Error),
}

#[derive(Debug)]
pub(crate) struct Blocks {
    usage: Mapping,
    /// `None` where there was no descriptor for it, or memory files are refused. Until there is one, no
    /// daemon can read the usage block, but the limits still apply.
    usage_file: Mutex<Option<Descriptor>>,
    control: Mapping,
    /// Whether a child does not have the usage block (`MADV_DONTFORK`): otherwise the fork handler removes it
    /// there.
    is_apart: AtomicBool,
}

impl Blocks {
    /// Makes new blocks for a process without a daemon: all gates open, `memory_limit` and `memory_swap_max`
    /// for the process (bytes), no other limit.
    pub(crate) fn new(memory_limit: u64, memory_swap_max: u64) -> io::Result<Self> {
        let usage = Mapping::place(USAGE_SIZE)?;
        let usage_file = match shared_usage() {
            Ok((shared, file)) => {
                put(shared, &file, &usage)?;
                Descriptor::new(file).ok()
            }
            Err(_) => {
                // Shared, so that a file can replace it later: see `refile`. Otherwise private, since the
                // place has memory already.
                let shared = Mapping::shared_anonymous(USAGE_SIZE)?;
                let _ = shared.replace(&usage);
                None
            }
        };
        let is_apart = usage.keep_from_children().is_ok();
        let control = Mapping::anonymous(CONTROL_SIZE)?;
        let blocks = Self {
            usage,
            usage_file: Mutex::new(usage_file),
            control,
            is_apart: AtomicBool::new(is_apart),
        };
        let fresh = blocks.control();
        fresh.memory_limit.store(memory_limit, Relaxed);
        fresh.memory_swap_max.store(memory_swap_max, Relaxed);
        fresh.grace_msec.store(u32::MAX, Relaxed);
        for device in &fresh.devices {
            device.memory_limit.store(NO_LIMIT, Relaxed);
            device.memory_swap_max.store(NO_LIMIT, Relaxed);
            device.priority.store(DEFAULT_PRIORITY, Relaxed);
            device.group_limit.store(NO_LIMIT, Relaxed);
            device.group_room.store(NO_LIMIT, Relaxed);
            for kind in [ContextKind::Primary, ContextKind::Created] {
                device.context_estimate[kind as usize].store(DEFAULT_CONTEXT, Relaxed);
            }
        }
        for device in &blocks.usage().devices {
            device.memory_granted.store(NO_LIMIT, Relaxed);
            device.swap_granted.store(NO_LIMIT, Relaxed);
        }
        fresh.publish();
        blocks.control.protect();
        blocks.usage().publish();
        Ok(blocks)
    }

    pub(crate) fn usage(&self) -> &Usage {
        // SAFETY: page-aligned, of this size, mapped as long as `self` is; seals keep the file from
        // shrinking.
        unsafe { map::usage(self.usage.address()) }
    }

    /// Returns the control block. It is mapped read-only: a store faults.
    pub(crate) fn control(&self) -> &Control {
        // SAFETY: page-aligned, of this size, mapped as long as `self` is; what replaces it has the same
        // size.
        unsafe { map::control(self.control.address()) }
    }

    /// Passes the usage block's file to `body`. Makes a new file where there is none or the program closed
    /// it.
    ///
    /// # Errors
    /// There is no file and none can be made.
    pub(crate) fn with_usage_file<T>(&self, body: impl FnOnce(&Descriptor) -> T) -> io::Result<T> {
        let mut file = self.usage_file.lock();
        if file.as_ref().and_then(Descriptor::get).is_none() {
            // The program closed a descriptor that it did not know. The block is still mapped.
            *file = Some(Descriptor::new(self.refile()?)?);
        }
        let file = file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(body(file))
    }

    /// Replaces the file of the usage block while other threads count in it.
    ///
    /// Every word that changes is a sum or behaves like one, so additions between the copy and the exchange
    /// are added afterwards. They are read through a second mapping of the old file (mremap(2) with old size
    /// 0).
    fn refile(&self) -> io::Result<OwnedFd> {
        let (new, file) = shared_usage()?;
        let old = self.usage.again()?;
        let copied: Vec<u64> = words(&old).iter().map(|word| word.load(Relaxed)).collect();
        for (to, value) in words(&new).iter().zip(&copied) {
            to.store(*value, Relaxed);
        }
        put(new, &file, &self.usage)?;
        self.is_apart
            .store(self.usage.keep_from_children().is_ok(), Relaxed);
        for ((to, late), value) in words(&self.usage).iter().zip(words(&old)).zip(&copied) {
            match late.load(Relaxed).wrapping_sub(*value) {
                0 => {}
                missing => drop(to.fetch_add(missing, Relaxed)),
            }
        }
        // Grants that the daemon now withdraws, it withdraws in the old file: so no unused grant is left in
        // the new one.
        for device in &self.usage().devices {
            for (current, granted) in [
                (&device.memory_current, &device.memory_granted),
                (&device.swap_charged, &device.swap_granted),
            ] {
                match granted.load(Relaxed) {
                    NO_LIMIT => {}
                    old => drop(lower_grant(current, granted, old, 0)),
                }
            }
        }
        Ok(file)
    }

    /// Closes the descriptor in a forked child, since the block belongs to the parent, and removes the block
    /// if the child has it. Async-signal-safe.
    pub(crate) fn leave_in_child(&self) {
        descriptor::close_in_child(&self.usage_file);
        if !self.is_apart.load(Relaxed) {
            self.usage.clear();
        }
    }

    /// Maps the daemon's control block in place of the current one.
    pub(crate) fn adopt(&self, file: &impl AsRawFd) -> Result<(), NotOurs> {
        if !descriptor::has_fixed_size(file, CONTROL_SIZE) {
            return Err(NotOurs::Kind);
        }
        let new = Mapping::shared(file, CONTROL_SIZE, false).map_err(NotOurs::Forbidden)?;
        // SAFETY: page-aligned, of this size, and mapped until it is moved below.
        let control = unsafe { map::control(new.address()) };
        if !control.is_understood() {
            return Err(NotOurs::Version(control.version()));
        }
        new.replace(&self.control)
            .or_else(|_| self.control.cover(file, false))
            .map_err(NotOurs::Forbidden)
    }

    /// Replaces the control block by a private copy with open gates. With `keep_frozen` frozen gates stay
    /// closed. Used when no daemon is left to open them.
    ///
    /// Threads that wait on the replaced block notice at their next check, within
    /// [`RECHECK`](super::RECHECK).
    pub(crate) fn open_gates(&self, keep_frozen: bool) -> io::Result<()> {
        let copy = Mapping::anonymous(CONTROL_SIZE)?;
        self.copy_opened(&copy, keep_frozen);
        copy.protect();
        copy.replace(&self.control).or_else(|_| {
            let file = descriptor::sealed_file(c"gcgroup-control", CONTROL_SIZE)?;
            self.copy_opened(&Mapping::shared(&file, CONTROL_SIZE, true)?, keep_frozen);
            self.control.cover(&file, false)
        })
    }

    fn copy_opened(&self, copy: &Mapping, keep_frozen: bool) {
        for (to, from) in words(copy).iter().zip(words(&self.control)) {
            to.store(from.load(Relaxed), Relaxed);
        }
        // SAFETY: page-aligned, of this size, and mapped as long as `copy` is borrowed.
        let control = unsafe { map::control(copy.address()) };
        for device in &control.devices {
            let is_frozen = Gate::from_word(device.gate.load(Relaxed)) == Gate::Frozen;
            if !(keep_frozen && is_frozen) {
                device.gate.store(Gate::Run as u32, Relaxed);
            }
            // Without a daemon there are no turns.
            device.resident_limit.store(0, Relaxed);
        }
    }
}

/// Returns the 64-bit words of a block.
fn words(block: &Mapping) -> &[AtomicU64] {
    // SAFETY: a block's mapping, page-aligned and that large; words can have any value.
    unsafe { std::slice::from_raw_parts(block.address().cast::<AtomicU64>(), block.size() / 8) }
}

fn shared_usage() -> io::Result<(Mapping, OwnedFd)> {
    let file = descriptor::sealed_file(c"gcgroup-usage", USAGE_SIZE)?;
    let mapping = Mapping::shared(&file, USAGE_SIZE, true)?;
    // Where this is refused, `Blocks::leave_in_child` does it.
    let _ = mapping.keep_from_children();
    Ok((mapping, file))
}

/// Moves a mapping of `file` to the address of `place`.
fn put(mapping: Mapping, file: &OwnedFd, place: &Mapping) -> io::Result<()> {
    mapping.replace(place).or_else(|_| place.cover(file, true))
}

/// Returns blocks for a test.
#[cfg(test)]
pub(crate) fn of_test(memory_limit: u64) -> &'static Blocks {
    Box::leak(Box::new(Blocks::new(memory_limit, 0).unwrap()))
}

/// Returns a control block as a daemon makes it for a process in no group, in the daemon's writable view, and
/// its file.
#[cfg(test)]
pub(crate) fn of_daemon() -> (&'static Control, OwnedFd) {
    let file = descriptor::sealed_file(c"gcgroup-control", CONTROL_SIZE).unwrap();
    let mapping: &'static Mapping = Box::leak(Box::new(Mapping::shared(&file, CONTROL_SIZE, true).unwrap()));
    // SAFETY: page-aligned, of this size, never unmapped, writable.
    let control = unsafe { map::control(mapping.address()) };
    for device in &control.devices {
        device.group_limit.store(NO_LIMIT, Relaxed);
        device.group_room.store(NO_LIMIT, Relaxed);
    }
    (control, file)
}

/// Returns a control block as [`of_daemon`] does, published with `nr_devices` devices and without limits.
#[cfg(test)]
pub(crate) fn unlimited(nr_devices: u32) -> (&'static Control, OwnedFd) {
    let (control, file) = of_daemon();
    for device in &control.devices {
        device.memory_limit.store(NO_LIMIT, Relaxed);
    }
    control.memory_limit.store(NO_LIMIT, Relaxed);
    control.nr_devices.store(nr_devices, Relaxed);
    control.publish();
    (control, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_blocks_have_open_gates_and_given_limit() {
        let blocks = of_test(4096);
        assert!(blocks.control().is_understood() && blocks.usage().is_understood());
        assert_eq!(blocks.control().memory_limit.load(Relaxed), 4096);
        assert!(
            blocks
                .control()
                .devices
                .iter()
                .all(|d| d.memory_limit.load(Relaxed) == NO_LIMIT)
        );
        assert!(
            blocks
                .control()
                .devices
                .iter()
                .all(|d| d.gate.load(Relaxed) == Gate::Run as u32)
        );
        assert!(blocks.with_usage_file(|file| file.get() >= Some(3)).unwrap());
    }

    #[test]
    fn closed_usage_file_is_replaced_without_lost_counts() {
        let blocks = of_test(NO_LIMIT);
        let count = &blocks.usage().devices[2].nr_alloc;
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                for _ in 0..200_000 {
                    count.fetch_add(1, Relaxed);
                }
            });
            while !counting.is_finished() {
                blocks.usage_file.lock().as_ref().unwrap().close();
                blocks.with_usage_file(|_| ()).unwrap();
            }
        });
        assert_eq!(count.load(Relaxed), 200_000);
        let seen = blocks.with_usage_file(|file| {
            let mapping = Mapping::shared(&file.get().unwrap(), USAGE_SIZE, false).unwrap();
            // SAFETY: page-aligned, of this size, and mapped meanwhile.
            unsafe { map::usage(mapping.address()) }.devices[2]
                .nr_alloc
                .load(Relaxed)
        });
        assert_eq!(
            seen.unwrap(),
            200_000,
            "the daemon is sent the file that is counted in"
        );
    }

    #[test]
    fn refile_drops_unused_grants() {
        let blocks = of_test(NO_LIMIT);
        let device = &blocks.usage().devices[1];
        device.memory_current.store(30, Relaxed);
        device.memory_granted.store(100, Relaxed);
        let refile = || {
            blocks.usage_file.lock().as_ref().unwrap().close();
            blocks.with_usage_file(|_| ()).unwrap();
        };
        refile();
        assert_eq!(device.memory_granted.load(Relaxed), 30);
        assert_eq!(blocks.usage().devices[0].memory_granted.load(Relaxed), NO_LIMIT);
    }

    #[test]
    fn adopted_block_shows_later_stores() {
        let blocks = of_test(4096);
        let seen = blocks.control();
        let (daemon, file) = of_daemon();
        assert!(
            matches!(blocks.adopt(&file), Err(NotOurs::Version(0))),
            "not published yet"
        );
        assert_eq!(seen.memory_limit.load(Relaxed), 4096);
        daemon.publish();
        blocks.adopt(&file).unwrap();
        daemon.memory_limit.store(8192, Relaxed);
        assert_eq!(seen.memory_limit.load(Relaxed), 8192);
    }

    #[test]
    fn unsealed_control_file_is_refused() {
        let blocks = of_test(NO_LIMIT);
        let file = descriptor::sealed_file(c"short", CONTROL_SIZE / 2).unwrap();
        assert!(matches!(blocks.adopt(&file), Err(NotOurs::Kind)));
    }

    #[test]
    fn open_gates_keeps_limits() {
        let blocks = of_test(NO_LIMIT);
        let (daemon, file) = of_daemon();
        daemon.memory_limit.store(8192, Relaxed);
        daemon.devices[3].gate.store(Gate::Frozen as u32, Relaxed);
        daemon.publish();
        blocks.adopt(&file).unwrap();
        let seen = blocks.control();
        assert_eq!(seen.devices[3].gate.load(Relaxed), Gate::Frozen as u32);
        blocks.open_gates(true).unwrap();
        assert_eq!(seen.devices[3].gate.load(Relaxed), Gate::Frozen as u32);
        blocks.open_gates(false).unwrap();
        assert_eq!(seen.devices[3].gate.load(Relaxed), Gate::Run as u32);
        assert_eq!(seen.memory_limit.load(Relaxed), 8192);
        daemon.memory_limit.store(1, Relaxed);
        assert_eq!(
            seen.memory_limit.load(Relaxed),
            8192,
            "the lost daemon's block is not ours any more"
        );
    }
}
