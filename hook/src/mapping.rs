//! Memory that the hook maps: its own pages, and the files it shares with the daemon. Knows nothing of what is in them.

use std::ffi::{c_int, c_void};
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

    /// Zeroed memory of our own, writable, that [`again`](Self::again) can map a second time.
    pub(crate) fn shared_anonymous(size: usize) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
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

    /// Zeroed memory of our own, for a shared mapping that [`replace`](Self::replace)s it and is
    /// [kept from children](Self::keep_from_children). A child then finds zeroed memory of its own at the address, however it was
    /// made: what lies after the place grows down into it at the first access (`MAP_GROWSDOWN`, mmap(2)). Nothing else is
    /// mapped there, since the kernel keeps a gap before such a mapping; what lies before the place allows no access,
    /// because the gap would otherwise stop the growth.
    pub(crate) fn place(size: usize) -> io::Result<Self> {
        let whole = Self::anonymous(PAGE + size + PAGE)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_GROWSDOWN;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: parts of a mapping of ours, which nobody has a reference into. A kernel that refuses leaves them as they
        // are: then a child has no memory at the address.
        let address = unsafe {
            let address = whole.address.add(PAGE);
            libc::mprotect(whole.address.cast(), PAGE, libc::PROT_NONE);
            libc::mmap(address.add(size).cast(), PAGE, protection, flags, -1, 0);
            address
        };
        std::mem::forget(whole);
        Ok(Self { address, size })
    }

    /// Leaves the mapping out of every child that is made from now on. See `MADV_DONTFORK` in madvise(2).
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        self.advise(libc::MADV_DONTFORK)
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
        self.advise(libc::MADV_WIPEONFORK)
    }

    fn advise(&self, advice: c_int) -> io::Result<()> {
        // SAFETY: a mapping of ours; what is advised here changes nothing in this process.
        let answer = unsafe { libc::madvise(self.address.cast(), self.size, advice) };
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

    /// The exit status of a child made by clone(2), which runs no handler, and `child` alone.
    fn in_raw_child(child: impl FnOnce() -> bool) -> c_int {
        // SAFETY: the child runs what takes no lock and allocates nothing, and leaves.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if pid == 0 {
            let status = i32::from(!child());
            // SAFETY: leaves without running anything of the parent's.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: room for the status of a child of ours.
        unsafe { libc::waitpid(libc::pid_t::try_from(pid).unwrap(), &raw mut status, 0) };
        status
    }

    #[test]
    fn a_child_finds_zeroes_of_its_own_where_a_kept_mapping_was() {
        const SIZE: usize = 17 * PAGE;
        let place = Mapping::place(SIZE).unwrap();
        let word = |page: usize| {
            // SAFETY: a page of the place, for as long as it lives.
            unsafe { &*place.address().add(page * PAGE).cast::<AtomicU32>() }
        };
        for round in 1..3 {
            let file = crate::descriptor::sealed_file(c"kept", SIZE).unwrap();
            let shared = Mapping::shared(&file, SIZE, true).unwrap();
            shared.keep_from_children().unwrap();
            shared.replace(&place).unwrap();
            word(0).store(round, Relaxed);
            word(16).store(round, Relaxed);
            let status = in_raw_child(|| {
                let other = Mapping::anonymous(SIZE);
                let is_apart = other.is_ok_and(|other| {
                    let (other, place) = (other.address().addr(), place.address().addr());
                    other + SIZE <= place || place + SIZE <= other
                });
                // The highest is used last: lower ones must not need it.
                let are_zero = [0, 8, 16].iter().all(|page| word(*page).swap(7, Relaxed) == 0);
                is_apart && are_zero
            });
            assert_eq!(status, 0);
            assert_eq!((word(0).load(Relaxed), word(16).load(Relaxed)), (round, round));
        }
    }

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
