//! AArch64 with the procedure call standard of Arm (AAPCS64) as on Linux.

/// Number of integer arguments in registers.
pub(crate) const REGISTERS: usize = 8;

/// Returns the position of argument `index` among the words that a submission at a closed gate has pushed:
/// registers 0 to 8, two return addresses and a word for alignment, then the arguments on the stack.
pub(crate) const fn pushed(index: usize) -> usize {
    match index {
        0..REGISTERS => index,
        _ => index + 4,
    }
}

/// Returns the calling thread's thread pointer, to which offsets of thread-local data are added.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register that every thread may read.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, pure, nomem));
    }
    pointer
}

/// Calls the driver with every argument; leaves the return address and the address of the thread's exit
/// counters on the stack.
macro_rules! call_text {
    () => {
        concat!(
            "ldr x17, [x16, {thread}]\n",
            "stp x30, x17, [sp, -16]!\n",
            ".cfi_def_cfa_offset 16\n",
            ".cfi_offset x30, -16\n",
            // The words on the stack are copied in pairs, since the stack pointer must be a multiple of 16.
            // The second word of the last pair may belong to the caller's frame.
            ".rept ({words} + 1) / 2\n",
            "ldp x16, x17, [sp, 16 * (({words} + 1) / 2)]\n",
            "stp x16, x17, [sp, -16]!\n",
            ".cfi_adjust_cfa_offset 16\n",
            ".endr\n",
            "adrp x16, {real}\n",
            "ldr x16, [x16, :lo12:{real}]\n",
            "blr x16\n",
            ".if {words}\n",
            "add sp, sp, 16 * (({words} + 1) / 2)\n",
            ".cfi_def_cfa_offset 16\n",
            ".endif",
        )
    };
}

/// Passes a submission on. If the gate was not open, or if the driver has returned an error, calls
/// `finish(call, result)` before the exit is counted. A signal handler of the program may submit too: after a
/// signal an exclusive store fails, and the increment is repeated. x16 and x17 may be changed by any call
/// (AAPCS64, "IP0" and "IP1").
///
/// The store that counts the exit is a release, so that a reader of the count sees what the driver has
/// stored. Entry and gate are ordered by the thread that drains (`gcgroup_abi::Entrance`).
macro_rules! submission_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "mrs x16, tpidr_el0",
            "adrp x17, {offset}",
            "ldr x17, [x17, :lo12:{offset}]",
            "ldr x16, [x16, x17]",
            "add x16, x16, {entered}",
            "4:",
            "ldxr x17, [x16]",
            "add x17, x17, 1",
            "stxr w9, x17, [x16]",
            "cbnz w9, 4b",
            "sub x16, x16, {entered}",
            "ldr x17, [x16]",
            "ldr w17, [x17]",
            "cbnz w17, 3f",
            $crate::arch::call_text!(),
            "cbnz w0, 6f",
            "2:",
            "ldp x30, x17, [sp], 16",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "add x17, x17, {exited}",
            "5:",
            "ldxr x16, [x17]",
            "add x16, x16, 1",
            "stlxr w9, x16, [x17]",
            "cbnz w9, 5b",
            "ret",
            "3:",
            "str x30, [sp, -16]!",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset x30, -16",
            "movz w9, {call} & 0xffff",
            "movk w9, {call} >> 16, lsl 16",
            "bl {closed}",
            "ldr x30, [sp], 16",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            $crate::arch::call_text!(),
            "6:",
            "str x0, [sp, -16]!",
            ".cfi_adjust_cfa_offset 16",
            "mov w1, w0",
            "movz w0, {call} & 0xffff",
            "movk w0, {call} >> 16, lsl 16",
            "bl {finish}",
            "ldr x0, [sp], 16",
            ".cfi_adjust_cfa_offset -16",
            "b 2b",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

