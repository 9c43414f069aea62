//! Assembly and system call numbers of each processor, and the data that threads start with.

use core::arch::global_asm;
use core::ffi::{c_char, c_int, c_void};

#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
mod processor;

use processor::{SYS_WRITEV, system_call};
pub(crate) use processor::{links, resolve, set, stub, thread_offset, unbound};

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

// What the loader fills in (`Links`): symbols of the dynamic linker, by weak references, which never prevent
// a program from starting; the definition of `dlsym` that the program is bound to; and this library's own.
global_asm!(
    ".pushsection .data.gcgroup_links, \"aw\", @progbits",
    ".hidden gcgroup_links",
    ".globl gcgroup_links",
    ".weak _r_debug",
    ".weak _dl_debug_addr",
    ".balign 8",
    "gcgroup_links:",
    ".quad _r_debug",
    ".quad _dl_debug_addr",
    ".quad dlsym",
    ".quad gcgroup_own_dlsym",
    ".quad gcgroup_own_dlvsym",
    ".quad gcgroup_own_dlopen",
    ".quad gcgroup_own_dlmopen",
    ".popsection",
);

/// Addresses that the loader fills in.
#[repr(C)]
pub(crate) struct Links {
    /// glibc's debugger interface, which begins the list of loaded objects; null with another C library.
    pub(crate) debug: *const Debug,
    /// musl's pointer to the same; null with another C library.
    pub(crate) debug_pointer: *const *const Debug,
    /// The `dlsym` that the program calls: the first definition.
    pub(crate) first_dlsym: *mut c_void,
    /// This library's functions, in the order of `shadowed::Function`.
    pub(crate) own: [*mut c_void; 4],
}

/// The beginning of `struct r_debug`.
#[repr(C)]
pub(crate) struct Debug {
    version: c_int,
    pub(crate) first: *const LinkMap,
}

/// The beginning of `struct link_map`.
#[repr(C)]
pub(crate) struct LinkMap {
    pub(crate) base: usize,
    pub(crate) file: *const c_char,
    pub(crate) dynamic: usize,
    pub(crate) next: *const Self,
}

/// Result of a look-up.
#[repr(C)]
pub(crate) struct Verdict {
    /// The answer, or the function to jump to.
    pub(crate) address: *mut c_void,
    /// Nonzero: jump to `address`, with the original arguments and the caller's return address, by which the
    /// C library knows for which object `RTLD_NEXT` and `RTLD_DEFAULT` are meant.
    pub(crate) is_jump: usize,
}

const STDERR: isize = 2;

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
