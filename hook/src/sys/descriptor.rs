//! Descriptors that the hook keeps open inside the program, and memory files.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::failed;

/// Makes a memory file of exactly `size` bytes that cannot be resized. See memfd_create(2).
pub(crate) fn sealed_file(name: &CStr, size: usize) -> io::Result<OwnedFd> {
    // SAFETY: a C string, which the kernel copies.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(failed("memfd_create"));
    }
    // SAFETY: just opened and not owned elsewhere.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(size).map_err(io::Error::other)?;
    // SAFETY: a file of ours.
    if unsafe { libc::ftruncate(fd, length) } != 0 {
        return Err(failed("ftruncate"));
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a file of ours.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(failed("fcntl F_ADD_SEALS"));
    }
    Ok(file)
}

/// Returns whether a file has exactly `size` bytes and cannot be resized, so that reading a mapping of it
/// cannot raise SIGBUS. Where the system does not tell whether it can be resized, its maker is trusted.
pub(crate) fn has_fixed_size(file: &impl AsRawFd, size: usize) -> bool {
    // SAFETY: asks for flags.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let is_sealed = match seals {
        // EINVAL: a file that has no seals.
        ..0 => io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL),
        seals => seals & wanted == wanted,
    };
    is_sealed && status(file.as_raw_fd()).is_some_and(|(_, length)| length == size)
}

/// Identity of a file: device and inode.
pub(crate) type Identity = (u64, u64);

/// Returns identity and size of an open file.
fn status(fd: RawFd) -> Option<(Identity, usize)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for what fstat(2) writes.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled in, since the call succeeded.
    let stat = unsafe { stat.assume_init() };
    Some(((stat.st_dev, stat.st_ino), usize::try_from(stat.st_size).ok()?))
}

/// Returns the identity of the program's root directory.
pub(crate) fn root() -> Option<Identity> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a C string, and room for what stat(2) writes.
    if unsafe { libc::stat(c"/".as_ptr(), stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled in, since the call succeeded.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

/// A descriptor in a program that may close it and open another file under its number. The identity of the
/// open file is checked before every use and before it is closed.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: RawFd,
    identity: Identity,
}

impl Descriptor {
    /// Takes over `file`, moved to a high number: some programs rely on the low ones.
    pub(crate) fn new(file: OwnedFd) -> io::Result<Self> {
        Self::here(raise(&file).unwrap_or(file))
    }

    /// Takes over `file` under its own number: for a descriptor that is closed soon.
    pub(crate) fn here(file: OwnedFd) -> io::Result<Self> {
        let (identity, _) = status(file.as_raw_fd()).ok_or_else(|| failed("fstat"))?;
        Ok(Self {
            fd: file.into_raw_fd(),
            identity,
        })
    }

    /// Returns the number, if it still refers to the same file.
    pub(crate) fn get(&self) -> Option<RawFd> {
        let (identity, _) = status(self.fd)?;
        (identity == self.identity).then_some(self.fd)
    }

    /// Closes the descriptor. Safe in a forked child.
    pub(crate) fn close(&self) {
        if let Some(fd) = self.get() {
            // SAFETY: ours: it is what we opened.
            unsafe { libc::close(fd) };
        }
    }
}

/// Closes the descriptor behind a lock, in a forked child, without taking the lock: a thread that does not
/// exist in the child may hold it for ever.
pub(crate) fn close_in_child(descriptor: &Mutex<Option<Descriptor>>) {
    // SAFETY: this thread is the only one. If another was changing the value, it is a mixture of old and new:
    // plain numbers, by which nothing else is closed, since `get` compares them with the open file.
    let descriptor = unsafe { &*descriptor.data_ptr() };
    descriptor.as_ref().inspect(|descriptor| descriptor.close());
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}

/// Number of descriptors that the hook keeps open, and some more.
const OURS: u64 = 16;

/// Returns the least number for which the process's table of descriptors need not grow; all ones if it may.
/// While a process has several threads, the kernel waits for a grace period of RCU, 10 to 30 ms, before it
/// changes to a larger table.
fn last_cheap() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let known = LAST.load(Relaxed);
    if known != 0 {
        return known;
    }
    let last = match super::is_single_threaded() {
        true => u64::MAX,
        false => table_size().map_or(u64::MAX, |size| size.saturating_sub(OURS).max(1)),
    };
    LAST.store(last, Relaxed);
    last
}

/// Returns the size of the process's table of descriptors; see proc_pid_status(5).
fn table_size() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"))?;
    size.trim().parse().ok()
}

/// Least number of a descriptor of the hook, if the program may have that many: below the bound of select(2).
const HIGH: u64 = 960;

/// Duplicates `file` to a high number.
fn raise(file: &OwnedFd) -> Option<OwnedFd> {
    // Not a standard stream, which the program may have closed.
    let least = c_int::try_from(last_cheap().clamp(3, HIGH)).ok()?;
    // SAFETY: duplicates a descriptor of ours. Refused where the program may not have as many.
    let fd = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    // SAFETY: just opened and not owned elsewhere.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mapping::PAGE;

    #[test]
    fn sealed_file_cannot_be_resized() {
        let file = sealed_file(c"test", 3 * PAGE).unwrap();
        assert!(has_fixed_size(&file, 3 * PAGE));
        assert!(!has_fixed_size(&file, PAGE));
        // SAFETY: a file of ours.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, -1);
    }

    #[test]
    fn descriptor_reused_by_program_is_left_alone() {
        let ours = Descriptor::new(sealed_file(c"ours", PAGE).unwrap()).unwrap();
        let fd = ours.get().unwrap();
        assert!(fd >= 3);
        let theirs = sealed_file(c"theirs", PAGE).unwrap();
        // SAFETY: imitates a program that believes the number to be its own.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), fd) }, fd);
        assert_eq!(ours.get(), None);
        drop(ours);
        assert!(status(fd).is_some(), "the program's file is still open");
        // SAFETY: opened above.
        unsafe { libc::close(fd) };
    }
}
