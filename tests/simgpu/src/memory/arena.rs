//! A large range of this process's addresses; only written pages use memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::ptr;

use parking_lot::Mutex;

use super::Ranges;

/// Freed blocks smaller than this keep their pages.
const WORTH_RETURNING: u64 = 64 << 10;
const PAGE: u64 = 4096;
const SMALLEST: usize = 1 << 30;

/// Memory behind the addresses of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// None: the addresses only name memory elsewhere.
    None,
    /// Memory private to this process.
    Private,
    /// Memory that can be shared with other processes.
    Shared,
}

/// An address range. It is never unmapped, so its addresses stay safe to access.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    length: u64,
    bytes: Bytes,
    /// The file with the bytes, if they are shared.
    file: Option<File>,
    free: Mutex<Ranges>,
}

impl Arena {
    /// Reserves up to `length` bytes of addresses: half as many, and so on, down to 1 GiB while the system
    /// refuses.
    pub fn reserve(length: usize, bytes: Bytes) -> io::Result<Arena> {
        let mut length = length;
        loop {
            match Arena::exactly(length, bytes) {
                Err(_) if length > SMALLEST => length /= 2,
                other => return other,
            }
        }
    }

    fn exactly(length: usize, bytes: Bytes) -> io::Result<Arena> {
        let file = match bytes {
            Bytes::Shared => Some(anonymous(length)?),
            Bytes::None | Bytes::Private => None,
        };
        let start = map(
            ptr::null_mut(),
            length,
            bytes,
            file.as_ref().map(|file| (file.as_fd(), 0)),
        )?;
        let length = length as u64;
        let first = start.next_multiple_of(2 << 20);
        Ok(Arena {
            start,
            length,
            bytes,
            file,
            free: Mutex::new(Ranges::new(first, length - (first - start))),
        })
    }

    /// Reserves addresses between 1 and 3 GiB, if they are free in this process.
    pub fn low() -> Option<Arena> {
        const START: u64 = 1 << 30;
        const LENGTH: u64 = 2 << 30;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let (at, length) = (START as *mut libc::c_void, usize::try_from(LENGTH).ok()?);
        // SAFETY: a new anonymous mapping with a flag that forbids replacing others.
        let start = unsafe { libc::mmap(at, length, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        if start != at {
            // A kernel that does not know the flag treats the address as a hint.
            // SAFETY: exactly the mapping made above.
            unsafe { libc::munmap(start, length) };
            return None;
        }
        Some(Arena {
            start: START,
            length: LENGTH,
            bytes: Bytes::None,
            file: None,
            free: Mutex::new(Ranges::new(START, LENGTH)),
        })
    }

    /// Returns the first address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the file with the bytes, if they can be shared.
    pub(super) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Returns whether the address belongs to this arena, in use or not.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.start + self.length).contains(&address)
    }

    /// Reserves `length` addresses starting at a multiple of `align`.
    pub fn take(&self, length: u64, align: u64) -> Option<u64> {
        self.free.lock().take(length.max(1), align)
    }

    /// Reserves exactly these addresses, if they are free.
    pub fn take_at(&self, at: u64, length: u64) -> bool {
        self.free.lock().take_at(at, length)
    }

    /// Frees addresses. The bytes of blocks of 64 KiB or more are returned to the system.
    pub fn give(&self, at: u64, length: u64) {
        if self.bytes != Bytes::None && length >= WORTH_RETURNING {
            self.discard(at, length);
        }
        self.free.lock().give(at, length.max(1));
    }

    /// Returns the file and the offset of an address's bytes, if they can be shared.
    pub fn place_of(&self, at: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let file = self.file.as_ref()?;
        Some((file.as_fd(), at - self.start))
    }

    /// Maps a file's bytes at some of the addresses (whole pages), until `restore`.
    pub fn lay(&self, at: u64, length: u64, (file, offset): (BorrowedFd<'_>, u64)) -> io::Result<()> {
        let length = usize::try_from(length).unwrap_or(0);
        map(
            at as *mut libc::c_void,
            length,
            Bytes::Shared,
            Some((file, offset)),
        )
        .map(drop)
    }

    /// Restores the arena's own mapping after `lay`.
    pub fn restore(&self, at: u64, length: u64) {
        let length = usize::try_from(length).unwrap_or(0);
        let restored = map(at as *mut libc::c_void, length, self.bytes, self.place_of(at));
        if let Err(error) = restored {
            eprintln!("simgpu: memory cannot be given back: {error}");
        }
    }

    /// Populates the pages of a range now instead of on first access, if the system supports it.
    pub fn populate(&self, at: u64, length: u64) {
        let length = usize::try_from(length).unwrap_or(0);
        // SAFETY: pages of an arena's own mapping; their content is kept.
        unsafe { libc::madvise(at as *mut libc::c_void, length, libc::MADV_POPULATE_WRITE) };
    }

    /// Returns the whole pages in a range to the system; they then read as zero.
    pub fn discard(&self, at: u64, length: u64) {
        let first = at.next_multiple_of(PAGE);
        let last = (at + length) / PAGE * PAGE;
        if first < last {
            let (first, length) = (
                first as *mut libc::c_void,
                usize::try_from(last - first).unwrap_or(0),
            );
            let advice = match self.bytes {
                Bytes::Shared => libc::MADV_REMOVE,
                Bytes::None | Bytes::Private => libc::MADV_DONTNEED,
            };
            // SAFETY: pages of an arena's own mapping, to which no Rust reference exists.
            unsafe { libc::madvise(first, length, advice) };
        }
    }
}

/// Creates an anonymous file, sparse and zeroed.
fn anonymous(length: usize) -> io::Result<File> {
    // SAFETY: the name is a string.
    let file = unsafe { libc::memfd_create(c"simgpu".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor has just been created and has no other owner.
    let file = unsafe { File::from_raw_fd(file) };
    file.set_len(length as u64)?;
    Ok(file)
}

/// Maps pages: at any address, or in place of those at `at`, which must belong to an arena.
fn map(
    at: *mut libc::c_void,
    length: usize,
    bytes: Bytes,
    file: Option<(BorrowedFd<'_>, u64)>,
) -> io::Result<u64> {
    let protection = match bytes {
        Bytes::None => libc::PROT_NONE,
        Bytes::Private | Bytes::Shared => libc::PROT_READ | libc::PROT_WRITE,
    };
    let kind = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let (descriptor, offset) = file.map_or((-1, 0), |(file, offset)| {
        (file.as_raw_fd(), i64::try_from(offset).unwrap_or(0))
    });
    let flags = kind | fixed | libc::MAP_NORESERVE;
    // SAFETY: the mapping replaces nothing, or pages of an arena, which are only accessed by address.
    let start = unsafe { libc::mmap(at, length, protection, flags, descriptor, offset) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: exactly the mapping made above. A forked child does not need it.
    unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
    // SAFETY: exactly the mapping made above. A core file does not need it.
    unsafe { libc::madvise(start, length, libc::MADV_DONTDUMP) };
    Ok(start as u64)
}
