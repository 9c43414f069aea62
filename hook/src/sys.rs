//! The system calls that the hook makes, and the mappings they give. Knows nothing of what is kept in them.
//!
//! With `client` (sockets) the only module that talks to the kernel.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The calling thread's id, as `Thread::tid` has it.
pub(crate) fn gettid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// Whether this process still has a thread of that id. See tgkill(2): signal 0 only looks.
pub(crate) fn is_thread_alive(tid: u32) -> bool {
    // SAFETY: sends nothing; the ids are plain numbers.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            c_long::from(libc::getpid()),
            c_long::from(tid),
            0 as c_long,
        )
    };
    answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Sleeps while `word` holds `expected`, for `longest` at most; also ends on a signal. See futex(2).
///
/// Works on read-only shared mappings, whose waker is another process: hence not `FUTEX_PRIVATE_FLAG`.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, longest: Duration) {
    let timeout = timespec(longest);
    // SAFETY: the word stays mapped, since it is borrowed; the kernel only reads it and the timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        );
    }
}

/// Wakes everybody who waits on `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the address only names the queue to wake.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX);
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: c_long::from(duration.subsec_nanos().cast_signed()),
    }
}

/// Waits until `descriptor` can be read or `longest` has passed; whether it can be. Without a descriptor: sleeps.
pub(crate) fn poll(descriptor: Option<RawFd>, longest: Option<Duration>) -> bool {
    let mut entry = libc::pollfd {
        fd: descriptor.unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = longest.map(timespec);
    let timeout = timeout.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: one entry, and a timeout or none, that outlive the call.
    let ready = unsafe { libc::ppoll(&raw mut entry, 1, timeout, null()) };
    ready == 1 && entry.revents != 0
}

const MEMBARRIER_CMD_GLOBAL: c_int = 1;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: c_int = 8;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: c_int = 16;

fn membarrier(command: c_int) -> bool {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Makes [`barrier`] fast for this process; exec undoes it, fork keeps it.
pub(crate) fn register_barrier() {
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

/// Puts a full memory barrier into every thread of this process that runs.
///
/// Where membarrier(2) is refused (old kernels, seccomp), taking a page's write permission does it: the kernel
/// must interrupt every processor that runs the process to drop the old translation.
pub(crate) fn barrier() {
    if membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) || membarrier(MEMBARRIER_CMD_GLOBAL) {
        return;
    }
    let Ok(page) = Mapping::anonymous(PAGE) else {
        return;
    };
    // SAFETY: the page is ours, writable, and large enough for a word.
    unsafe { &*page.address().cast::<AtomicU32>() }.store(1, Relaxed);
    page.protect();
}

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
            fd: std::os::fd::IntoRawFd::into_raw_fd(high),
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

/// Says one line on standard error. Not `eprintln`, whose lock a forked child may find held.
pub(crate) fn complain(line: &str) {
    let text = format!("gcgroup: {line}\n");
    // SAFETY: the text outlives the call.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Starts a thread that nobody joins, with every signal blocked, since signals are for the program's own threads.
pub(crate) fn spawn(name: &'static CStr, run: fn()) -> io::Result<()> {
    struct Start {
        name: &'static CStr,
        run: fn(),
    }
    extern "C" fn begin(argument: *mut c_void) -> *mut c_void {
        // SAFETY: the box made below, handed to this thread alone.
        let start = unsafe { Box::from_raw(argument.cast::<Start>()) };
        // SAFETY: names the calling thread.
        unsafe { libc::pthread_setname_np(libc::pthread_self(), start.name.as_ptr()) };
        (start.run)();
        null_mut()
    }
    let start = Box::into_raw(Box::new(Start { name, run }));
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut blocked = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: each structure is initialised by the first call that takes it and used after; the mask is put back.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::sigfillset(blocked.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
        let error = libc::pthread_create(
            thread.as_mut_ptr(),
            attributes.as_ptr(),
            begin,
            start.cast::<c_void>(),
        );
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        error
    };
    if error == 0 {
        return Ok(());
    }
    // SAFETY: the thread was not made, so the box is still ours.
    drop(unsafe { Box::from_raw(start) });
    Err(io::Error::from_raw_os_error(error))
}

/// Room for the driver's own frames, and for other libraries' thread-local data, which the C library puts there.
const STACK: usize = 512 * 1024;

/// Has `child` run in every child that fork(3) makes, and `exit` when the program exits normally.
pub(crate) fn on_fork_and_exit(child: unsafe extern "C" fn(), exit: extern "C" fn()) {
    // SAFETY: functions of a library that is never unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(child));
        libc::atexit(exit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_has_its_size_for_ever() {
        let file = sealed_file(c"test", 3 * PAGE).unwrap();
        assert!(has_fixed_size(&file, 3 * PAGE));
        assert!(!has_fixed_size(&file, PAGE));
        // SAFETY: a file of ours.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, -1);
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

    #[test]
    fn a_dead_thread_is_known_to_be_dead() {
        assert!(is_thread_alive(gettid()));
        let gone = std::thread::spawn(gettid).join().unwrap();
        // The kernel may take a moment longer over the thread than join does.
        while is_thread_alive(gone) {
            std::thread::yield_now();
        }
    }
}
