//! Functions in place of those of the C library: in versions that glibc 2.28 has too, and system calls that
//! no other library can replace.
//!
//! A program, a sanitizer or another preloaded library may define functions such as `clock_gettime`, `open`
//! or `mmap`, which then stand still (libfaketime), fail, or report the hook's own memory as uninitialised.
//! The hook makes its system calls itself. `../../IMPORTS.md` lists the functions that remain.
//!
//! The linker takes the newest version of a function. Glibc 2.34 moved those of libpthread and libdl into
//! libc and gave them a new version, glibc 2.33 made functions of `stat`, and glibc 2.30 `gettid`.
//! `scripts/build.sh` links the library so that calls of `NAME`, those of Rust's standard library too, go
//! to `__wrap_NAME`, which is defined here (`--wrap` of ld(1), options in `../../imports.options`). In any
//! other build these definitions are unused.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::arch;

/// Defines a function that the linker takes in place of the C library's.
macro_rules! wrap_text {
    ($name:ident) => {
        concat!(
            ".hidden __wrap_",
            stringify!($name),
            "\n.globl __wrap_",
            stringify!($name),
            "\n",
            ".type __wrap_",
            stringify!($name),
            ", %function\n__wrap_",
            stringify!($name),
            ":"
        )
    };
}

pub(crate) use wrap_text;

macro_rules! imports {
    ($($name:ident)*) => {
        core::arch::global_asm!(".text", $( wrap_text!($name), arch::import_text!($name), )*);
    };
}

imports! {
    __pthread_key_create dladdr dlerror pthread_attr_getstack pthread_attr_setstacksize pthread_create
    pthread_getattr_np pthread_getspecific pthread_key_create pthread_key_delete pthread_once
    pthread_setname_np pthread_setspecific pthread_sigmask
}

/// Defines functions that make a system call, set `errno` and are no cancellation points.
macro_rules! system_calls {
    ($($name:ident = $number:ident)*) => {
        core::arch::global_asm!(
            ".text",
            $( wrap_text!($name), arch::system_call_text!(), )*
            $( const libc::$number, )*
        );
    };
}

system_calls! {
    close = SYS_close
    connect = SYS_connect
    fcntl = SYS_fcntl
    ftruncate = SYS_ftruncate
    getpid = SYS_getpid
    getppid = SYS_getppid
    getsockopt = SYS_getsockopt
    madvise = SYS_madvise
    memfd_create = SYS_memfd_create
    mmap = SYS_mmap
    mmap64 = SYS_mmap
    mprotect = SYS_mprotect
    mremap = SYS_mremap
    munmap = SYS_munmap
    ppoll = SYS_ppoll
    prctl = SYS_prctl
    prlimit = SYS_prlimit64
    read = SYS_read
    recvmsg = SYS_recvmsg
    sched_yield = SYS_sched_yield
    sendmsg = SYS_sendmsg
    setsockopt = SYS_setsockopt
    socket = SYS_socket
    socketpair = SYS_socketpair
    write = SYS_write
    writev = SYS_writev
}

core::arch::global_asm!(
    ".text",
    wrap_text!(syscall),
    arch::syscall_text!(),
    fail = sym fail
);

core::arch::global_asm!(
    ".text",
    wrap_text!(clock_gettime),
    arch::go_text!(),
    wrap_text!(clock_nanosleep),
    arch::go_text!(),
    wrap_text!(open64),
    arch::go_text!(),
    sym clock_gettime,
    sym clock_nanosleep,
    sym open64
);

/// Sets `errno` to the negated result of a failed system call.
extern "C" fn fail(result: isize) -> isize {
    let errno = c_int::try_from(result.wrapping_neg()).unwrap_or(libc::EINVAL);
    // SAFETY: the calling thread's own word.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The C library's own `clock_gettime`, which makes no system call; null: not known.
static CLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Takes the address of the C library's own `clock_gettime`.
pub(crate) fn set_clock(address: *mut c_void) {
    CLOCK.store(address, Relaxed);
}

/// Does what clock_gettime(2) does.
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    type Clock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;
    // SAFETY: null or a function of this name.
    let own = unsafe { std::mem::transmute::<*mut c_void, Option<Clock>>(CLOCK.load(Relaxed)) };
    match own {
        // SAFETY: the caller's own arguments.
        Some(own) => unsafe { own(clock, time) },
        // SAFETY: the caller's own arguments.
        None if unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } == 0 => 0,
        None => -1,
    }
}

/// Does what clock_nanosleep(2) does: returns the number of an error.
unsafe extern "C" fn clock_nanosleep(
    clock: libc::clockid_t,
    flags: c_int,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> c_int {
    // SAFETY: the caller's own arguments.
    match unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left) } {
        0 => 0,
        _ => std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL),
    }
}

/// Does what open(2) does. The mode is read where the flags need it.
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let flags = flags | libc::O_LARGEFILE;
    // SAFETY: the caller's own arguments.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) };
    c_int::try_from(file).unwrap_or(-1)
}

core::arch::global_asm!(
    ".text",
    wrap_text!(stat),
    wrap_text!(stat64),
    arch::go_text!(),
    wrap_text!(fstat),
    wrap_text!(fstat64),
    arch::go_text!(),
    wrap_text!(gettid),
    arch::go_text!(),
    sym stat,
    sym fstat,
    sym gettid
);

/// Does what gettid(2) does.
extern "C" fn gettid() -> u32 {
    super::gettid()
}

/// Does what stat(2) does. The kernel's structure is that of the C library.
unsafe extern "C" fn stat(path: *const c_char, result: *mut libc::stat) -> c_int {
    // SAFETY: the caller's own arguments.
    let answer = unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, result, 0) };
    if answer == 0 { 0 } else { -1 }
}

/// Does what fstat(2) does.
unsafe extern "C" fn fstat(fd: c_int, result: *mut libc::stat) -> c_int {
    // SAFETY: the caller's own arguments.
    let answer = unsafe { libc::syscall(libc::SYS_fstat, fd, result) };
    if answer == 0 { 0 } else { -1 }
}
