//! Submissions that concern another device than the thread's current one: one whose stream is there, whose context or
//! memory they name, or that a graph does work on (`reach`).
//!
//! A thread looks at one gate, its current device's. So while any device of a process that has several is frozen, every
//! slot's gate leads to the cold path, and that asks here where each call goes. What was let through before is waited
//! for: `Inside` is who was in the driver then.
//!
//! Not seen: the levels of mipmapped arrays.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use gcgroup_abi::{Gate, OTHER_DEVICE, Submission, Thread};

use super::call::{Arguments, Call};
use super::slot::is_dead;
use crate::cuda::{
    CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUcontext, CUdeviceptr, CUstream,
};
use crate::device::LocalDevice;
use crate::driver;
use crate::process::Process;

/// Arguments that can be told of: those in registers.
const REGISTERS: usize = 6;
/// A structure of a copy, of CUDA 3.2 or newer: what it may be told of, by where that is in it.
struct Structure {
    /// Two times, of which sort of memory and at which address; the array, if it is one, is named behind the address.
    places: [(usize, usize); 2],
    contexts: &'static [usize],
}

/// `CUDA_MEMCPY2D`, `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
const STRUCTURES: [Structure; 3] = [
    Structure {
        places: [(16, 32), (72, 88)],
        contexts: &[],
    },
    Structure {
        places: [(32, 48), (120, 136)],
        contexts: &[],
    },
    Structure {
        places: [(32, 48), (120, 136)],
        contexts: &[64, 152],
    },
];

/// Where in [`STRUCTURES`] the one that a copy node of a graph is described by.
const OF_NODE: usize = 1;

/// A list of what is copied, of CUDA 12.8 or newer, or of what is launched.
struct List {
    /// The arguments that point to it, or to its halves.
    heads: &'static [usize],
    /// The argument that says how many there are, and which bits of it; without it one.
    count: Option<(usize, usize)>,
    /// The bytes from each entry to the next.
    stride: usize,
    /// Where in each memory is named, by address or array.
    memory: &'static [usize],
    /// Where streams are.
    streams: &'static [usize],
}

/// Entries that are looked at, of a longer list too.
const LONGEST: usize = 1 << 16;

/// `CUdeviceptr`, two times `CUDA_MEMCPY3D_BATCH_OP`, and `CUDA_LAUNCH_PARAMS`.
const LISTS: [List; 4] = [
    List {
        heads: &[0, 1],
        count: Some((3, usize::MAX)),
        stride: 8,
        memory: &[0],
        streams: &[],
    },
    List {
        heads: &[1],
        count: Some((0, usize::MAX)),
        stride: 112,
        memory: &[8, 48],
        streams: &[],
    },
    List {
        heads: &[0],
        count: None,
        stride: 112,
        memory: &[8, 48],
        streams: &[],
    },
    List {
        heads: &[0],
        count: Some((1, u32::MAX as usize)),
        stride: 56,
        memory: &[],
        streams: &[40],
    },
];

/// Where a call's [`names`] say which of the [`STRUCTURES`] its first argument points to, from 1, or which of the [`LISTS`]
/// it is given, from behind those.
const STRUCTURE: usize = 2 * REGISTERS;

/// What a call's arguments name, by their types: bits 0–5 the addresses and arrays, 6–11 the contexts, 12–14 the
/// structure or list.
pub(crate) const fn names(types: &[&str]) -> u32 {
    let (mut index, mut rest, mut names) = (0, types, 0);
    while let [first, others @ ..] = rest {
        names |= match first.as_bytes() {
            b"CUdeviceptr" | b"CUarray" if index < REGISTERS => 1 << index,
            b"CUcontext" if index < REGISTERS => 1 << (REGISTERS + index),
            b"*const CUDA_MEMCPY2D" if index == 0 => 1 << STRUCTURE,
            b"*const CUDA_MEMCPY3D" if index == 0 => 2 << STRUCTURE,
            b"*const CUDA_MEMCPY3D_PEER" if index == 0 => 3 << STRUCTURE,
            b"*mut CUdeviceptr" if index == 0 => 4 << STRUCTURE,
            b"*mut CUDA_MEMCPY3D_BATCH_OP" if index == 1 => 5 << STRUCTURE,
            b"*mut CUDA_MEMCPY3D_BATCH_OP" if index == 0 => 6 << STRUCTURE,
            b"*mut CUDA_LAUNCH_PARAMS" if index == 0 => 7 << STRUCTURE,
            _ => 0,
        };
        (index, rest) = (index + 1, others);
    }
    names
}

