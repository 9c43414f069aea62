//! Fast path of a submission: count the entry, load the gate, call the driver, count the exit. The slow path
//! is in `gate`.
//!
//! The entry counter (`Entrance::entered`) and the exit counter (`Thread::exited`) show whether a thread is
//! in the driver. After a closed gate has been made visible to every core (`membarrier`), a thread whose
//! counters are equal submits nothing more. This needs two counters, and so a call instead of a jump:
//! arguments that are on the stack are pushed again. The assembly is in `arch`.

use core::mem::offset_of;

use gcgroup_abi::{Entrance, Submission, Thread};

use crate::arch;

/// Returns the offset of the entry counter of a kind of submission in an [`Entrance`], bytes.
pub(crate) const fn entered(what: Submission) -> usize {
    offset_of!(Entrance, entered) + 8 * what as usize
}

/// Returns the offset of the exit counter of a kind of submission in a [`Thread`], bytes.
pub(crate) const fn exited(what: Submission) -> usize {
    offset_of!(Thread, submissions) + 16 * what as usize + 8
}

// The assembly reads the gate's address at offset 0 of an entrance, and the entrance's at offset 0 of a
// `Local`.
const _: () = {
    assert!(offset_of!(Entrance, gate) == 0);
    assert!(size_of::<[core::sync::atomic::AtomicU64; 2]>() == 16);
    assert!(offset_of!(gcgroup_abi::Local, slot) == 0);
};

/// Returns how many words of a call's arguments are on the stack.
pub(crate) const fn stack_words(arguments: usize) -> usize {
    arguments.saturating_sub(arch::REGISTERS)
}

/// Returns the index of the stream argument, from the names of the arguments' types, as `call::describe`
/// takes it.
pub(crate) const fn stream_argument(types: &[&str]) -> u32 {
    let (mut index, mut rest) = (0, types);
    while let [first, others @ ..] = rest {
        match first.as_bytes() {
            b"CUstream" => return index,
            b"*const CUlaunchConfig" => return crate::compute::call::IN_CONFIG,
            _ => (index, rest) = (index + 1, others),
        }
    }
    crate::compute::call::NO_STREAM
}

/// Returns whether a function is the variant for the per-thread default stream.
pub(crate) const fn is_per_thread(name: &str) -> bool {
    matches!(name.as_bytes(), [.., b'_', b'p', b't', b's' | b'd', b'z' | b's'])
}

macro_rules! submission {
    ($real:ident, $name:ident, $what:ident, ($($arg:ident: $ty:ty),*)) => {
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn ours($($arg: $ty),*) -> $crate::driver::cuda::CUresult {
            const WORDS: usize =
                $crate::calls::fast::stack_words(<[&str]>::len(&[$(stringify!($arg)),*]));
            const CALL: u32 = $crate::compute::call::describe(
                ::gcgroup_abi::Submission::$what,
                $crate::calls::fast::stream_argument(&[$(stringify!($ty)),*]),
                $crate::calls::fast::is_per_thread(stringify!($name)),
                $crate::compute::named::names(&[$(stringify!($ty)),*]),
            );
            $crate::arch::submission_text!(
                offset = sym $crate::driver::thread::OFFSET,
                thread = const ::core::mem::offset_of!(::gcgroup_abi::Entrance, thread),
                entered = const $crate::calls::fast::entered(::gcgroup_abi::Submission::$what),
                exited = const $crate::calls::fast::exited(::gcgroup_abi::Submission::$what),
                call = const CALL,
                words = const WORDS,
                real = sym $real,
                closed = sym $crate::calls::fast::closed,
                finish = sym $crate::calls::submit::finish,
            )
        }
    };
}

pub(crate) use submission;

/// Calls [`submit::admit`](super::submit::admit) for a gate that is not open, preserving every argument.
/// Takes the word of [`call::describe`](crate::compute::call::describe) and returns the entrance to use in
/// registers of their own.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn closed() {
    crate::arch::admit_text!(admit = sym super::submit::admit)
}

#[cfg(test)]
mod tests {
    use std::ptr::{from_ref, null_mut};
    use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

    use gcgroup_abi::{Entrance, Submission, Thread};

    use crate::driver::cuda::{CUerror, CUresult};
    use crate::driver::interpose::Real;
    use crate::driver::thread;

