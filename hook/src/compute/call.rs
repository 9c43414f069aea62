//! A call that submits: which sort of work, to which stream, and what else it names.

use gcgroup_abi::Submission;

use super::context;
use super::reach::DeviceSet;
use crate::cuda::CUstream;

/// Where a call's stream is to be found; the fast path passes it, with the sort of submission, as one word.
///
/// Bits 0–3: the [`Submission`]; 4–7: which argument is the stream, [`NO_STREAM`] or [`IN_CONFIG`];
/// bit 8: whether the default stream is the thread's own; 9–31: what else is named, by `named::names`.
pub(crate) const fn describe(what: Submission, stream: u32, per_thread: bool, names: u32) -> u32 {
    what as u32 | stream << 4 | (per_thread as u32) << 8 | names << 9
}

/// The call goes to the default stream.
pub(crate) const NO_STREAM: u32 = 0xf;
/// The first argument is a `CUlaunchConfig`, which names the stream.
pub(crate) const IN_CONFIG: u32 = 0xe;
/// Where in a `CUlaunchConfig`: after two times three dimensions and the bytes of shared memory.
const STREAM_IN_CONFIG: usize = 32;

/// The arguments of a call, as `fast::closed` laid them out: six registers from the last to the first, two return
/// addresses, and the words on the stack.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Arguments(*const usize);

impl Arguments {
    pub(super) fn get(self, index: usize) -> usize {
        let offset = match index {
            0..6 => 5 - index,
            _ => 8 + index - 6,
        };
        // SAFETY: `describe` names an argument that the function has, and so one that its caller passed.
        unsafe { *self.0.add(offset) }
    }

    /// A word of the structure that the first argument points to.
    pub(super) fn word_in_first(self, offset: usize) -> Option<usize> {
        self.word_behind(0, offset)
    }

    /// A word of what an argument points to.
    pub(super) fn word_behind(self, index: usize, offset: usize) -> Option<usize> {
        let structure = self.get(index);
        // SAFETY: the driver reads the same word of what the program says is such a structure, or a list of them.
        (structure != 0).then(|| unsafe { *std::ptr::with_exposed_provenance::<usize>(structure + offset) })
    }

    /// The stream's handle, with the default stream by its number.
    fn stream(self, call: u32) -> usize {
        let handle = match call >> 4 & 0xf {
            NO_STREAM => 0,
            IN_CONFIG => self.word_in_first(STREAM_IN_CONFIG).unwrap_or(0),
            index => self.get(index as usize),
        };
        default_stream(handle, call >> 8 & 1 != 0)
    }
}

fn default_stream(handle: usize, per_thread: bool) -> usize {
    match (handle, per_thread) {
        (0, false) => context::LEGACY,
        (0, true) => context::PER_THREAD,
        (handle, _) => handle,
    }
}

/// A stream by a handle that names it whatever function it is given to.
pub(crate) fn by_name(stream: CUstream, per_thread: bool) -> CUstream {
    context::stream(default_stream(stream.0.expose_provenance(), per_thread))
}

/// A call that submits, as far as anybody must know where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    /// Passed on by `fast`, with what [`describe`] made of it.
    Passed(u32, Arguments),
    /// Handled: its stream, by what it is here, and the devices that it does work on beside that one's.
    Handled(CUstream, DeviceSet),
}

impl Call {
    pub(super) fn stream(self) -> usize {
        match self {
            Self::Passed(call, arguments) => arguments.stream(call),
            Self::Handled(stream, _) => default_stream(stream.0.addr(), false),
        }
    }

    /// What it names beside the stream.
    pub(super) fn names(self) -> Option<(u32, Arguments)> {
        match self {
            Self::Passed(call, arguments) => Some((call >> 9, arguments)),
            Self::Handled(..) => None,
        }
    }

    /// The devices that it is known to do work on, whatever it names.
    pub(super) fn devices(self) -> DeviceSet {
        match self {
            Self::Passed(..) => DeviceSet::default(),
            Self::Handled(_, devices) => devices,
        }
    }
}
