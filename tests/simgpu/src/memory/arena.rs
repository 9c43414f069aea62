//! A large range of this process's addresses, of which only what is written takes memory.

use std::io;
use std::ptr;

use parking_lot::Mutex;

use super::Ranges;

/// Holes below this size keep their pages.
const WORTH_RETURNING: u64 = 64 << 10;
const PAGE: u64 = 4096;
const SMALLEST: usize = 1 << 30;

/// An arena. Its mapping is never undone, so an address of it stays safe to touch.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    length: u64,
    /// Whether the addresses can be read and written, or are only names for memory elsewhere.
    accessible: bool,
    free: Mutex<Ranges>,
}

impl Arena {
    /// Reserves about `length` bytes of addresses, fewer if the process may not have so many.
    pub fn reserve(length: usize, accessible: bool) -> io::Result<Arena> {
        let protection = if accessible {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_NONE
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut length = length;
        loop {
            // SAFETY: a fresh anonymous mapping replaces nothing.
            let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
            if start != libc::MAP_FAILED {
                // SAFETY: exactly the mapping made above. A fork child has no use for it.
                unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
                // SAFETY: likewise; a core file has no use for it either.
                unsafe { libc::madvise(start, length, libc::MADV_DONTDUMP) };
                let (start, length) = (start as u64, length as u64);
                let first = start.next_multiple_of(2 << 20);
                let free = Mutex::new(Ranges::new(first, length - (first - start)));
                return Ok(Arena {
                    start,
                    length,
                    accessible,
                    free,
                });
            }
            if length <= SMALLEST {
                return Err(io::Error::last_os_error());
            }
            length /= 2;
        }
    }

    /// The first address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Whether the address is of this arena, in use or not.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.start + self.length).contains(&address)
    }

    /// Takes `length` addresses beginning at a multiple of `align`.
    pub fn take(&self, length: u64, align: u64) -> Option<u64> {
        self.free.lock().take(length.max(1), align)
    }

    /// Takes exactly these addresses, if they are free.
    pub fn take_at(&self, at: u64, length: u64) -> bool {
        self.free.lock().take_at(at, length)
    }

    /// Gives addresses back. The bytes of large blocks are returned to the system.
    pub fn give(&self, at: u64, length: u64) {
        if self.accessible && length >= WORTH_RETURNING {
            discard(at, length);
        }
        self.free.lock().give(at, length.max(1));
    }
}

/// Returns the whole pages in a range of an accessible arena to the system; they read as zero then.
pub(super) fn discard(at: u64, length: u64) {
    let first = at.next_multiple_of(PAGE);
    let last = (at + length) / PAGE * PAGE;
    if first < last {
        let (first, length) = (
            first as *mut libc::c_void,
            usize::try_from(last - first).unwrap_or(0),
        );
        // SAFETY: pages of an arena's own mapping, which nobody holds a Rust reference to.
        unsafe { libc::madvise(first, length, libc::MADV_DONTNEED) };
    }
}