    /// Checks that the driver gets every argument, on an aligned stack, while the call is counted as entered.
    macro_rules! passes_on {
        ($test:ident, $what:ident, $($arg:ident)*) => {
            mod $test {
                use super::*;

                static REAL: Real = Real::libcuda();
                crate::calls::fast::submission!(REAL, cuTest, $what, ($($arg: u64),*));

                extern "C" fn driver($($arg: u64),*) -> CUresult {
                    assert_eq!([$($arg),*], std::array::from_fn(|index| index as u64));
                    // SAFETY: the test's own slot, created below.
                    let slot = unsafe { &*thread::slot() };
                    assert_eq!(slot.entered[Submission::$what as usize].load(Relaxed), exits(slot) + 1);
                    assert_aligned();
                    Err(CUerror::NOT_READY)
                }

                #[test]
                fn submission_passes_arguments_and_counts_call() {
                    let gate = AtomicU32::new(0);
                    // SAFETY: a slot consists of atomic integers, for which zero is a valid value.
                    let exited: Thread = unsafe { std::mem::zeroed() };
                    let slot = Entrance {
                        gate: AtomicPtr::new(from_ref(&gate).cast_mut()),
                        thread: AtomicPtr::new(from_ref(&exited).cast_mut()),
                        entered: [const { AtomicU64::new(0) }; Submission::COUNT],
                    };
                    thread::set_slot(from_ref(&slot).cast_mut());
                    REAL.set(driver as *mut _, null_mut());
                    let [$($arg),*] = std::array::from_fn(|index| index as u64);
                    for call in 1..=3 {
                        // SAFETY: the function above has the same arguments.
                        assert_eq!(unsafe { ours($($arg),*) }, Err(CUerror::NOT_READY));
                        assert_eq!(slot.entered.each_ref().map(|count| count.load(Relaxed)).iter().sum::<u64>(), call);
                        assert_eq!(slot.entered[Submission::$what as usize].load(Relaxed), call);
                        assert_eq!(exits(&slot), call);
                    }
                    // Where nothing governs the process, the exit is counted elsewhere.
                    gate.store(1, Relaxed);
                    // SAFETY: as above.
                    assert_eq!(unsafe { ours($($arg),*) }, Err(CUerror::NOT_READY));
                    thread::set_slot(null_mut());
                }

                fn exits(slot: &Entrance) -> u64 {
                    // SAFETY: points to the test's own `Thread`, on its stack.
                    let thread = unsafe { &*slot.thread.load(Relaxed) };
                    thread.exited(Submission::$what).load(Relaxed)
                }
            }
        };
    }

    /// Checks the stack's alignment: the compiler assumes it here, so a wrong one gives a fault or a wrong
    /// address.
    fn assert_aligned() {
        #[repr(align(16))]
        struct Aligned(AtomicU64);
        let here = Aligned(AtomicU64::new(1));
        assert_eq!(std::hint::black_box(&raw const here.0).addr() % 16, 0);
    }

    #[test]
    fn stream_argument_found_by_type() {
        assert_eq!(super::stream_argument(&["c_uint", "CUstream", "CUstream"]), 1);
        assert_eq!(
            super::stream_argument(&["*const CUlaunchConfig", "CUfunction"]),
            crate::compute::call::IN_CONFIG
        );
        assert_eq!(
            super::stream_argument(&["*const CUDA_MEMCPY2D"]),
            crate::compute::call::NO_STREAM
        );
        assert!(super::is_per_thread("cuLaunchKernel_ptsz") && super::is_per_thread("cuMemcpy_ptds"));
        assert!(!super::is_per_thread("cuLaunchKernel"));
    }

    // Up to five words on the stack, where six or eight arguments are in registers.
    passes_on!(six_arguments, Copy, a b c d e f);
    passes_on!(seven_arguments, Copy, a b c d e f g);
    passes_on!(eight_arguments, Graph, a b c d e f g h);
    passes_on!(nine_arguments, Copy, a b c d e f g h i);
    passes_on!(ten_arguments, Graph, a b c d e f g h i j);
    passes_on!(eleven_arguments, Kernel, a b c d e f g h i j k);
    passes_on!(twelve_arguments, Kernel, a b c d e f g h i j k l);
}
