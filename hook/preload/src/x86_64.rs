//! Assembly for x86-64 and the System V calling convention.
//!
//! No function of the table takes floating-point arguments, so the argument registers are the six integer
//! ones.

use core::arch::{global_asm, naked_asm};
use core::ffi::{CStr, c_int, c_void};

use crate::complaint::Part;

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

/// Returns the offset of a thread's `Local` from its thread pointer.
#[unsafe(naked)]
pub(crate) extern "C" fn thread_offset() -> isize {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, qword ptr [rip + gcgroup_local@GOTTPOFF]",
        "ret",
        ".cfi_endproc"
    )
}

/// Returns the slot that threads start with.
#[unsafe(naked)]
pub(crate) extern "C" fn unbound() -> *mut gcgroup_abi::Entrance {
    naked_asm!(
        ".cfi_startproc",
        "lea rax, [rip + gcgroup_unbound]",
        "ret",
        ".cfi_endproc"
    )
}

/// Returns the C library's `dl_iterate_phdr`, or null: a weak reference never prevents a program from
/// starting.
#[unsafe(naked)]
pub(crate) extern "C" fn dl_iterate_phdr() -> *const c_void {
    naked_asm!(
        ".cfi_startproc",
        ".weak dl_iterate_phdr",
        "mov rax, qword ptr [rip + dl_iterate_phdr@GOTPCREL]",
        "ret",
        ".cfi_endproc"
    )
}

/// Result of a look-up.
#[repr(C)]
pub(crate) struct Verdict {
    /// The answer, or the function to jump to.
    pub(crate) address: *mut c_void,
    /// Nonzero: jump to `address`, with the original arguments and the caller's return address on top of the
    /// stack, by which the C library knows for which object `RTLD_NEXT` and `RTLD_DEFAULT` are meant.
    pub(crate) is_jump: usize,
}

/// Calls `$verdict` with the arguments and the return address (`$caller`).
macro_rules! look_up {
    ($name:ident, $caller:literal, $verdict:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                ".irp register, rdi, rsi, rdx",
                "push \\register",
                ".cfi_adjust_cfa_offset 8",
                ".endr",
                concat!("mov ", $caller, ", qword ptr [rsp + 24]"),
                "call {verdict}",
                "mov r8, rdx",
                ".irp register, rdx, rsi, rdi",
                "pop \\register",
                ".cfi_adjust_cfa_offset -8",
                ".endr",
                "test r8, r8",
                "jz 2f",
                "jmp rax",
                "2:",
                "ret",
                ".cfi_endproc",
                verdict = sym $verdict,
            )
        }
    };
}

look_up!(dlsym, "rdx", crate::dlsym_verdict);
look_up!(dlvsym, "rcx", crate::dlvsym_verdict);

/// Defines an exported driver symbol: a jump through a pointer, which leads to `resolve` until that has
/// replaced it.
macro_rules! stub {
    ($name:ident, $index:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "the driver's spelling")]
        pub extern "C" fn $name() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                concat!("jmp qword ptr [rip + .Lto_", stringify!($name), "]"),
                concat!(".Lresolve_", stringify!($name), ":"),
                concat!("lea r10, [rip + .Lto_", stringify!($name), "]"),
                concat!("mov eax, ", $index),
                "jmp {resolve}",
                ".cfi_endproc",
                ".pushsection .data.gcgroup_to, \"aw\", @progbits",
                ".balign 8",
                concat!(".Lto_", stringify!($name), ":"),
                concat!(".quad .Lresolve_", stringify!($name)),
                ".popsection",
                resolve = sym $crate::arch::resolve,
            )
        }
    };
}

pub(crate) use stub;

/// Handles the first call of a stub: gets the address, with all arguments kept, and jumps there.
#[unsafe(naked)]
pub(crate) extern "C" fn resolve() {
    naked_asm!(
        ".cfi_startproc",
        ".irp register, rdi, rsi, rdx, rcx, r8, r9, r9",
        "push \\register",
        ".cfi_adjust_cfa_offset 8",
        ".endr",
        "mov edi, eax",
        "mov rsi, r10",
        "call {destination}",
        ".irp register, r9, r9, r8, rcx, rdx, rsi, rdi",
        "pop \\register",
        ".cfi_adjust_cfa_offset -8",
        ".endr",
        "jmp rax",
        ".cfi_endproc",
        destination = sym crate::destination,
    )
}

const SYS_CLOSE: isize = 3;
const SYS_WRITEV: isize = 20;
const SYS_OPENAT: isize = 257;
const AT_FDCWD: isize = -100;
const STDERR: isize = 2;

/// Makes a system call; returns its result, or the negative errno. Not through the C library, which may be
/// any.
///
/// # Safety
/// As for the system call.
unsafe fn system_call(number: isize, arguments: [isize; 3]) -> isize {
    let result;
    // SAFETY: the calling convention of the kernel; the caller vouches for the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

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

/// Writes to standard error, in one piece.
pub(crate) fn write_error(parts: &[Part]) {
    let (start, count) = (parts.as_ptr().expose_provenance(), parts.len());
    // SAFETY: descriptions of texts, all of which outlive the call.
    unsafe { system_call(SYS_WRITEV, [STDERR, start.cast_signed(), count.cast_signed()]) };
}
