//! System calls of the hook: threads, futexes, barriers, waits.
//!
//! All other system calls are in `mapping`, `descriptor`, `log` and `client` (sockets).

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_long, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;
use std::{fmt, io};

use gcgroup_abi::environment::{Syntax, Value, Variable};

pub(crate) mod descriptor;
pub(crate) mod imports;
pub(crate) mod log;
pub(crate) mod mapping;
pub(crate) mod own;

use mapping::{Mapping, PAGE};

/// A failed system call, as the content of an error that names it.
#[derive(Debug)]
struct Failed {
    call: &'static str,
    errno: i32,
}

impl fmt::Display for Failed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.call, io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for Failed {}

/// Returns the error of the system call `call`, which has just failed.
pub(crate) fn failed(call: &'static str) -> io::Error {
    let error = io::Error::last_os_error();
    let errno = error.raw_os_error().unwrap_or(0);
    io::Error::new(error.kind(), Failed { call, errno })
}

/// Returns the number of a system call's error.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    let failed = error.get_ref().and_then(|inner| inner.downcast_ref::<Failed>());
    failed.map_or_else(|| error.raw_os_error(), |failed| Some(failed.errno))
}

/// Returns the calling thread's id. By the system call, since glibc has a function for it from 2.30 on.
pub(crate) fn gettid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(tid).unwrap_or(0)
}

/// Returns an environment variable. `None` in a program that runs with elevated privileges (set-user-ID),
/// whose environment is not trusted: see secure_getenv(3).
pub(crate) fn variable(name: &str) -> Option<OsString> {
    if is_secure() { None } else { std::env::var_os(name) }
}

fn is_secure() -> bool {
    // SAFETY: takes a number, cannot fail.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the environment with which the process was executed, as C strings; nothing in a program with
/// elevated privileges. Read from the memory of the process, which may have overwritten it, as by
/// setproctitle(3).
pub(crate) fn executed_environment() -> Vec<u8> {
    let environment = (!is_secure()).then(|| std::fs::read("/proc/self/environ").ok());
    environment.flatten().unwrap_or_default()
}

/// Returns the value of a variable in a list of C strings.
pub(crate) fn variable_in(list: &[u8], name: &str) -> Option<OsString> {
    let value = |one: &[u8]| Some(one.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
    list.split(|byte| *byte == 0)
        .find_map(value)
        .map(OsString::from_vec)
}

/// Returns the path that a variable of ours is set to; `None` if it is empty or too long.
pub(crate) fn path(variable: &Variable) -> Option<OsString> {
    self::variable(variable.name).filter(|path| variable.parse(path.as_bytes()) == Ok(Some(Value::Text)))
}

/// Returns the number that a variable of ours is set to; `None` if it is not set or not understood.
pub(crate) fn number(variable: &Variable) -> Option<u64> {
    match variable.parse(self::variable(variable.name)?.as_bytes()) {
        Ok(Some(Value::Number(number))) => Some(number),
        _ => None,
    }
}

/// Returns the word that a variable of ours is set to; `None` if it is not set or not understood.
pub(crate) fn word(variable: &Variable) -> Option<&'static str> {
    let Syntax::Word(words) = variable.syntax else {
        return None;
    };
    words.get(usize::try_from(number(variable)?).ok()?).copied()
}

unsafe extern "C" {
    /// See environ(7).
    static mut environ: *mut *mut c_char;
}

/// Makes a call with another value of an environment variable, and then restores the environment.
///
/// The environment is replaced as a whole and never changed: other threads may read it at any time, and see
/// one or the other. The replacement is never freed. A variable that another thread replaces during the call
/// may keep its value from before.
pub(crate) fn with_variable<T>(name: &str, value: &str, call: impl FnOnce() -> T) -> T {
    let Ok(entry) = CString::new(format!("{name}={value}")) else {
        return call();
    };
    let is_it = |text: *mut c_char| {
        // SAFETY: entries are C strings.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        text.strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&b'='))
    };
    // SAFETY: a word of the C library, of which the address is taken.
    let place = unsafe { AtomicPtr::from_ptr(&raw mut environ) };
    let entry = entry.into_raw();
    let (before, ours) = loop {
        let before = place.load(Acquire);
        let mut entries = Vec::new();
        let mut at = before;
        // SAFETY: null, or an array of pointers that ends with a null pointer.
        while let Some(text) = unsafe { at.as_ref() }.filter(|text| !text.is_null()) {
            entries.extend(Some(*text).filter(|text| !is_it(*text)));
            at = at.wrapping_add(1);
        }
        entries.extend([entry, null_mut()]);
        let ours = entries.leak().as_mut_ptr();
        // Another thread may have added a variable meanwhile.
        if place.compare_exchange(before, ours, AcqRel, Relaxed).is_ok() {
            break (before, ours);
        }
    };
    let answer = call();
    // What another thread has put there since stays.
    let _ = place.compare_exchange(ours, before, AcqRel, Relaxed);
    answer
}

/// Returns whether this process still has a thread with that id. See tgkill(2): signal 0 only checks.
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

/// Returns the time of `CLOCK_MONOTONIC`, nanoseconds, which the daemon reads too. See clock_gettime(2).
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for what it writes.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + rest.unwrap_or(0)
}

