//! The path of a submission: mark, look at the gate, call the driver, mark. Everything else is in `gate`.
//!
//! A thread that is in the driver with a submission can be told by its marks (`Thread::submissions`): whoever has
//! closed the gate and then made every core see it (`membarrier`) knows that a thread whose marks agree submits
//! nothing more. Hence two marks, and so a call and not a jump: the arguments that are on the stack are pushed again.
//!
//! Eleven instructions with the arguments in registers; one more for each word on the stack, and one to drop them.

use core::mem::offset_of;

use gcgroup_abi::{Submission, Thread};

/// Where the first mark of a sort of submission lies in a slot; the second is the word after it.
pub(crate) const fn mark(what: Submission) -> usize {
    offset_of!(Thread, submissions) + 16 * what as usize
}

// The assembly reads the gate's address at the very beginning of a slot, and the slot's at that of a `Local`.
const _: () = {
    assert!(offset_of!(Thread, gate) == 0);
    assert!(size_of::<[core::sync::atomic::AtomicU64; 2]>() == 16);
    assert!(offset_of!(gcgroup_abi::Local, slot) == 0);
};

/// How many words of a call's arguments are on the stack.
pub(crate) const fn stack_words(arguments: usize) -> usize {
    arguments.saturating_sub(6)
}

macro_rules! submission {
    ($real:ident, $what:ident, ($($arg:ident: $ty:ty),*)) => {
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn ours($($arg: $ty),*) -> $crate::cuda::CUresult {
            const WORDS: usize =
                $crate::compute::fast::stack_words(<[&str]>::len(&[$(stringify!($arg)),*]));
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rax, qword ptr [rip + {offset}]",
                "mov rax, qword ptr fs:[rax]",
                "inc qword ptr [rax + {entered}]",
                "mov r11, qword ptr [rax]",
                "cmp dword ptr [r11], 0",
                "jne 3f",
                "2:",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                // The stack must be a multiple of 16 where the driver is entered.
                ".if {words} & 1",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                ".endif",
                ".rept {words}",
                "push qword ptr [rsp + 8 * ({words} + ({words} & 1) + 1)]",
                ".cfi_adjust_cfa_offset 8",
                ".endr",
                "call qword ptr [rip + {real}]",
                ".if {words}",
                "add rsp, 8 * ({words} + ({words} & 1))",
                ".cfi_adjust_cfa_offset -8 * ({words} + ({words} & 1))",
                ".endif",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "inc qword ptr [rcx + {exited}]",
                "ret",
                "3:",
                "mov eax, {what}",
                "call {closed}",
                "jmp 2b",
                ".cfi_endproc",
                offset = sym $crate::interpose::THREAD_OFFSET,
                entered = const $crate::compute::fast::mark(::gcgroup_abi::Submission::$what),
                exited = const $crate::compute::fast::mark(::gcgroup_abi::Submission::$what) + 8,
                what = const ::gcgroup_abi::Submission::$what as u32,
                words = const WORDS,
                real = sym $real,
                closed = sym $crate::compute::fast::closed,
            )
        }
    };
}

pub(crate) use submission;

/// The gate is not open: asks [`gate::admit`](super::gate::admit) with every argument kept. Takes the sort of
/// submission in `eax`, gives the slot to go on with in `rax`.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn closed() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        ".irp register, rdi, rsi, rdx, rcx, r8, r9",
        "push \\register",
        ".cfi_adjust_cfa_offset 8",
        ".endr",
        "mov edi, eax",
        "call {admit}",
        ".irp register, r9, r8, rcx, rdx, rsi, rdi",
        "pop \\register",
        ".cfi_adjust_cfa_offset -8",
        ".endr",
        "ret",
        ".cfi_endproc",
        admit = sym super::gate::admit,
    )
}
