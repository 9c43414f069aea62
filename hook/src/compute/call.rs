//! Description of a submitting call: kind of submission, stream, and other objects that its arguments name.

use gcgroup_abi::Submission;

use crate::arch;
use crate::driver::cuda::CUstream;
use crate::driver::streams::default_stream;
use crate::program::window::Shape;

/// Packs a call's description into one word, which the fast path passes to the slow path.
///
/// Bits 0–3: the [`Submission`]. Bits 4–7: index of the stream argument, [`NO_STREAM`] or [`IN_CONFIG`].
/// Bit 8: set if stream 0 means the per-thread default stream. Bits 9–31: the result of `named::names`.
pub(crate) const fn describe(what: Submission, stream: u32, per_thread: bool, names: u32) -> u32 {
    what as u32 | stream << 4 | (per_thread as u32) << 8 | names << 9
}

/// Returns the kind of submission that a word of [`describe`] names.
pub(crate) fn what(call: u32) -> Submission {
    match call & 0xf {
        0 => Submission::Kernel,
        1 => Submission::Graph,
        _ => Submission::Copy,
    }
}

/// The call has no stream argument and goes to the default stream.
pub(crate) const NO_STREAM: u32 = 0xf;
/// The first argument is a `CUlaunchConfig`, which names the stream.
pub(crate) const IN_CONFIG: u32 = 0xe;
/// Index of the stream argument of the calls that launch a kernel with dimensions.
const STREAM_OF_LAUNCH: u32 = 8;
/// Offset of `hStream` in a `CUlaunchConfig`, bytes: after grid and block dimensions and shared memory size.
const STREAM_IN_CONFIG: usize = 32;
/// Offsets of `attrs` and `numAttrs` in a `CUlaunchConfig`, and of an attribute's value in a
/// `CUlaunchAttribute`, and the size of the latter, bytes.
const ATTRIBUTES_IN_CONFIG: usize = 40;
const COUNT_IN_CONFIG: usize = 48;
const VALUE_IN_ATTRIBUTE: usize = 8;
const ATTRIBUTE_BYTES: usize = 72;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const PROGRAMMATIC: u32 = 6;
/// Most attributes that are looked at: more than the driver knows.
const MOST_ATTRIBUTES: usize = 64;

/// Arguments of a call, as the fast path of a submission pushed them ([`arch::pushed`]).
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Arguments(*const usize);

impl Arguments {
    pub(super) fn get(self, index: usize) -> usize {
        // SAFETY: `describe` yields only indices of arguments that the function has, so its caller passed
        // them.
        unsafe { *self.0.add(arch::pushed(index)) }
    }

    /// Returns the word at `offset` bytes of the structure that the first argument points to; `None` if null.
    pub(super) fn word_in_first(self, offset: usize) -> Option<usize> {
        self.word_behind(0, offset)
    }

    /// Returns the word at `offset` bytes of the memory that argument `index` points to; `None` if null.
    pub(super) fn word_behind(self, index: usize, offset: usize) -> Option<usize> {
        let structure = self.get(index);
        // SAFETY: the driver reads this word too; the program states that the memory is such a structure or
        // list.
        (structure != 0).then(|| unsafe { *std::ptr::with_exposed_provenance::<usize>(structure + offset) })
    }

    /// Returns whether the `CUlaunchConfig` in the first argument permits the kernel to start before the one
    /// in front of it has ended.
    fn is_programmatic(self) -> bool {
        let count = self.word_in_first(COUNT_IN_CONFIG).unwrap_or(0) & u32::MAX as usize;
        let list = self.word_in_first(ATTRIBUTES_IN_CONFIG).unwrap_or(0);
        let word = |at: usize| {
            // SAFETY: the driver reads this word too; by the program's word the list has `count` attributes.
            unsafe { *std::ptr::with_exposed_provenance::<u32>(at) }
        };
        let mut attributes = (0..count.min(MOST_ATTRIBUTES)).map(|index| list + index * ATTRIBUTE_BYTES);
        list != 0 && attributes.any(|at| word(at) == PROGRAMMATIC && word(at + VALUE_IN_ATTRIBUTE) != 0)
    }