/// Makes short sleeps of the calling thread precise. See PR_SET_TIMERSLACK in prctl(2).
pub(crate) fn sleep_precisely() {
    // SAFETY: a number, for the calling thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0) };
}

/// Returns a socket pair: bytes that [`post`] sends on one end wake [`poll`] on the other, and each end sees
/// when the other closes.
pub(crate) fn line() -> io::Result<[OwnedFd; 2]> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(failed("socketpair"));
    }
    // SAFETY: just opened and not owned elsewhere.
    Ok(ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
}

/// Sends a wake-up; a full socket has one pending already.
pub(crate) fn post(end: RawFd) {
    send(end, &[1]);
}

/// Sends a packet if there is room for it. Any thread of the program may call this: the system call is made
/// directly, because sendmsg(2) of the C library is a cancellation point. It is also the one that the
/// registration needs, so that it is permitted wherever that is.
pub(crate) fn send(socket: RawFd, bytes: &[u8]) {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all zeroes is an empty header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header names the bytes and no address; all of them outlive the call.
    unsafe { libc::syscall(libc::SYS_sendmsg, socket, &raw const header, flags) };
}

/// Reads all pending wake-ups.
pub(crate) fn hear(end: RawFd) {
    let mut byte = 0_u8;
    // SAFETY: room for a byte. The socket does not block.
    while unsafe { libc::read(end, (&raw mut byte).cast(), 1) } == 1 {}
}

/// Sleeps while `word` holds `expected`, for `longest` at most. Also returns on a signal. See futex(2).
///
/// Usable on read-only shared mappings that another process wakes: hence without `FUTEX_PRIVATE_FLAG`.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, longest: Duration) {
    let timeout = timespec(longest);
    // SAFETY: the word stays mapped, since it is borrowed; the kernel only reads it and the timeout.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
        )
    };
    if answer != 0 && is_refusal(&io::Error::last_os_error()) {
        std::thread::sleep(longest.min(UNPOLLED));
    }
}

/// Returns whether an error means that the system refuses the call, and will again: a seccomp filter, a
/// security module, or a kernel that lacks it.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    let refusals = [
        libc::EPERM,
        libc::EACCES,
        libc::ENOSYS,
        libc::EINVAL,
        libc::EOPNOTSUPP,
        libc::EAFNOSUPPORT,
    ];
    errno(error).is_some_and(|number| refusals.contains(&number))
}

/// Wakes all threads that wait on `word`.
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

/// Waits until one of `descriptors` is readable or `longest` has passed. Returns which are readable. Without
/// any descriptor it sleeps.
pub(crate) fn poll<const N: usize>(descriptors: [Option<RawFd>; N], longest: Option<Duration>) -> [bool; N] {
    let mut entries = descriptors.map(|fd| libc::pollfd {
        fd: fd.unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    });
    // The kernel writes there how much is left.
    let mut timeout = longest.map(timespec);
    let timeout = timeout.as_mut().map_or(null_mut(), std::ptr::from_mut);
    // SAFETY: N entries, and a timeout or none, that outlive the call.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), N as libc::nfds_t, timeout, null()) };
    if ready < 0 && is_refusal(&io::Error::last_os_error()) {
        // EINVAL: more entries than RLIMIT_NOFILE allows: a program can set that to 0.
        std::thread::sleep(longest.unwrap_or(UNPOLLED).min(UNPOLLED));
        return descriptors.map(|fd| fd.is_some());
    }
    entries.map(|entry| ready > 0 && entry.revents != 0)
}

