//! What a call that submits names beside its stream: contexts, memory, other streams, places that memory is to go to. In
//! its arguments, and in the structures and lists that they point to.
//!
//! Knows where it stands, and neither which device it is on nor who asks.

use super::call::Arguments;
use crate::cuda::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED, CUmemLocation};
use crate::device::LocalDevice;

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
    /// The argument that points to a list of locations, and the one that says how many there are.
    locations: Option<(usize, usize)>,
}

/// Entries that are looked at, of a longer list too.
const LONGEST: usize = 1 << 16;

/// A list that names nothing.
const NOTHING: List = List {
    heads: &[0],
    count: None,
    stride: 0,
    memory: &[],
    streams: &[],
    locations: None,
};

const ALL_BITS: usize = usize::MAX;

/// Which arguments are lists of what, and which one says where memory is to be; in the order in which [`names`] tells them.
const LISTS: [List; 8] = [
    // `CUdeviceptr`, to and from.
    List {
        heads: &[0, 1],
        count: Some((3, ALL_BITS)),
        stride: 8,
        memory: &[0],
        ..NOTHING
    },
    // `CUDA_MEMCPY3D_BATCH_OP`.
    List {
        heads: &[1],
        count: Some((0, ALL_BITS)),
        stride: 112,
        memory: &[8, 48],
        ..NOTHING
    },
    List {
        heads: &[0],
        stride: 112,
        memory: &[8, 48],
        ..NOTHING
    },
    // `CUDA_LAUNCH_PARAMS`.
    List {
        heads: &[0],
        count: Some((1, u32::MAX as usize)),
        stride: 56,
        streams: &[40],
        ..NOTHING
    },
    // `CUdeviceptr`, discarded.
    List {
        heads: &[0],
        count: Some((2, ALL_BITS)),
        stride: 8,
        memory: &[0],
        ..NOTHING
    },
    // `CUdeviceptr`, with `CUmemLocation`.
    List {
        heads: &[0],
        count: Some((2, ALL_BITS)),
        stride: 8,
        memory: &[0],
        locations: Some((3, 5)),
        ..NOTHING
    },
    // `CUmemDecompressParams`: the word for how much it came to, the source, the destination.
    List {
        heads: &[0],
        count: Some((1, ALL_BITS)),
        stride: 64,
        memory: &[16, 24, 32],
        ..NOTHING
    },
    // `CUDA_FABRIC_COPY_BATCH_OP`: the number of an endpoint, where there is no address, is no address of any device's.
    List {
        heads: &[1],
        count: Some((0, ALL_BITS)),
        stride: 64,
        memory: &[8, 32],
        ..NOTHING
    },
];

/// Where a call's [`names`] say which of the [`STRUCTURES`] its first argument points to, from 1, which of the [`LISTS`]
/// it is given, from behind those, or that its third argument is a device or a location, from behind those.
const STRUCTURE: usize = 2 * REGISTERS;
const OF_STRUCTURE: u32 = 1 << STRUCTURE;
const DEVICE: u32 = 12;
const LOCATION: u32 = DEVICE + 1;
/// Which argument that is.
const TO: usize = 2;

/// What a call's arguments name, by their types: bits 0–5 the addresses and arrays, 6–11 the contexts, 12–15 the
/// structure, list or place.
pub(crate) const fn names(types: &[&str]) -> u32 {
    let (mut index, mut rest, mut names) = (0, types, 0);
    while let [first, others @ ..] = rest {
        names |= match (first.as_bytes(), index) {
            (b"CUdeviceptr" | b"CUarray", ..REGISTERS) => 1 << index,
            (b"CUcontext", ..REGISTERS) => 1 << (REGISTERS + index),
            (b"*const CUDA_MEMCPY2D", 0) => OF_STRUCTURE,
            (b"*const CUDA_MEMCPY3D", 0) => 2 * OF_STRUCTURE,
            (b"*const CUDA_MEMCPY3D_PEER", 0) => 3 * OF_STRUCTURE,
            // The second of two lists of addresses tells; a single one is told by the lengths behind it.
            (b"*mut CUdeviceptr", 1) => 4 * OF_STRUCTURE,
            (b"*mut usize", 1) => 8 * OF_STRUCTURE,
            // With another of locations: 8 and 1.
            (b"*mut CUmemLocation", 3) => OF_STRUCTURE,
            (b"*mut CUDA_MEMCPY3D_BATCH_OP", 1) => 5 * OF_STRUCTURE,
            (b"*mut CUDA_MEMCPY3D_BATCH_OP", 0) => 6 * OF_STRUCTURE,
            (b"*mut CUDA_LAUNCH_PARAMS", 0) => 7 * OF_STRUCTURE,
            (b"*mut CUmemDecompressParams", 0) => 10 * OF_STRUCTURE,
            (b"*mut CUDA_FABRIC_COPY_BATCH_OP", 1) => 11 * OF_STRUCTURE,
            (b"CUdevice", TO) => DEVICE * OF_STRUCTURE,
            (b"CUmemLocation", TO) => LOCATION * OF_STRUCTURE,
            _ => 0,
        };
        (index, rest) = (index + 1, others);
    }
    names
}

/// A word's lower half and its upper one.
fn halves(word: usize) -> [[u8; 4]; 2] {
    let [a, b, c, d, rest @ ..] = word.to_le_bytes();
    [[a, b, c, d], rest]
}

