//! Memory that the hook maps: its own pages, and the files it shares with the daemon. Knows nothing of what is in them.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// The least that mappings are made of on the machines we build for.
pub(crate) const PAGE: usize = 4096;

/// A mapping that is unmapped when dropped, or [kept](Mapping::keep) for ever.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut u8,
    size: usize,
}

impl Mapping {
    fn of(address: *mut c_void, size: usize) -> io::Result<Self> {
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            address: address.cast(),
            size,
        })
    }

    /// Zeroed memory of our own, writable.
    pub(crate) fn anonymous(size: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the kernel likes.
        let address =
            unsafe { libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        Self::of(address, size)
    }

    /// A file's first `size` bytes.
    pub(crate) fn shared(file: &impl AsRawFd, size: usize, writable: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping where the kernel likes.
        let address = unsafe {
            libc::mmap(
                null_mut(),
                size,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        Self::of(address, size)
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The same memory mapped a second time; only for shared mappings. See mremap(2), old size 0.
    pub(crate) fn again(&self) -> io::Result<Self> {
        // SAFETY: leaves this mapping as it is and makes a new one where the kernel likes.
        let address = unsafe { libc::mremap(self.address.cast(), 0, self.size, libc::MREMAP_MAYMOVE) };
        Self::of(address, self.size)
    }

    /// Takes the permission to write away.
    pub(crate) fn protect(&self) {
        // SAFETY: a mapping of ours; whoever writes to it from now on is wrong.
        unsafe { libc::mprotect(self.address.cast(), self.size, libc::PROT_READ) };
    }

    /// Has forked children find zeroes here. See madvise(2).
    pub(crate) fn wipe_on_fork(&self) -> io::Result<()> {
        // SAFETY: a private anonymous mapping of ours.
        let answer = unsafe { libc::madvise(self.address.cast(), self.size, libc::MADV_WIPEONFORK) };
        if answer == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Moves this mapping to where `place` is, in one step for whoever reads there meanwhile. Takes no more room
    /// than `place` has: both are of one size.
    pub(crate) fn replace(self, place: &Mapping) -> io::Result<()> {
        debug_assert_eq!(self.size, place.size);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both mappings are ours and of one size. What is read through references into `place` are
        // atomics of the same layout in either.
        let address = unsafe {
            libc::mremap(
                self.address.cast(),
                self.size,
                place.size,
                flags,
                place.address.cast::<c_void>(),
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has a reference into it, or they would have kept it from dropping.
        unsafe { libc::munmap(self.address.cast(), self.size) };
    }
}

// SAFETY: an address range; what it holds are atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn a_mapping_takes_anothers_place_under_its_readers() {
        let place = Mapping::anonymous(PAGE).unwrap();
        // SAFETY: a page, for as long as `place` lives.
        let word = unsafe { &*place.address().cast::<AtomicU32>() };
        assert_eq!(word.load(Relaxed), 0);
        let other = Mapping::anonymous(PAGE).unwrap();
        // SAFETY: a page.
        unsafe { &*other.address().cast::<AtomicU32>() }.store(7, Relaxed);
        other.protect();
        other.replace(&place).unwrap();
        assert_eq!(word.load(Relaxed), 7);
    }
}
