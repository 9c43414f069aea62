//! Assembly for x86-64 and the System V calling convention.
//!
//! No function of the table takes floating-point arguments, so the argument registers are the six integer
//! ones.

use core::arch::naked_asm;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

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

/// Returns the addresses that the loader has filled in.
#[unsafe(naked)]
pub(crate) extern "C" fn links() -> *const super::Links {
    naked_asm!(
        ".cfi_startproc",
        "lea rax, [rip + gcgroup_links]",
        "ret",
        ".cfi_endproc"
    )
}

/// Calls `$verdict` with the arguments and the return address (`$caller`).
macro_rules! look_up {
    ($name:ident, $caller:literal, $verdict:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                concat!(".hidden gcgroup_own_", stringify!($name)),
                concat!(".globl gcgroup_own_", stringify!($name)),
                concat!("gcgroup_own_", stringify!($name), ":"),
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
look_up!(dlopen, "rdx", crate::dlopen_verdict);
look_up!(dlmopen, "rcx", crate::dlmopen_verdict);

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

pub(super) const SYS_WRITEV: isize = 20;

/// Makes a system call; returns its result, or the negative errno. Not through the C library, which may be
/// any.
///
/// # Safety
/// As for the system call.
pub(super) unsafe fn system_call(number: isize, arguments: [isize; 3]) -> isize {
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

/// Sets a flag; returns whether it was set before.
pub(crate) fn set(flag: &AtomicBool) -> bool {
    flag.swap(true, Relaxed)
}
