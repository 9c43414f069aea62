//! Exports: memory and other objects shared between processes, each with a file in `exports/`, named by a
//! serial number that is never reused.
//!
//! A process that holds an export has its file open with a shared flock(2), which ends with the last
//! descriptor however the process ends, and is passed along with a descriptor. An exclusive lock succeeds
//! only if no process holds the export any more. Memory is charged to the process that created it until that
//! process releases it; afterwards to no process, but it reduces the device's free memory until it is no
//! longer held.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::held::Held;
use crate::layout::SharedExport;
use crate::lock::open_shared;
use crate::member::Member;
use crate::state::Machine;

/// Type of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Memory whose bytes are in the process that created it.
    Linear = 1,
    /// Memory whose bytes are in the file.
    Memory,
    /// A pool.
    Pool,
    /// An event, whose state is in the file.
    Event,
}

/// An export that this process holds.
#[derive(Debug)]
pub struct Export {
    machine: &'static Machine,
    serial: u64,
    file: File,
}

impl Machine {
    fn export_path(&self, serial: u64) -> PathBuf {
        self.directory().join("exports").join(serial.to_string())
    }

    fn exports(&self) -> impl Iterator<Item = &SharedExport> {
        self.layout().export.iter()
    }

    fn export_of(&self, serial: u64) -> Option<&SharedExport> {
        let mut exports = self.exports();
        exports.find(|export| export.serial.load(Acquire) == serial)
    }

    /// Returns the bytes of a device that belong to no living process but are still held.
    pub(crate) fn orphaned(&self, device: usize) -> u64 {
        let lost = self.exports().filter(|export| {
            export.serial.load(Acquire) != 0
                && export.device.load(Relaxed) == device as u64
                && export.size.load(Relaxed) > 0
                && !self.is_owned(export)
        });
        lost.filter(|export| self.is_held(export))
            .map(|export| export.size.load(Relaxed))
            .sum()
    }

    /// Returns an upper bound of the orphaned bytes, without checking which processes are alive.
    pub(crate) fn orphaned_at_most(&self, device: usize) -> u64 {
        let lost = self.exports().filter(|export| {
            export.serial.load(Acquire) != 0
                && export.device.load(Relaxed) == device as u64
                && export.owner.load(Relaxed) == 0
        });
        lost.map(|export| export.size.load(Relaxed)).sum()
    }

    fn is_owned(&self, export: &SharedExport) -> bool {
        let owner = usize::try_from(export.owner.load(Acquire)).unwrap_or(0);
        owner
            .checked_sub(1)
            .is_some_and(|slot| self.locks.slot_owner(slot).is_some())
    }

    /// Returns whether any process holds the export; if none does, removes it.
    fn is_held(&self, export: &SharedExport) -> bool {
        let serial = export.serial.load(Acquire);
        let Ok(file) = File::open(self.export_path(serial)) else {
            return false;
        };
        if !lock(&file, libc::LOCK_EX | libc::LOCK_NB) {
            return true;
        }
        self.forget(export, serial);
        false
    }

    /// Removes an export. Only while the caller holds its exclusive lock.
    fn forget(&self, export: &SharedExport, serial: u64) {
        let _ = fs::remove_file(self.export_path(serial));
        let _ = export.serial.compare_exchange(serial, 0, AcqRel, Relaxed);
    }

    /// Opens an export with this tag.
    ///
    /// # Errors
    /// `NotFound` if no process holds it any more.
    pub fn open_export(&'static self, serial: u64, tag: Tag) -> io::Result<Export> {
        let file = open_existing(&self.export_path(serial))?;
        let is_it = |export: &SharedExport| serial != 0 && export.tag.load(Relaxed) == tag as u64;
        if !lock(&file, libc::LOCK_SH) || !self.export_of(serial).is_some_and(is_it) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Export {
            machine: self,
            serial,
            file,
        })
    }

    /// Opens the export of a descriptor made by `Export::descriptor` in any process.
    ///
    /// # Errors
    /// `NotFound` if the descriptor is of no export of this machine.
    pub fn open_descriptor(&'static self, descriptor: i32, tag: Tag) -> io::Result<Export> {
        let not_found = || io::Error::from(io::ErrorKind::NotFound);
        let path = fs::read_link(format!("/proc/self/fd/{descriptor}")).map_err(|_| not_found())?;
        let name = path.file_name().and_then(|name| name.to_str());
        let serial = name.and_then(|name| name.parse().ok()).ok_or_else(not_found)?;
        let theirs = fs::metadata(format!("/proc/self/fd/{descriptor}"))?;
        let ours = fs::metadata(self.export_path(serial)).map_err(|_| not_found())?;
        if (theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino()) {
            return Err(not_found());
        }
        self.open_export(serial, tag)
    }
}

