//! The lock file: shows which processes are alive, and serializes changes.
//!
//! Its bytes are locked with the traditional record locks of fcntl(2): they end with the process however it
//! ends, a forked child does not hold its parent's, and they work across pid namespaces. Closing *any*
//! descriptor of the file in a process drops all of its locks; so the file is opened once and never closed.
//! Tests for a lock use `F_OFD_GETLK`, which also sees the locks of the calling process and returns the
//! owner's pid in the caller's pid namespace.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use crate::mig::MAX_DEVICES;

const DEVICES: i64 = 0;
const ATTACHED: i64 = 1 << 8;
const SLOTS: i64 = 1 << 16;

/// The lock file, open.
#[derive(Debug)]
pub(crate) struct Locks {
    file: &'static File,
    /// Record locks belong to the process: its threads need a separate lock.
    devices: [Mutex<()>; MAX_DEVICES],
}

/// Returns the lock file at `path`, which this process opens only once.
fn opened_once(path: PathBuf) -> io::Result<&'static File> {
    static OPENED: Mutex<BTreeMap<PathBuf, &'static File>> = Mutex::new(BTreeMap::new());
    let mut opened = OPENED.lock();
    if let (Some(file), Ok(now)) = (opened.get(&path), fs::metadata(&path)) {
        let known = file.metadata()?;
        // The file may have been removed and created again.
        if (known.dev(), known.ino()) == (now.dev(), now.ino()) {
            return Ok(file);
        }
    }
    let file: &'static File = Box::leak(Box::new(open_shared(&path)?));
    opened.insert(path, file);
    Ok(file)
}

/// Excludes changes of one device's memory accounts by any other thread of any process.
#[derive(Debug)]
pub(crate) struct DeviceGuard<'a> {
    locks: &'a Locks,
    device: usize,
    _thread: MutexGuard<'a, ()>,
}

impl Drop for DeviceGuard<'_> {
    fn drop(&mut self) {
        // Unlocking a range that is held cannot fail.
        let _ = self
            .locks
            .set(libc::F_SETLK, libc::F_UNLCK, DEVICES + offset(self.device), 1);
    }
}

impl Locks {
    /// Opens the lock file for the lifetime of the process.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        Ok(Locks {
            file: opened_once(dir.join("lock"))?,
            devices: [const { Mutex::new(()) }; MAX_DEVICES],
        })
    }

    /// Waits for the lock of one device's accounts.
    pub(crate) fn device(&self, device: usize) -> DeviceGuard<'_> {
        let thread = self.devices[device].lock();
        self.wait(DEVICES + offset(device), 1);
        DeviceGuard {
            locks: self,
            device,
            _thread: thread,
        }
    }

    /// Claims a free slot, after running `clear` on it: while it has no owner, what is left there of its last
    /// one counts for nobody.
    pub(crate) fn claim_slot(&self, slots: usize, clear: impl Fn(usize)) -> io::Result<usize> {
        let _threads: Vec<_> = self.devices.iter().map(Mutex::lock).collect();
        self.wait(DEVICES, offset(MAX_DEVICES));
        let mut claimed = Err(io::Error::other(
            "more processes than the simulated machine has places for",
        ));
        for slot in 0..slots {
            if self.slot_owner(slot).is_some() {
                continue;
            }
            clear(slot);
            let lock = self.set(libc::F_SETLK, libc::F_WRLCK, SLOTS + offset(slot), 1);
            if lock.is_ok() {
                claimed = Ok(slot);
                break;
            }
        }
        self.set(libc::F_SETLK, libc::F_UNLCK, DEVICES, offset(MAX_DEVICES))?;
        claimed
    }

    /// Returns the pid of the living owner of a slot; 0 if the owner is not in the caller's pid namespace.
    pub(crate) fn slot_owner(&self, slot: usize) -> Option<u32> {
        self.owner(SLOTS + offset(slot))
    }

    /// Returns whether any living process, this one included, has attached.
    pub(crate) fn anyone_attached(&self) -> bool {
        self.owner(ATTACHED).is_some()
    }

    /// Marks this process as attached until it ends.
    pub(crate) fn attach(&self) -> io::Result<()> {
        self.set(libc::F_SETLK, libc::F_RDLCK, ATTACHED, 1)
    }

    fn owner(&self, start: i64) -> Option<u32> {
        let mut lock = record(libc::F_WRLCK, start, 1);
        // SAFETY: the descriptor is open and `lock` is a valid flock structure.
        let answer = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        (answer == 0 && i32::from(lock.l_type) != libc::F_UNLCK)
            .then(|| u32::try_from(lock.l_pid).unwrap_or(0))
    }

    /// Waits for a lock, and retries after interruptions. The kernel's deadlock detection treats all threads
    /// of a process as one, so it may report a deadlock that does not exist; then the call retries too.
    fn wait(&self, start: i64, length: i64) {
        while self.set(libc::F_SETLKW, libc::F_WRLCK, start, length).is_err() {
            std::thread::yield_now();
        }
    }

    fn set(&self, command: i32, kind: i32, start: i64, length: i64) -> io::Result<()> {
        let lock = record(kind, start, length);
        // SAFETY: the descriptor is open and `lock` is a valid flock structure.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw const lock) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Opens or creates a file with access for all users of the directory.
pub(crate) fn open_shared(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o666)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)?;
    // Set explicitly because of the umask. Fails for another user's file, which stays as it is.
    let _ = file.set_permissions(std::fs::Permissions::from_mode(0o666));
    Ok(file)
}

fn record(kind: i32, start: i64, length: i64) -> libc::flock {
    // SAFETY: a flock structure is plain integers, for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or(0);
    lock.l_whence = 0;
    lock.l_start = start;
    lock.l_len = length;
    lock
}

fn offset(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(0)
}

/// Exclusive lock on a file, such as the state file while a machine is opened or created. flock(2) rather
/// than a record lock, because two copies of this library in one process must exclude each other too.
pub(crate) struct Exclusive<'a>(&'a File);

impl<'a> Exclusive<'a> {
    pub(crate) fn hold(file: &'a File) -> io::Result<Self> {
        loop {
            // SAFETY: the descriptor is open.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Exclusive(file));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_cleared_before_it_has_an_owner() {
        let directory = std::env::temp_dir().join(format!("simgpu-slot-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let locks = Locks::open(&directory).unwrap();
        let cleared = |slot| assert_eq!(locks.slot_owner(slot), None);
        let slot = locks.claim_slot(2, cleared).unwrap();
        assert!(locks.slot_owner(slot).is_some());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn lock_file_is_opened_once_until_it_is_replaced() {
        let directory = std::env::temp_dir().join(format!("simgpu-lock-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("lock");
        let open = |path: &Path| {
            let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
            all.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == path))
                .count()
        };
        for _ in 0..3 {
            Locks::open(&directory).unwrap();
        }
        assert_eq!(open(&file), 1);
        fs::remove_file(&file).unwrap();
        let again = Locks::open(&directory).unwrap();
        assert_eq!(
            again.file.metadata().unwrap().ino(),
            fs::metadata(&file).unwrap().ino()
        );
    }
}
