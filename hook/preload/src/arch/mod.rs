//! Assembly and system call numbers of each processor, and the data that threads start with.

use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_int, c_void};

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod processor;

use processor::{SYS_CLOSE, SYS_OPENAT, SYS_WRITEV, system_call};
pub(crate) use processor::{dl_iterate_phdr, resolve, set, stub, thread_offset, unbound};

// Initial thread-local data (`gcgroup_abi::Local`): a slot (`gcgroup_abi::Entrance`) shared by all threads,
// with a closed gate, so that a thread's first submission asks the hook for its own slot. Set by relocation,
// since no code runs at the start of a thread.
global_asm!(
    ".pushsection .data.gcgroup_unbound, \"aw\", @progbits",
    ".hidden gcgroup_unbound",
    ".globl gcgroup_unbound",
    ".balign 128",
    "gcgroup_unbound:",
    ".quad gcgroup_closed",
    ".zero {slot} - 8",
    ".hidden gcgroup_closed",
    ".globl gcgroup_closed",
    "gcgroup_closed:",
    ".long 0xffffffff",
    ".long 0",
    ".popsection",
    ".pushsection .tdata.gcgroup_local, \"awT\", @progbits",
    ".hidden gcgroup_local",
    ".globl gcgroup_local",
    ".type gcgroup_local, @object",
    ".size gcgroup_local, {local}",
    ".balign 16",
    "gcgroup_local:",
    ".quad gcgroup_unbound",
    ".quad 0",
    ".popsection",
    slot = const size_of::<gcgroup_abi::Entrance>(),
    local = const size_of::<gcgroup_abi::Local>(),
);

/// Result of a look-up.
#[repr(C)]
pub(crate) struct Verdict {
    /// The answer, or the function to jump to.
    pub(crate) address: *mut c_void,
    /// Nonzero: jump to `address`, with the original arguments and the caller's return address, by which the
    /// C library knows for which object `RTLD_NEXT` and `RTLD_DEFAULT` are meant.
    pub(crate) is_jump: usize,
}

const AT_FDCWD: isize = -100;
const STDERR: isize = 2;

/// Opens a file and closes it; returns a negative errno if it cannot be opened.
pub(crate) fn try_open(path: &CStr, flags: c_int) -> isize {
    // SAFETY: a C string and flags; a descriptor that was just opened and is not owned elsewhere.
    unsafe {
        let file = system_call(
            SYS_OPENAT,
            [
                AT_FDCWD,
                path.as_ptr().expose_provenance().cast_signed(),
                flags as isize,
            ],
        );
        if file >= 0 {
            system_call(SYS_CLOSE, [file, 0, 0]);
        }
        file
    }
}

/// `struct iovec`.
#[repr(C)]
pub(crate) struct Part {
    pub(crate) start: *const c_char,
    pub(crate) length: usize,
}

/// Writes to standard error, in one piece.
pub(crate) fn write_error(parts: &[Part]) {
    let (start, count) = (parts.as_ptr().expose_provenance(), parts.len());
    // SAFETY: descriptions of texts, all of which outlive the call.
    unsafe { system_call(SYS_WRITEV, [STDERR, start.cast_signed(), count.cast_signed()]) };
}