impl Member {
    /// Creates an export: device memory that is charged to this process, or an object that belongs to no
    /// device. The file is zeroed.
    pub fn export(&self, tag: Tag, device: usize, size: u64) -> io::Result<Export> {
        let machine = self.machine();
        let directory = machine.directory().join("exports");
        if !directory.is_dir() {
            machine.make_directory(&directory)?;
        }
        let serial = machine.layout().next_export.fetch_add(1, Relaxed) + 1;
        let file = open_shared(&machine.export_path(serial))?;
        // An earlier machine may have left a file of this name.
        file.set_len(0)?;
        file.set_len(if tag == Tag::Linear { 0 } else { size })?;
        let export = Export {
            machine,
            serial,
            file,
        };
        if !lock(&export.file, libc::LOCK_SH) {
            return Err(io::Error::last_os_error());
        }
        let claim = |place: &&SharedExport| {
            let free = place.serial.compare_exchange(0, CLAIMED, AcqRel, Relaxed);
            free.is_ok()
        };
        let find = || machine.exports().find(claim);
        let place = find().or_else(|| {
            let used = machine.exports().filter(|place| place.is_published());
            used.for_each(|place| {
                machine.is_held(place);
            });
            find()
        });
        let Some(place) = place else {
            let _ = fs::remove_file(machine.export_path(serial));
            return Err(io::Error::other("too many things are shared"));
        };
        place.device.store(self.on_machine(device) as u64, Relaxed);
        place.size.store(size, Relaxed);
        place.tag.store(tag as u64, Relaxed);
        place.owner.store(self.slot() as u64 + 1, Relaxed);
        place.serial.store(serial, Release);
        Ok(export)
    }

    /// Drops the charge for exported memory that other processes may still hold.
    pub fn uncharge_exported(&self, export: &Export, kind: Held, bytes: u64) {
        let device = export.device();
        let _guard = self.machine().locks.device(device);
        if let Some(place) = self.machine().export_of(export.serial) {
            place.owner.store(0, Release);
        }
        self.uncharge(self.number_of(device), kind, bytes);
    }
}

/// Serial of an entry that is being filled in.
const CLAIMED: u64 = u64::MAX;

impl SharedExport {
    fn is_published(&self) -> bool {
        !matches!(self.serial.load(Acquire), 0 | CLAIMED)
    }
}

impl Export {
    /// Returns the serial, by which other processes open the export.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the device of the machine that has the memory.
    pub fn device(&self) -> usize {
        let device = self.machine.export_of(self.serial);
        device.map_or(0, |export| {
            usize::try_from(export.device.load(Relaxed)).unwrap_or(0)
        })
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.machine
            .export_of(self.serial)
            .map_or(0, |export| export.size.load(Relaxed))
    }

    /// Returns the pid, in the caller's pid namespace, of the living process that is charged.
    pub fn owner(&self) -> Option<u32> {
        let owner = self.machine.export_of(self.serial)?.owner.load(Acquire);
        let slot = usize::try_from(owner).ok()?.checked_sub(1)?;
        self.machine.locks.slot_owner(slot)
    }

    /// Releases the export. Returns whether no other process holds it.
    pub fn let_go(self) -> bool {
        self.forget_if_alone()
    }

    fn forget_if_alone(&self) -> bool {
        // If the conversion fails, the shared lock is lost too, as intended.
        let is_alone = lock(&self.file, libc::LOCK_EX | libc::LOCK_NB);
        if let Some(place) = self.machine.export_of(self.serial).filter(|_| is_alone) {
            self.machine.forget(place, self.serial);
        }
        is_alone
    }

    /// Duplicates the descriptor of the file with the bytes.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Opens a descriptor that holds the export while it or a copy of it is open in any process.
    pub fn descriptor(&self) -> io::Result<File> {
        let file = open_existing(&self.machine.export_path(self.serial))?;
        lock(&file, libc::LOCK_SH);
        Ok(file)
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.forget_if_alone();
    }
}

fn open_existing(path: &std::path::Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).write(true).open(path)
}

/// Changes the flock(2) of a file. Returns whether that succeeded.
fn lock(file: &File, operation: i32) -> bool {
    // SAFETY: the descriptor is open.
    while unsafe { libc::flock(file.as_raw_fd(), operation) } != 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
    true
}

/// Opens a file through another process's descriptor.
///
/// # Errors
/// The system's errors, for example if the process is gone or may not be accessed.
pub fn open_of(pid: u32, descriptor: i32) -> io::Result<File> {
    open_existing(&PathBuf::from(format!("/proc/{pid}/fd/{descriptor}")))
}
