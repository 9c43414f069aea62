//! Submissions that concern another device than the thread's current one: one whose stream is there, or whose context or
//! memory they name.
//!
//! A thread looks at one gate, its current device's. So while any device of a process that has several is frozen, every
//! slot's gate leads to the cold path, and that asks here where each call goes. What was let through before is waited
//! for: `Inside` is who was in the driver then.
//!
//! Not seen: the memory that a structure or an array names, and what a graph's nodes do on other devices.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use gcgroup_abi::{Gate, OTHER_DEVICE, Submission, Thread};

use super::gate::Arguments;
use super::slot::is_dead;
use crate::cuda::{
    CU_MEMORYTYPE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUcontext,
    CUdeviceptr, CUstream,
};
use crate::device::LocalDevice;
use crate::driver;
use crate::process::Process;

/// Arguments that can be told of: those in registers.
const REGISTERS: usize = 6;
/// Bit of a call's first argument being a `CUDA_MEMCPY3D_PEER`.
const PEER: u32 = 1 << (2 * REGISTERS);
/// Where its two contexts are.
const CONTEXTS_IN_PEER: [usize; 2] = [64, 152];

/// What a call's arguments name, by their types: bits 0–5 the addresses, 6–11 the contexts, 12 [`PEER`].
pub(crate) const fn names(types: &[&str]) -> u32 {
    let (mut index, mut rest, mut names) = (0, types, 0);
    while let [first, others @ ..] = rest {
        names |= match first.as_bytes() {
            b"CUdeviceptr" if index < REGISTERS => 1 << index,
            b"CUcontext" if index < REGISTERS => 1 << (REGISTERS + index),
            b"*const CUDA_MEMCPY3D_PEER" if index == 0 => PEER,
            _ => 0,
        };
        (index, rest) = (index + 1, others);
    }
    names
}

/// A device that is frozen and that the call concerns, other than the one of index `current`. `named` is what the call
/// names beside its stream: [`names`], and the arguments.
pub(super) fn frozen(
    process: &Process,
    named: Option<(u32, Arguments)>,
    stream: usize,
    current: usize,
) -> Option<usize> {
    let is_frozen = |local: LocalDevice| {
        let index = process.devices.index(local);
        (index != current && is_gate_frozen(process, index)).then_some(index)
    };
    let of_context = |number: usize| {
        let handle = CUcontext(std::ptr::with_exposed_provenance_mut(number));
        Some(process.contexts.find(handle)?.local)
    };
    let handle = CUstream(std::ptr::with_exposed_provenance_mut(stream));
    let of_stream = process.contexts.holder(handle).map(|context| context.local);
    let found = of_stream.and_then(is_frozen);
    let (None, Some((names, arguments))) = (found, named) else {
        return found;
    };
    let are = |bit: usize| move |index: &usize| names >> (bit + index) & 1 != 0;
    let contexts = (0..REGISTERS).filter(are(REGISTERS));
    let addresses = (0..REGISTERS).filter(are(0));
    let peers = CONTEXTS_IN_PEER.into_iter().filter(|_| names & PEER != 0);
    contexts
        .map(|index| arguments.get(index))
        .chain(peers.filter_map(|offset| arguments.word_in_first(offset)))
        .filter_map(of_context)
        .chain(addresses.filter_map(|index| device_of(arguments.get(index))))
        .find_map(is_frozen)
}

/// The device that memory is on; `None` for the host's, and for what is no memory.
fn device_of(address: usize) -> Option<LocalDevice> {
    let ask = |attribute| {
        let mut value = 0;
        driver::cuPointerGetAttribute(&mut value, attribute, CUdeviceptr(address as u64)).ok()?;
        Some(value)
    };
    if ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? != CU_MEMORYTYPE_DEVICE {
        return None;
    }
    LocalDevice::of(i32::try_from(ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?).ok()?)
}

/// Whether any device of the process is frozen, so that submissions to the others must be looked at.
pub(super) fn is_any_frozen(process: &Process) -> bool {
    let known = process.control().nr_devices.load(Relaxed) as usize;
    (0..known.min(OTHER_DEVICE))
        .chain([OTHER_DEVICE])
        .any(|index| is_gate_frozen(process, index))
}

fn is_gate_frozen(process: &Process, index: usize) -> bool {
    let gate = process
        .control()
        .devices
        .get(index)
        .map(|device| device.gate.load(Acquire));
    gate.is_some_and(|word| Gate::from_word(word) == Gate::Frozen)
}

/// A thread that was inside submissions.
#[derive(Debug)]
pub(super) struct Inside {
    /// Its slot's address, which stays what it is.
    slot: usize,
    /// What it had entered of each sort.
    entered: [u64; Submission::COUNT],
}

impl Inside {
    /// `None` if it is not.
    pub(super) fn of(thread: &Thread) -> Option<Self> {
        let entered = |[entered, _]: &[AtomicU64; 2]| entered.load(Acquire);
        thread.is_inside().then(|| Self {
            slot: std::ptr::from_ref(thread).addr(),
            entered: std::array::from_fn(|what| thread.submissions.get(what).map_or(0, entered)),
        })
    }

    /// Whether that slot's thread may be in one of those yet.
    pub(super) fn is_still(&self, thread: &Thread) -> bool {
        // Inside another one perhaps, but that began later: the marks of what has ended have caught up.
        let is_behind = |([_, exited], entered): (&[AtomicU64; 2], &u64)| {
            exited.load(Acquire).wrapping_sub(*entered) >= 1 << 63
        };
        self.slot == std::ptr::from_ref(thread).addr()
            && thread.is_inside()
            && thread.submissions.iter().zip(&self.entered).any(is_behind)
            && !is_dead(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calls_names_are_found_by_their_types() {
        assert_eq!(
            names(&["CUdeviceptr", "CUcontext", "CUdeviceptr", "CUcontext", "usize"]),
            0b0010_1000_0101
        );
        assert_eq!(names(&["*mut c_void", "CUdeviceptr", "usize"]), 0b10);
        assert_eq!(names(&["*const CUDA_MEMCPY3D_PEER"]), PEER);
        assert_eq!(
            names(&["u32", "u32", "u32", "u32", "u32", "u32", "CUdeviceptr"]),
            0
        );
    }

    #[test]
    fn who_was_inside_is_out_when_that_has_ended_whatever_has_begun_since() {
        // SAFETY: a slot is all atomic integers, for which zero is a value.
        let thread: Thread = unsafe { std::mem::zeroed() };
        thread.tid.store(std::process::id(), Relaxed);
        assert!(Inside::of(&thread).is_none());
        let (entered, exited) = (thread.entered(Submission::Copy), thread.exited(Submission::Copy));
        entered.store(5, Relaxed);
        exited.store(4, Relaxed);
        let inside = Inside::of(&thread).unwrap();
        assert!(inside.is_still(&thread));
        entered.store(6, Relaxed);
        exited.store(5, Relaxed);
        assert!(!inside.is_still(&thread), "this is another");
        // It took its mark back, to wait at its gate.
        entered.store(4, Relaxed);
        exited.store(4, Relaxed);
        assert!(!inside.is_still(&thread));
    }
}
