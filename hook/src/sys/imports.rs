//! Functions of the C library in versions that glibc 2.28 has too.
//!
//! The linker takes the newest version of a function. Glibc 2.34 moved those of libpthread and libdl into
//! libc and gave them a new version, glibc 2.33 made functions of `stat`, and glibc 2.30 `gettid`.
//! `scripts/build.sh` links the library so that calls of `NAME`, those of Rust's standard library too, go
//! to `__wrap_NAME`, which is defined here (`--wrap` of ld(1), options in `../../imports.options`). In any
//! other build these definitions are unused.

use std::ffi::{c_char, c_int};

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
