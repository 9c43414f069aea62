//! Assembly for AArch64 and the procedure call standard of Arm (AAPCS64).
//!
//! No function of the table takes floating-point arguments, so the argument registers are x0 to x7, and x8
//! for a result in memory. x16 and x17 may be changed by any call ("IP0" and "IP1").

use core::arch::naked_asm;
use core::sync::atomic::AtomicBool;

/// Returns the offset of a thread's `Local` from its thread pointer.
#[unsafe(naked)]
pub(crate) extern "C" fn thread_offset() -> isize {
    naked_asm!(
        ".cfi_startproc",
        "adrp x0, :gottprel:gcgroup_local",
        "ldr x0, [x0, :gottprel_lo12:gcgroup_local]",
        "ret",
        ".cfi_endproc"
    )
}

/// Returns the slot that threads start with.
#[unsafe(naked)]
pub(crate) extern "C" fn unbound() -> *mut gcgroup_abi::Entrance {
    naked_asm!(
        ".cfi_startproc",
        "adrp x0, gcgroup_unbound",
        "add x0, x0, :lo12:gcgroup_unbound",
        "ret",
        ".cfi_endproc"
    )
}

/// Returns the addresses that the loader has filled in.
#[unsafe(naked)]
pub(crate) extern "C" fn links() -> *const super::Links {
    naked_asm!(
        ".cfi_startproc",
        "adrp x0, gcgroup_links",
        "add x0, x0, :lo12:gcgroup_links",
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
                "stp x0, x1, [sp, -32]!",
                ".cfi_def_cfa_offset 32",
                "stp x2, x30, [sp, 16]",
                ".cfi_offset x30, -8",
                concat!("mov ", $caller, ", x30"),
                "bl {verdict}",
                "mov x16, x0",
                "mov x17, x1",
                "ldp x2, x30, [sp, 16]",
                "ldp x0, x1, [sp], 32",
                ".cfi_restore x30",
                ".cfi_def_cfa_offset 0",
                "cbz x17, 2f",
                "br x16",
                "2:",
                "mov x0, x16",
                "ret",
                ".cfi_endproc",
                verdict = sym $verdict,
            )
        }
    };
}

look_up!(dlsym, "x2", crate::dlsym_verdict);
look_up!(dlvsym, "x3", crate::dlvsym_verdict);
look_up!(dlopen, "x2", crate::dlopen_verdict);
look_up!(dlmopen, "x3", crate::dlmopen_verdict);

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
                concat!("adrp x16, .Lto_", stringify!($name)),
                concat!("ldr x17, [x16, :lo12:.Lto_", stringify!($name), "]"),
                "br x17",
                concat!(".Lresolve_", stringify!($name), ":"),
                concat!("add x16, x16, :lo12:.Lto_", stringify!($name)),
                concat!("mov w17, ", $index),
                "b {resolve}",
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

/// Handles the first call of a stub: gets the address, with all arguments kept, and jumps there. Takes the
/// stub's pointer in `x16` and its index in `w17`.
#[unsafe(naked)]
pub(crate) extern "C" fn resolve() {
    naked_asm!(
        ".cfi_startproc",
        "stp x0, x1, [sp, -80]!",
        ".cfi_def_cfa_offset 80",
        "stp x2, x3, [sp, 16]",
        "stp x4, x5, [sp, 32]",
        "stp x6, x7, [sp, 48]",
        "stp x8, x30, [sp, 64]",
        ".cfi_offset x30, -8",
        "mov w0, w17",
        "mov x1, x16",
        "bl {destination}",
        "mov x16, x0",
        "ldp x8, x30, [sp, 64]",
        "ldp x6, x7, [sp, 48]",
        "ldp x4, x5, [sp, 32]",
        "ldp x2, x3, [sp, 16]",
        "ldp x0, x1, [sp], 80",
        ".cfi_restore x30",
        ".cfi_def_cfa_offset 0",
        "br x16",
        ".cfi_endproc",
        destination = sym crate::destination,
    )
}

pub(super) const SYS_WRITEV: isize = 66;

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
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            options(nostack),
        );
    }
    result
}

/// Sets a flag; returns whether it was set before. In assembly, because the compiler calls functions for
/// atomic updates that a constructor prepares, and this library has none.
pub(crate) fn set(flag: &AtomicBool) -> bool {
    let before: u32;
    // SAFETY: an atomic byte that outlives the loop, which ends when no other access comes between load and
    // store. A `bool` is 0 or 1.
    unsafe {
        core::arch::asm!(
            "2:",
            "ldxrb {before:w}, [{flag}]",
            "stxrb {failed:w}, {one:w}, [{flag}]",
            "cbnz {failed:w}, 2b",
            flag = in(reg) flag.as_ptr(),
            one = in(reg) 1_u32,
            before = out(reg) before,
            failed = out(reg) _,
            options(nostack),
        );
    }
    before != 0
}