/// A location as an argument, and as it lies in memory: its sort, and its number.
fn of_location(word: usize) -> Option<LocalDevice> {
    let [kind, id] = halves(word);
    let location = CUmemLocation {
        kind: u32::from_le_bytes(kind),
        id: i32::from_le_bytes(id),
    };
    LocalDevice::of(location.device()?)
}

/// What one call names.
#[derive(Clone, Copy)]
pub(super) struct Named {
    names: u32,
    arguments: Arguments,
    structure: Option<&'static Structure>,
    list: Option<&'static List>,
}

impl Named {
    /// By what [`names`] said of its arguments.
    pub(super) fn of(names: u32, arguments: Arguments) -> Self {
        let number = (names >> STRUCTURE).checked_sub(1).map(|number| number as usize);
        Self {
            names,
            arguments,
            structure: number.and_then(|number| STRUCTURES.get(number)),
            list: number.and_then(|number| LISTS.get(number.checked_sub(STRUCTURES.len())?)),
        }
    }

    /// The arguments whose bits are set from that one on.
    fn given(self, bit: usize) -> impl Iterator<Item = usize> {
        let is_named = move |index: &usize| self.names >> (bit + index) & 1 != 0;
        (0..REGISTERS)
            .filter(is_named)
            .map(move |index| self.arguments.get(index))
    }

    /// Contexts, by their handles.
    pub(super) fn contexts(self) -> impl Iterator<Item = usize> {
        let offsets = self
            .structure
            .into_iter()
            .flat_map(|structure| structure.contexts);
        self.given(REGISTERS)
            .chain(offsets.filter_map(move |offset| self.arguments.word_in_first(*offset)))
    }

    /// Memory, by addresses and the handles of arrays.
    pub(super) fn memory(self) -> impl Iterator<Item = usize> {
        let places = self.structure.into_iter().flat_map(|structure| structure.places);
        let in_structure =
            places.filter_map(move |place| memory_in(|offset| self.arguments.word_in_first(offset), place));
        let in_list = self.list.into_iter();
        self.given(0)
            .chain(in_structure)
            .chain(in_list.flat_map(move |list| list.words(self.arguments, list.memory)))
    }

    /// Streams beside the call's own, by their handles.
    pub(super) fn streams(self) -> impl Iterator<Item = usize> {
        let in_list = self.list.into_iter();
        in_list.flat_map(move |list| list.words(self.arguments, list.streams))
    }

    /// Devices that memory is to go to.
    pub(super) fn places(self) -> impl Iterator<Item = LocalDevice> {
        let argument = || self.arguments.get(TO);
        let to = match self.names >> STRUCTURE {
            // `CU_DEVICE_CPU`, for one, is none.
            DEVICE => LocalDevice::of(i32::from_le_bytes(halves(argument())[0])),
            LOCATION => of_location(argument()),
            _ => None,
        };
        let in_list = self.list.into_iter();
        in_list
            .flat_map(move |list| list.locations(self.arguments))
            .filter_map(of_location)
            .chain(to)
    }
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

    fn locations(&self, arguments: Arguments) -> impl Iterator<Item = usize> {
        let (head, count) = self.locations.unwrap_or_default();
        let is_there = self.locations.is_some() && arguments.get(head) != 0;
        let count = if is_there { arguments.get(count) } else { 0 };
        (0..count.min(LONGEST))
            .filter_map(move |entry| arguments.word_behind(head, entry * size_of::<usize>()))
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

/// The memory that a `CUDA_MEMCPY3D` names; `word` reads it, by offsets.
pub(super) fn memory_of_copy(word: impl Fn(usize) -> Option<usize>) -> impl Iterator<Item = usize> {
    let places = STRUCTURES[OF_NODE].places;
    places
        .into_iter()
        .filter_map(move |place| memory_in(&word, place))
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
        let places = ["*mut CUdeviceptr", "*mut usize", "usize", "*mut CUmemLocation"];
        assert_eq!(names(&places) >> STRUCTURE, 9);
        assert_eq!(names(&places[..3]) >> STRUCTURE, 8);
        let to = names(&["CUdeviceptr", "usize", "CUmemLocation", "u32"]);
        assert_eq!(to, 1 | LOCATION << STRUCTURE);
        assert_eq!(to << 9 >> 9, to, "in one word with the rest");
        assert_eq!(
            names(&["u32", "u32", "u32", "u32", "u32", "u32", "CUdeviceptr"]),
            0
        );
    }

    #[test]
    fn a_list_is_where_names_says() {
        let at = |number: usize| &LISTS[number - 1 - STRUCTURES.len()];
        assert_eq!(at(4).heads, [0, 1]);
        assert_eq!(at(8).locations, None);
        assert_eq!(at(9).locations, Some((3, 5)));
        assert_eq!(at(10).memory, [16, 24, 32]);
        assert_eq!(at(11).heads, [1]);
        assert_eq!(DEVICE as usize, STRUCTURES.len() + LISTS.len() + 1);
        const { assert!(LOCATION < 1 << 4) };
    }

    #[test]
    fn a_location_is_a_device_or_none() {
        let word = |kind: usize, id: usize| id << 32 | kind;
        assert_eq!(of_location(word(1, 3)), LocalDevice::of(3));
        assert_eq!(of_location(word(6, 0x102)), LocalDevice::of(2), "a part of it");
        assert_eq!(of_location(word(2, 3)), None);
        assert_eq!(of_location(word(1, u32::MAX as usize)), None);
    }
}