    /// Returns the stream's handle; a default stream is `LEGACY` or `PER_THREAD`.
    fn stream(self, call: u32) -> usize {
        let handle = match call >> 4 & 0xf {
            NO_STREAM => 0,
            IN_CONFIG => self.word_in_first(STREAM_IN_CONFIG).unwrap_or(0),
            index => self.get(index as usize),
        };
        default_stream(handle, call >> 8 & 1 != 0)
    }
}

/// Returns the shape of a passed call: a kernel's function and launch dimensions tell it from others.
pub(super) fn shape(what: Submission, call: u32, arguments: Arguments) -> Shape {
    if what != Submission::Kernel {
        return what.into();
    }
    let word = |index| arguments.get(index) as u64;
    match call >> 4 & 0xf {
        // `cuLaunchKernelEx`: the dimensions are the first 24 bytes of the configuration.
        IN_CONFIG => {
            let dimensions = [0, 8, 16].map(|offset| arguments.word_in_first(offset).unwrap_or(0) as u64);
            let [one, two, three] = dimensions;
            Shape::new(what, &[word(1), one, two, three]).overlapping(arguments.is_programmatic())
        }
        // `cuLaunchKernel` and `cuLaunchCooperativeKernel`: the dimensions follow the function.
        STREAM_OF_LAUNCH => {
            let dimension = |index| word(index) & u64::from(u32::MAX);
            let [first, second, third] = [1, 3, 5].map(|at| dimension(at) << 32 | dimension(at + 1));
            Shape::new(what, &[word(0), first, second, third])
        }
        _ => Shape::new(what, &[word(0)]),
    }
}

/// A submitting call, as the gate sees it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    /// Passed on by the fast path, with the word that [`describe`] packed.
    Passed(u32, Arguments),
    /// The launch of a graph on a stream. Its nodes may be on any device.
    Graph(CUstream),
}

impl Call {
    pub(super) fn stream(self) -> usize {
        match self {
            Self::Passed(call, arguments) => arguments.stream(call),
            Self::Graph(stream) => default_stream(stream.0.addr(), false),
        }
    }

    /// Returns the packed [`names`](super::named::names) of a passed call, and its arguments.
    pub(super) fn names(self) -> Option<(u32, Arguments)> {
        match self {
            Self::Passed(call, arguments) => Some((call >> 9, arguments)),
            Self::Graph(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch with these attributes: number and value.
    fn is_overlapping(attributes: &[(u32, u32)], count: usize) -> bool {
        let words = attributes.iter().map(|&(number, value)| {
            let mut words = [0_u32; ATTRIBUTE_BYTES / 4];
            (words[0], words[VALUE_IN_ATTRIBUTE / 4]) = (number, value);
            words
        });
        let list: Vec<_> = words.collect();
        let mut config = [0_usize; 7];
        config[ATTRIBUTES_IN_CONFIG / 8] = list.as_ptr().expose_provenance();
        config[COUNT_IN_CONFIG / 8] = count;
        let mut pushed = [0_usize; 16];
        pushed[arch::pushed(0)] = config.as_ptr().expose_provenance();
        Arguments(pushed.as_ptr()).is_programmatic()
    }

    #[test]
    fn programmatic_serialisation_is_found_among_attributes() {
        assert!(is_overlapping(&[(2, 1), (PROGRAMMATIC, 1)], 2));
        assert!(!is_overlapping(&[(2, 1), (PROGRAMMATIC, 0)], 2));
        assert!(!is_overlapping(&[(2, 1), (PROGRAMMATIC, 1)], 1));
        assert!(!is_overlapping(&[(2, PROGRAMMATIC)], 1));
        assert!(!is_overlapping(&[], 0));
        let pushed = [0_usize; 16];
        assert!(!Arguments(pushed.as_ptr()).is_programmatic());
    }
}