/// Longest sleep where descriptors cannot be polled.
const UNPOLLED: Duration = Duration::from_millis(10);

const MEMBARRIER_CMD_GLOBAL: c_int = 1;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: c_int = 8;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: c_int = 16;

fn membarrier(command: c_int) -> bool {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Returns whether the calling thread is the only one of the process, as far as can be told.
pub(crate) fn is_single_threaded() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // The directory's own two links, and one of each thread.
    std::fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == 3)
}

/// Makes [`barrier`] fast for this process; exec undoes it, fork keeps it. Fast in a process with one thread;
/// otherwise the kernel waits for a grace period of RCU.
pub(crate) fn register_barrier() {
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

/// Executes a full memory barrier on every running thread of this process.
///
/// Where membarrier(2) is refused (old kernels, seccomp), a page's write permission is removed: the kernel
/// must then interrupt every processor that runs the process to flush the translation.
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

/// Writes one line to standard error, and to the log. Not `eprintln`, whose lock may be held in a forked
/// child.
pub(crate) fn complain(line: &str) {
    log::line(|| line.to_owned());
    let text = format!("gcgroup: {line}\n");
    // SAFETY: the text outlives the call.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Returns how many bytes of the calling thread's stack are left; `None` if that cannot be told, or if the
/// caller runs on another stack.
pub(crate) fn stack_left() -> Option<usize> {
    // SAFETY: takes nothing, cannot fail.
    if gettid() == unsafe { libc::getpid() }.cast_unsigned() {
        return first_stack_left();
    }
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut lowest, mut size) = (null_mut::<c_void>(), 0);
    // SAFETY: the first call initialises the structure if it succeeds; it is destroyed once, and not used
    // after.
    let is_known = unsafe {
        libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
            let error = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            error == 0
        }
    };
    // A coroutine runs on a stack of its own, somewhere else in memory.
    let left = std::ptr::from_ref(&size).addr().checked_sub(lowest.addr());
    left.filter(|left| is_known && *left < size)
}

/// Returns [`stack_left`] in the process's first thread, for which the C library reads all of
/// `/proc/self/maps`.
fn first_stack_left() -> Option<usize> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for what it writes, and a number.
    let (is_known, top) = unsafe {
        (
            libc::prlimit(0, libc::RLIMIT_STACK, std::ptr::null(), &raw mut limit) == 0,
            libc::getauxval(libc::AT_RANDOM),
        )
    };
    let top = usize::try_from(top).ok()?;
    // The kernel places nothing else within 128 MiB of the stack's top, where these bytes are.
    let size = usize::try_from(limit.rlim_cur)
        .unwrap_or(usize::MAX)
        .min(FIRST_STACK);
    let used = top.checked_sub(std::ptr::from_ref(&limit).addr())?;
    size.checked_sub(used).filter(|_| is_known)
}

/// Largest part of the first thread's stack that is relied on, bytes.
const FIRST_STACK: usize = 8 << 20;

/// Starts a detached thread with every signal blocked, since signals are for the program's own threads.
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
    // SAFETY: each structure is initialised by the first call that takes it and used after; the mask is put
    // back.
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
    let call = "pthread_create";
    Err(io::Error::other(Failed { call, errno: error }))
}

/// Stack size, bytes: room for the driver's frames and for other libraries' thread-local data, which the C
/// library places there.
const STACK: usize = 512 * 1024;

/// Registers `child` to run in every child that fork(3) makes.
pub(crate) fn on_fork(child: unsafe extern "C" fn()) {
    // SAFETY: a function of a library that is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Registers `handler` to run when the program exits normally, before all handlers registered earlier.
pub(crate) fn on_exit(handler: extern "C" fn()) {
    // SAFETY: a function of a library that is never unloaded.
    unsafe { libc::atexit(handler) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_thread_is_not_alive() {
        assert!(is_thread_alive(gettid()));
        let gone = std::thread::spawn(gettid).join().unwrap();
        // The kernel may remove the thread slightly after join returns.
        while is_thread_alive(gone) {
            std::thread::yield_now();
        }
    }
}
