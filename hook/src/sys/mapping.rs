//! Mapped memory: private pages, and files shared with the daemon. Independent of their content.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// Size of a mapping that needs one page, bytes. The kernel's pages may be larger (64 KiB on AArch64); it
/// rounds sizes up.
pub(crate) const PAGE: usize = 4096;

/// Returns the kernel's page size, bytes.
fn page_size() -> usize {
    // SAFETY: takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE)
}

/// A mapping that is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut u8,
    size: usize,
}

impl Mapping {
    fn of(address: *mut c_void, size: usize) -> io::Result<Self> {
        if address == libc::MAP_FAILED {
            return Err(super::failed("mmap"));
        }
        Ok(Self {
            address: address.cast(),
            size,
        })
    }

    /// Maps zeroed, private, writable memory.
    pub(crate) fn anonymous(size: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        Self::of(address, size)
    }

    /// Maps zeroed, writable memory that [`again`](Self::again) can map a second time.
    pub(crate) fn shared_anonymous(size: usize) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        Self::of(address, size)
    }

    /// Maps the first `size` bytes of a file.
    pub(crate) fn shared(file: &impl AsRawFd, size: usize, writable: bool) -> io::Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses.
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

    /// Maps zeroed private memory, to be [replaced](Self::replace) by a shared mapping that is [kept from
    /// children](Self::keep_from_children). A child then finds zeroed memory of its own at the address,
    /// however it was made: the page after the place grows down into it at the first access (`MAP_GROWSDOWN`,
    /// mmap(2)). The kernel maps nothing else there, since it keeps a gap before such a mapping; the page
    /// before the place is inaccessible, because otherwise the gap would stop the growth.
    pub(crate) fn place(size: usize) -> io::Result<Self> {
        Self::place_among(size, page_size())
    }

    /// See [`place`](Self::place); `page` is the kernel's page size or a multiple of it, bytes.
    fn place_among(size: usize, page: usize) -> io::Result<Self> {
        let room = size.next_multiple_of(page);
        let whole = Self::anonymous(page + room + page)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_GROWSDOWN;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: parts of a mapping of this process without references into it. If the kernel refuses, they
        // are unchanged; then a child has no memory at the address.
        let address = unsafe {
            let address = whole.address.add(page);
            libc::mprotect(whole.address.cast(), page, libc::PROT_NONE);
            libc::mmap(address.add(room).cast(), page, protection, flags, -1, 0);
            address
        };
        std::mem::forget(whole);
        Ok(Self { address, size })
    }

    /// Excludes the mapping from children made from now on; see `MADV_DONTFORK` in madvise(2).
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        self.advise(libc::MADV_DONTFORK)
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Maps the same memory a second time; only for shared mappings. See mremap(2), old size 0.
    pub(crate) fn again(&self) -> io::Result<Self> {
        // SAFETY: leaves this mapping unchanged and makes a new one at an address that the kernel chooses.
        let address = unsafe { libc::mremap(self.address.cast(), 0, self.size, libc::MREMAP_MAYMOVE) };
        Self::of(address, self.size)
    }

    /// Makes the mapping read-only.
    pub(crate) fn protect(&self) {
        // SAFETY: a mapping of this process; no code writes to it from now on.
        unsafe { libc::mprotect(self.address.cast(), self.size, libc::PROT_READ) };
    }

    /// Has forked children find zeroes here; see `MADV_WIPEONFORK` in madvise(2).
    pub(crate) fn wipe_on_fork(&self) -> io::Result<()> {
        self.advise(libc::MADV_WIPEONFORK)
    }

    fn advise(&self, advice: c_int) -> io::Result<()> {
        // SAFETY: a mapping of this process; the advice changes nothing in this process.
        let answer = unsafe { libc::madvise(self.address.cast(), self.size, advice) };
        if answer == 0 {
            Ok(())
        } else {
            Err(super::failed("madvise"))
        }
    }

    /// Moves this mapping to the address of `place`, atomically for concurrent readers. Both must have the
    /// same size.
    pub(crate) fn replace(self, place: &Mapping) -> io::Result<()> {
        debug_assert_eq!(self.size, place.size);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both mappings belong to this process and have one size. References into `place` are to
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
            return Err(super::failed("mremap"));
        }
        std::mem::forget(self);
        Ok(())
    }

    /// Maps a file over this mapping, atomically for concurrent readers, where mremap(2) is refused. The file
    /// has at least this mapping's size.
    pub(crate) fn cover(&self, file: &impl AsRawFd, writable: bool) -> io::Result<()> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        self.map_over(protection, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Replaces the memory by zeroed, private, writable memory. Async-signal-safe.
    pub(crate) fn clear(&self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let _ = self.map_over(libc::PROT_READ | libc::PROT_WRITE, flags, -1);
    }

    fn map_over(&self, protection: c_int, flags: c_int, file: c_int) -> io::Result<()> {
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: a mapping of this process. References into it are to atomics, which are valid in any
        // memory.
        let address = unsafe { libc::mmap(self.address.cast(), self.size, protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            Err(super::failed("mmap"))
        } else {
            Ok(())
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: a mapping of this process without references into it, or it would not be dropped.
        unsafe { libc::munmap(self.address.cast(), self.size) };
    }
}

// SAFETY: an address range that contains atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Runs `child` in a child made by clone(2), without fork handlers; returns its exit status.
    fn in_raw_child(child: impl FnOnce() -> bool) -> c_int {
        // SAFETY: the child takes no lock, allocates nothing, and exits.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if pid == 0 {
            let status = i32::from(!child());
            // SAFETY: exits without running code of the parent.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: a local variable for the status of an own child.
        unsafe { libc::waitpid(libc::pid_t::try_from(pid).unwrap(), &raw mut status, 0) };
        status
    }

    #[test]
    fn child_finds_zeroes_at_a_kept_mapping() {
        child_finds_zeroes::<{ 17 * PAGE }>(Mapping::place(17 * PAGE).unwrap());
    }

    /// Pages of 64 KiB.
    #[test]
    fn child_finds_zeroes_between_large_pages() {
        child_finds_zeroes::<{ 32 * PAGE }>(Mapping::place_among(32 * PAGE, 16 * PAGE).unwrap());
    }

    fn child_finds_zeroes<const SIZE: usize>(place: Mapping) {
        let word = |page: usize| {
            // SAFETY: a page of the place, for as long as that lives.
            unsafe { &*place.address().add(page * PAGE).cast::<AtomicU32>() }
        };
        let last = SIZE / PAGE - 1;
        for round in 1..3 {
            let file = crate::sys::descriptor::sealed_file(c"kept", SIZE).unwrap();
            let shared = Mapping::shared(&file, SIZE, true).unwrap();
            shared.keep_from_children().unwrap();
            shared.replace(&place).unwrap();
            word(0).store(round, Relaxed);
            word(last).store(round, Relaxed);
            let status = in_raw_child(|| {
                let other = Mapping::anonymous(SIZE);
                let is_apart = other.is_ok_and(|other| {
                    let (other, place) = (other.address().addr(), place.address().addr());
                    other + SIZE <= place || place + SIZE <= other
                });
                // The highest page is accessed last: lower ones must not depend on it.
                let are_zero = [0, 8, last].iter().all(|page| word(*page).swap(7, Relaxed) == 0);
                is_apart && are_zero
            });
            assert_eq!(status, 0);
            assert_eq!((word(0).load(Relaxed), word(last).load(Relaxed)), (round, round));
        }
    }

    #[test]
    fn replace_exchanges_memory_under_readers() {
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
