//! Files that the hook opens in somebody else's process, and memory files.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use parking_lot::Mutex;

/// A new memory file of exactly `size` bytes that nobody can resize any more. See memfd_create(2).
pub(crate) fn sealed_file(name: &CStr, size: usize) -> io::Result<OwnedFd> {
    // SAFETY: a C string, which the kernel copies.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let length = libc::off_t::try_from(size).map_err(io::Error::other)?;
    // SAFETY: a file of ours.
    if unsafe { libc::ftruncate(fd, length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a file of ours.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Whether a file has exactly `size` bytes for ever, so that reading a mapping of it cannot raise SIGBUS.
pub(crate) fn has_fixed_size(file: &impl AsRawFd, size: usize) -> bool {
    // SAFETY: asks for flags.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    seals >= 0
        && seals & wanted == wanted
        && status(file.as_raw_fd()).is_some_and(|(.., length)| length == size)
}

/// Device, inode and size of what a descriptor names.
fn status(fd: RawFd) -> Option<(u64, u64, usize)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for what fstat(2) writes.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled in, since the call succeeded.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino, usize::try_from(stat.st_size).ok()?))
}

/// A descriptor in a program that may close it behind our back, and open something of its own under the number.
/// It is asked who it is before every use, and closed only if it still is.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: RawFd,
    device: u64,
    inode: u64,
}

impl Descriptor {
    /// Takes the descriptor over, to a high number: some programs count on the low ones.
    pub(crate) fn new(file: OwnedFd) -> io::Result<Self> {
        let high = raise(&file).unwrap_or(file);
        let (device, inode, _) = status(high.as_raw_fd()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            fd: high.into_raw_fd(),
            device,
            inode,
        })
    }

    /// The number, if it still names what it did.
    pub(crate) fn get(&self) -> Option<RawFd> {
        let (device, inode, _) = status(self.fd)?;
        (device == self.device && inode == self.inode).then_some(self.fd)
    }

    /// Closes it early. Safe in a forked child.
    pub(crate) fn close(&self) {
        if let Some(fd) = self.get() {
            // SAFETY: ours: it is what we opened.
            unsafe { libc::close(fd) };
        }
    }
}

/// Closes what a lock has, in a forked child. The lock may be held for ever there, by a thread that the child does not have.
pub(crate) fn close_in_child(descriptor: &Mutex<Option<Descriptor>>) {
    // SAFETY: this thread is the only one. Where another was changing the value, it is half the old and half the new
    // one: numbers alone, by which nothing else is closed, since `get` compares them with what is open.
    let descriptor = unsafe { &*descriptor.data_ptr() };
    descriptor.as_ref().inspect(|descriptor| descriptor.close());
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}

/// A duplicate among the last of the numbers that the program may use, but below what select(2) can take.
fn raise(file: &OwnedFd) -> Option<OwnedFd> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for what getrlimit(2) writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    let least = c_int::try_from(limit.rlim_cur.min(1024).checked_sub(64)?).ok()?;
    // SAFETY: duplicates a descriptor of ours.
    let fd = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    // SAFETY: just made, and nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::PAGE;

    #[test]
    fn a_sealed_file_has_its_size_for_ever() {
        let file = sealed_file(c"test", 3 * PAGE).unwrap();
        assert!(has_fixed_size(&file, 3 * PAGE));
        assert!(!has_fixed_size(&file, PAGE));
        // SAFETY: a file of ours.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, -1);
    }

    #[test]
    fn a_descriptor_that_the_program_closed_and_reused_is_left_alone() {
        let ours = Descriptor::new(sealed_file(c"ours", PAGE).unwrap()).unwrap();
        let fd = ours.get().unwrap();
        assert!(fd >= 3);
        let theirs = sealed_file(c"theirs", PAGE).unwrap();
        // SAFETY: what a program does to a number it thinks its own.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), fd) }, fd);
        assert_eq!(ours.get(), None);
        drop(ours);
        assert!(status(fd).is_some(), "the program's file is still open");
        // SAFETY: opened above.
        unsafe { libc::close(fd) };
    }
}