/// Calls `admit(call, arguments)` with every argument preserved. Takes the call's description in `w9`;
/// returns the entrance to use in `x16`.
macro_rules! admit_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x0, x1, [sp, -80]!",
            ".cfi_def_cfa_offset 80",
            "stp x2, x3, [sp, 16]",
            "stp x4, x5, [sp, 32]",
            "stp x6, x7, [sp, 48]",
            "stp x8, x30, [sp, 64]",
            ".cfi_offset x30, -8",
            "mov w0, w9",
            "mov x1, sp",
            "bl {admit}",
            "mov x16, x0",
            "ldp x8, x30, [sp, 64]",
            "ldp x6, x7, [sp, 48]",
            "ldp x4, x5, [sp, 32]",
            "ldp x2, x3, [sp, 16]",
            "ldp x0, x1, [sp], 80",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

/// Bytes of a stub of `stubs_text`: two instructions.
pub(crate) const STUB_BYTES: usize = 8;

/// `count` stubs, one for each hooked function whose first call is traced. Each jumps to `traced` with its
/// own end in `x16`.
macro_rules! stubs_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(".rept {count}", "adr x16, . + 8", "b {traced}", ".endr", $($operands)*)
    };
}

/// Calls `called(end of the stub)` with every argument preserved and jumps to the address that it returns.
macro_rules! traced_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "stp x0, x1, [sp, -80]!",
            ".cfi_def_cfa_offset 80",
            "stp x2, x3, [sp, 16]",
            "stp x4, x5, [sp, 32]",
            "stp x6, x7, [sp, 48]",
            "stp x8, x30, [sp, 64]",
            ".cfi_offset x30, -8",
            "mov x0, x16",
            "bl {called}",
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
            $($operands)*
        )
    };
}

/// Calls `call(data)`; returns its result in `x1` and 0 in `x0`.
macro_rules! stop_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            // 0x1b: relative address in four bytes.
            ".cfi_personality 0x1b, {personality}",
            "stp x29, x30, [sp, -16]!",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset x29, -16",
            ".cfi_offset x30, -8",
            "mov x29, sp",
            "mov x8, x0",
            "mov x0, x1",
            "blr x8",
            "mov w1, w0",
            "mov x0, 0",
            "ldp x29, x30, [sp], 16",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

/// Continues in the frame of `stop_text` after an unwinding, with the exception in register 0 (`x0`): returns
/// `CUDA_ERROR_UNKNOWN` in `x1`.
macro_rules! landed_text {
    () => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset x29, -16",
            ".cfi_offset x30, -8",
            "mov w1, 999",
            "ldp x29, x30, [sp], 16",
            ".cfi_restore x29",
            ".cfi_restore x30",
            ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
        )
    };
}

/// A jump to the function of the C library in the version that glibc 2.28 has too.
macro_rules! import_text {
    ($name:ident) => {
        concat!(
            ".symver gcgroup_import_",
            stringify!($name),
            ", ",
            stringify!($name),
            "@GLIBC_2.17\n",
            "adrp x16, :got:gcgroup_import_",
            stringify!($name),
            "\n",
            "ldr x16, [x16, :got_lo12:gcgroup_import_",
            stringify!($name),
            "]\n",
            "br x16"
        )
    };
}

/// A function that makes the system call whose number is the only operand.
macro_rules! system_call_text {
    () => {
        "mov x8, {}\nb gcgroup_system_call"
    };
}

/// `syscall` of the C library, and the end of all system calls.
macro_rules! syscall_text {
    () => {
        "mov x8, x0
         mov x0, x1
         mov x1, x2
         mov x2, x3
         mov x3, x4
         mov x4, x5
         mov x5, x6
         .hidden gcgroup_system_call
         .globl gcgroup_system_call
         gcgroup_system_call:
         svc 0
         cmn x0, 4095
         b.hs 2f
         ret
         2:
         b {fail}"
    };
}

/// A jump to the function that the only operand names.
macro_rules! go_text {
    () => {
        "b {}"
    };
}

/// A jump to the function whose address is at the symbol `gcgroup` and a name.
macro_rules! jump_text {
    ($name:ident) => {
        concat!(
            "adrp x16, gcgroup",
            stringify!($name),
            "\n",
            "ldr x16, [x16, :lo12:gcgroup",
            stringify!($name),
            "]\n",
            "br x16"
        )
    };
}

pub(crate) use {admit_text, call_text, landed_text, stop_text, stubs_text, submission_text, traced_text};
pub(crate) use {go_text, import_text, jump_text, syscall_text, system_call_text};
