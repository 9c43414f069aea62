//! x86-64 with the System V calling convention.

/// Number of integer arguments in registers.
pub(crate) const REGISTERS: usize = 6;

/// Returns the position of argument `index` among the words that a submission at a closed gate has pushed:
/// six registers from the last to the first, two return addresses, then the arguments on the stack.
pub(crate) const fn pushed(index: usize) -> usize {
    match index {
        0..REGISTERS => REGISTERS - 1 - index,
        _ => index + 2,
    }
}

/// Returns the calling thread's thread pointer, to which offsets of thread-local data are added.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads the first word of the thread control block, which the x86-64 ABI defines as its own
    // address.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, pure, readonly));
    }
    pointer
}

/// Calls the driver with every argument; leaves the address of the thread's exit counters on the stack.
macro_rules! call_text {
    () => {
        concat!(
            "push qword ptr [rax + {thread}]\n",
            ".cfi_adjust_cfa_offset 8\n",
            // The stack pointer must be a multiple of 16 at a call.
            ".if {words} & 1\n",
            "push rax\n",
            ".cfi_adjust_cfa_offset 8\n",
            ".endif\n",
            ".rept {words}\n",
            "push qword ptr [rsp + 8 * ({words} + ({words} & 1) + 1)]\n",
            ".cfi_adjust_cfa_offset 8\n",
            ".endr\n",
            "call qword ptr [rip + {real}]\n",
            ".if {words}\n",
            "add rsp, 8 * ({words} + ({words} & 1))\n",
            ".cfi_adjust_cfa_offset -8 * ({words} + ({words} & 1))\n",
            ".endif",
        )
    };
}

/// Passes a submission on. If the gate was not open, or if the driver has returned an error, calls
/// `finish(call, result)` before the exit is counted. Thirteen instructions with all arguments in registers;
/// one more for each word on the stack, and one to drop them. A signal handler of the program may submit too:
/// each increment is a single instruction, which no signal interrupts.
///
/// Stores are not reordered with each other, so the exit is counted after what the driver has stored.
macro_rules! submission_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "mov rax, qword ptr [rip + {offset}]",
            "mov rax, qword ptr fs:[rax]",
            "inc qword ptr [rax + {entered}]",
            "mov r11, qword ptr [rax]",
            "cmp dword ptr [r11], 0",
            "jne 3f",
            $crate::arch::call_text!(),
            "test eax, eax",
            "jne 4f",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "inc qword ptr [rcx + {exited}]",
            "ret",
            "3:",
            "mov eax, {call}",
            "call {closed}",
            $crate::arch::call_text!(),
            "4:",
            // Twice, because the stack pointer must be a multiple of 16 at a call.
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "mov edi, {call}",
            "mov esi, eax",
            "call {finish}",
            "pop rax",
            ".cfi_adjust_cfa_offset -8",
            "pop rax",
            ".cfi_adjust_cfa_offset -8",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "inc qword ptr [rcx + {exited}]",
            "ret",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

/// Calls `admit(call, arguments)` with every argument preserved. Takes the call's description in `eax`;
/// returns the entrance to use in `rax`.
macro_rules! admit_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            ".irp register, rdi, rsi, rdx, rcx, r8, r9",
            "push \\register",
            ".cfi_adjust_cfa_offset 8",
            ".endr",
            "mov edi, eax",
            "mov rsi, rsp",
            "call {admit}",
            ".irp register, r9, r8, rcx, rdx, rsi, rdi",
            "pop \\register",
            ".cfi_adjust_cfa_offset -8",
            ".endr",
            "ret",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

/// Bytes of a stub of `stubs_text`: a call.
pub(crate) const STUB_BYTES: usize = 5;

/// `count` stubs, one for each hooked function whose first call is traced. Each calls `traced` and never
/// continues.
macro_rules! stubs_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(".rept {count}", "call {traced}", ".endr", $($operands)*)
    };
}

/// Calls `called(end of the stub)` with every argument preserved and jumps to the address that it returns.
macro_rules! traced_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            ".cfi_adjust_cfa_offset 8",
            ".irp register, rdi, rsi, rdx, rcx, r8, r9",
            "push \\register",
            ".cfi_adjust_cfa_offset 8",
            ".endr",
            "mov rdi, qword ptr [rsp + 48]",
            "call {called}",
            ".irp register, r9, r8, rcx, rdx, rsi, rdi",
            "pop \\register",
            ".cfi_adjust_cfa_offset -8",
            ".endr",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "jmp rax",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

/// Calls `call(data)`; returns its result in `rdx` and 0 in `rax`.
macro_rules! stop_text {
    ($($operands:tt)*) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            // 0x1b: relative address in four bytes.
            ".cfi_personality 0x1b, {personality}",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "mov rax, rdi",
            "mov rdi, rsi",
            "call rax",
            "mov edx, eax",
            "xor eax, eax",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "ret",
            ".cfi_endproc",
            $($operands)*
        )
    };
}

/// Continues in the frame of `stop_text` after an unwinding, with the exception in register 0 (`rax`):
/// returns `CUDA_ERROR_UNKNOWN` in `rdx`.
macro_rules! landed_text {
    () => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            ".cfi_def_cfa_offset 16",
            "mov edx, 999",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "ret",
            ".cfi_endproc",
        )
    };
}

/// A jump to the function of the C library in the version that glibc 2.28 has too.
macro_rules! import_text {
    (pthread_setname_np) => {
        crate::arch::import_text!(pthread_setname_np, "GLIBC_2.12")
    };
    ($name:ident) => {
        crate::arch::import_text!($name, "GLIBC_2.2.5")
    };
    ($name:ident, $version:literal) => {
        concat!(
            ".symver gcgroup_import_",
            stringify!($name),
            ", ",
            stringify!($name),
            "@",
            $version,
            "\n",
            "jmp qword ptr [rip + gcgroup_import_",
            stringify!($name),
            "@GOTPCREL]"
        )
    };
}

/// A function that makes the system call whose number is the only operand.
macro_rules! system_call_text {
    () => {
        "mov eax, {}\nmov r10, rcx\njmp gcgroup_system_call"
    };
}

/// `syscall` of the C library, and the end of all system calls.
macro_rules! syscall_text {
    () => {
        "mov rax, rdi
         mov rdi, rsi
         mov rsi, rdx
         mov rdx, rcx
         mov r10, r8
         mov r8, r9
         mov r9, qword ptr [rsp + 8]
         .hidden gcgroup_system_call
         .globl gcgroup_system_call
         gcgroup_system_call:
         syscall
         cmp rax, -4095
         jae 2f
         ret
         2:
         mov rdi, rax
         jmp {fail}"
    };
}

/// A jump to the function that the only operand names.
macro_rules! go_text {
    () => {
        "jmp {}"
    };
}

/// A jump to the function whose address is at the symbol `gcgroup` and a name.
macro_rules! jump_text {
    ($name:ident) => {
        concat!("jmp qword ptr [rip + gcgroup", stringify!($name), "]")
    };
}

pub(crate) use {admit_text, call_text, landed_text, stop_text, stubs_text, submission_text, traced_text};
pub(crate) use {go_text, import_text, jump_text, syscall_text, system_call_text};