/// A device that is frozen or held and that the call concerns, other than the one of index `current`.
pub(super) fn closed(process: &Process, call: Call, stream: usize, current: usize) -> Option<usize> {
    let is_closed = |local: LocalDevice| {
        let index = process.devices.index(local);
        let is_closed = is_gate_frozen(process, index) || process.holds.word(index).is_some();
        (index != current && is_closed).then_some(index)
    };
    let of_context = |number: usize| {
        let handle = CUcontext(std::ptr::with_exposed_provenance_mut(number));
        Some(process.contexts.find(handle)?.local)
    };
    let of_stream = |stream: usize| {
        let handle = CUstream(std::ptr::with_exposed_provenance_mut(stream));
        Some(process.contexts.holder(handle)?.local)
    };
    let found = of_stream(stream)
        .into_iter()
        .chain(call.devices().iter())
        .find_map(is_closed);
    let (None, Some((names, arguments))) = (found, call.names()) else {
        return found;
    };
    let are = |bit: usize| move |index: &usize| names >> (bit + index) & 1 != 0;
    let contexts = (0..REGISTERS).filter(are(REGISTERS));
    let addresses = (0..REGISTERS).filter(are(0));
    let number = (names >> STRUCTURE).checked_sub(1).map(|number| number as usize);
    let structure = number.and_then(|number| STRUCTURES.get(number));
    let list = number.and_then(|number| LISTS.get(number.checked_sub(STRUCTURES.len())?));
    let places = structure.into_iter().flat_map(|structure| structure.places);
    let peers = structure.into_iter().flat_map(|structure| structure.contexts);
    contexts
        .map(|index| arguments.get(index))
        .chain(peers.filter_map(|offset| arguments.word_in_first(*offset)))
        .filter_map(of_context)
        .chain(
            addresses
                .map(|index| arguments.get(index))
                .chain(places.filter_map(|place| memory_in(|offset| arguments.word_in_first(offset), place)))
                .chain(
                    list.into_iter()
                        .flat_map(|list| list.words(arguments, list.memory)),
                )
                .filter_map(|memory| device_of(process, memory)),
        )
        .chain(
            list.into_iter()
                .flat_map(|list| list.words(arguments, list.streams))
                .filter_map(of_stream),
        )
        .find_map(is_closed)
}

impl List {
    /// What is at those places in each of its entries.
    fn words(&self, arguments: Arguments, places: &'static [usize]) -> impl Iterator<Item = usize> {
        let is_there = self.heads.iter().all(|head| arguments.get(*head) != 0);
        let count = self.count.map_or(1, |(index, bits)| arguments.get(index) & bits);
        (0..if is_there { count.min(LONGEST) } else { 0 }).flat_map(move |entry| {
            let of_head = move |head: &'static usize| {
                let in_entry = places.iter();
                in_entry.filter_map(move |offset| arguments.word_behind(*head, entry * self.stride + offset))
            };
            self.heads.iter().flat_map(of_head)
        })
    }
}

/// The address or the array in a structure, if it is one; `word` reads it, by offsets.
fn memory_in(word: impl Fn(usize) -> Option<usize>, (sort, address): (usize, usize)) -> Option<usize> {
    match word(sort)? & 0xffff_ffff {
        CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => word(address),
        CU_MEMORYTYPE_ARRAY => word(address + size_of::<usize>()),
        _ => None,
    }
}

/// The devices of the memory that a `CUDA_MEMCPY3D` names; `word` reads it, by offsets.
pub(super) fn devices_of_copy(
    process: &Process,
    word: impl Fn(usize) -> Option<usize>,
) -> impl Iterator<Item = LocalDevice> {
    let places = STRUCTURES[OF_NODE].places;
    places
        .into_iter()
        .filter_map(move |place| device_of(process, memory_in(&word, place)?))
}

/// The device that memory or an array is on; `None` for the host's, and for what is no memory.
pub(super) fn device_of(process: &Process, address: usize) -> Option<LocalDevice> {
    // The handle of an array is no address of the device's.
    if let Some(local) = process.memory.arrays.local(address as u64) {
        return Some(local);
    }
    // Wherever it is now.
    if let Some(block) = process.swap.find(address as u64) {
        return Some(block.local);
    }
    let ask = |attribute| {
        let mut value = 0;
        driver::cuPointerGetAttribute(&mut value, attribute, CUdeviceptr(address as u64)).ok()?;
        Some(value)
    };
    if ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? != CU_MEMORYTYPE_DEVICE as u64 {
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

/// Whether all devices that the process has contexts on are frozen.
pub(crate) fn is_all_frozen(process: &Process) -> bool {
    let used = process.contexts.on(|_| true);
    let is_frozen = |local| is_gate_frozen(process, process.devices.index(local));
    used.iter().all(|context| is_frozen(context.local))
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
        assert_eq!(names(&["*const CUDA_MEMCPY3D_PEER"]) >> STRUCTURE, 3);
        assert_eq!(
            names(&["*mut CUdeviceptr", "*mut CUdeviceptr", "usize"]) >> STRUCTURE,
            4
        );
        assert_eq!(names(&["CUarray", "usize", "CUarray"]), 0b101);
        assert!(
            names(&["*const CUDA_MEMCPY3D_PEER"]) << 17 >> 17 == 3 << STRUCTURE,
            "in one word with the rest"
        );
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
