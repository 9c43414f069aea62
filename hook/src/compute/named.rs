//! Finds what a submitting call names beside its stream: contexts, memory, other streams, and target
//! locations; in its arguments and in the structures and lists that they point to.
//!
//! Knows only layouts, and neither which device an object is on nor the purpose of the question.

use super::call::Arguments;
use crate::driver::cuda::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED, CUmemLocation};
use crate::shared::device::LocalDevice;

/// Number of arguments that can be described: those in registers.
const REGISTERS: usize = 6;
/// Offsets in a copy structure of CUDA 3.2 or newer, bytes.
struct Structure {
    /// Memory type and address of source and destination. An array handle follows the address.
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

/// A list of copies, of CUDA 12.8 or newer, or of launches.
struct List {
    /// Indices of the arguments that point to the list, or to its halves.
    heads: &'static [usize],
    /// Index of the argument with the number of entries, and a mask for it; one entry if `None`.
    count: Option<(usize, usize)>,
    /// Bytes from one entry to the next.
    stride: usize,
    /// Offsets of addresses and array handles in an entry.
    memory: &'static [usize],
    /// Offsets of streams in an entry.
    streams: &'static [usize],
    /// Index of the argument that points to a list of locations, and of the one with their number.
    locations: Option<(usize, usize)>,
}

/// Number of entries that are examined at most.
const LONGEST: usize = 1 << 16;

/// A list whose entries name nothing.
const NOTHING: List = List {
    heads: &[0],
    count: None,
    stride: 0,
    memory: &[],
    streams: &[],
    locations: None,
};

const ALL_BITS: usize = usize::MAX;

/// Layouts of list arguments, in the order of the numbers in [`names`].
const LISTS: [List; 8] = [
    // `CUdeviceptr`, sources and destinations.
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
    // `CUdeviceptr`, to discard.
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
    // `CUmemDecompressParams`: address of the result's size, source, destination.
    List {
        heads: &[0],
        count: Some((1, ALL_BITS)),
        stride: 64,
        memory: &[16, 24, 32],
        ..NOTHING
    },
    // `CUDA_FABRIC_COPY_BATCH_OP`. An endpoint's number in place of an address is no address of a device.
    List {
        heads: &[1],
        count: Some((0, ALL_BITS)),
        stride: 64,
        memory: &[8, 32],
        ..NOTHING
    },
];

/// Bit of [`names`] at which a four-bit number begins: 1 to 3 a structure of [`STRUCTURES`], to which the
/// first argument points; then a list of [`LISTS`]; then [`DEVICE`] or [`LOCATION`].
const STRUCTURE: usize = 2 * REGISTERS;
const OF_STRUCTURE: u32 = 1 << STRUCTURE;
const DEVICE: u32 = 12;
const LOCATION: u32 = DEVICE + 1;
/// Index of the argument that is the [`DEVICE`] or [`LOCATION`].
const TO: usize = 2;

/// Returns what a call's arguments name, from their types: bits 0–5 addresses and arrays, bits 6–11 contexts,
/// bits 12–15 the structure, list or location.
pub(crate) const fn names(types: &[&str]) -> u32 {
    let (mut index, mut rest, mut names) = (0, types, 0);
    while let [first, others @ ..] = rest {
        names |= match (first.as_bytes(), index) {
            (b"CUdeviceptr" | b"CUarray", ..REGISTERS) => 1 << index,
            (b"CUcontext", ..REGISTERS) => 1 << (REGISTERS + index),
            (b"*const CUDA_MEMCPY2D", 0) => OF_STRUCTURE,
            (b"*const CUDA_MEMCPY3D", 0) => 2 * OF_STRUCTURE,
            (b"*const CUDA_MEMCPY3D_PEER", 0) => 3 * OF_STRUCTURE,
            // A pair of lists is recognized by the second; a single list, by the lengths that follow it.
            (b"*mut CUdeviceptr", 1) => 4 * OF_STRUCTURE,
            (b"*mut usize", 1) => 8 * OF_STRUCTURE,
            // Together with lengths (8), this gives 9.
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

/// Returns a word's lower and upper half.
fn halves(word: usize) -> [[u8; 4]; 2] {
    let [a, b, c, d, rest @ ..] = word.to_le_bytes();
    [[a, b, c, d], rest]
}

/// Returns the device of a `CUmemLocation` in an argument or in memory: type in the lower half, id in the
/// upper.
fn of_location(word: usize) -> Option<LocalDevice> {
    let [kind, id] = halves(word);
    let location = CUmemLocation {
        kind: u32::from_le_bytes(kind),
        id: i32::from_le_bytes(id),
    };
    LocalDevice::of(location.device()?)
}

/// The objects that one call names.
#[derive(Clone, Copy)]
pub(super) struct Named {
    names: u32,
    arguments: Arguments,
    structure: Option<&'static Structure>,
    list: Option<&'static List>,
}

impl Named {
    /// Takes the result of [`names`] and the call's arguments.
    pub(super) fn of(names: u32, arguments: Arguments) -> Self {
        let number = (names >> STRUCTURE).checked_sub(1).map(|number| number as usize);
        Self {
            names,
            arguments,
            structure: number.and_then(|number| STRUCTURES.get(number)),
            list: number.and_then(|number| LISTS.get(number.checked_sub(STRUCTURES.len())?)),
        }
    }

    /// Returns the arguments whose bits from `bit` on are set.
    fn given(self, bit: usize) -> impl Iterator<Item = usize> {
        let is_named = move |index: &usize| self.names >> (bit + index) & 1 != 0;
        (0..REGISTERS)
            .filter(is_named)
            .map(move |index| self.arguments.get(index))
    }

    /// Returns handles of contexts.
    pub(super) fn contexts(self) -> impl Iterator<Item = usize> {
        let offsets = self
            .structure
            .into_iter()
            .flat_map(|structure| structure.contexts);
        self.given(REGISTERS)
            .chain(offsets.filter_map(move |offset| self.arguments.word_in_first(*offset)))
    }

    /// Returns addresses and array handles.
    pub(super) fn memory(self) -> impl Iterator<Item = usize> {
        let places = self.structure.into_iter().flat_map(|structure| structure.places);
        let in_structure =
            places.filter_map(move |place| memory_in(|offset| self.arguments.word_in_first(offset), place));
        let in_list = self.list.into_iter();
        self.given(0)
            .chain(in_structure)
            .chain(in_list.flat_map(move |list| list.words(self.arguments, list.memory)))
    }

    /// Returns handles of streams other than the call's own.
    pub(super) fn streams(self) -> impl Iterator<Item = usize> {
        let in_list = self.list.into_iter();
        in_list.flat_map(move |list| list.words(self.arguments, list.streams))
    }

    /// Returns devices that memory is to be moved to.
    pub(super) fn places(self) -> impl Iterator<Item = LocalDevice> {
        let argument = || self.arguments.get(TO);
        let to = match self.names >> STRUCTURE {
            // `LocalDevice::of` rejects other values, such as `CU_DEVICE_CPU`.
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
    /// Returns the words at the given offsets of each entry.
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

/// Returns the address or array handle in a copy structure, if the memory type has one; `word` reads at an
/// offset.
fn memory_in(word: impl Fn(usize) -> Option<usize>, (sort, address): (usize, usize)) -> Option<usize> {
    match word(sort)? & 0xffff_ffff {
        CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => word(address),
        CU_MEMORYTYPE_ARRAY => word(address + size_of::<usize>()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_types() {
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
        assert_eq!(to << 9 >> 9, to, "fits into one word with the rest");
        assert_eq!(
            names(&["u32", "u32", "u32", "u32", "u32", "u32", "CUdeviceptr"]),
            0
        );
    }

    #[test]
    fn lists_are_in_the_order_of_names() {
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
    fn location_is_a_device_or_none() {
        let word = |kind: usize, id: usize| id << 32 | kind;
        assert_eq!(of_location(word(1, 3)), LocalDevice::of(3));
        assert_eq!(
            of_location(word(6, 0x102)),
            LocalDevice::of(2),
            "a part of the device"
        );
        assert_eq!(of_location(word(2, 3)), None);
        assert_eq!(of_location(word(1, u32::MAX as usize)), None);
    }
}
