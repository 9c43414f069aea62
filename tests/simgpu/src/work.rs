//! Work of an engine: its kinds, what it costs, and how it is ordered.

use std::fmt;

/// Ordering of a stream relative to the other streams of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The legacy default stream: ordered with all blocking streams.
    Legacy,
    /// Ordered with the legacy default stream.
    Blocking,
    /// Not ordered with other streams.
    NonBlocking,
}

/// Duration of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Nanoseconds of device time.
    Device(u64),
    /// Nanoseconds of wall time since the kernel started, whichever process had the device meanwhile.
    Elapsed(u64),
}

/// Route of a copy; the device has one copy engine per route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
    /// Within the device, or between devices.
    OnDevice,
}

impl Route {
    /// All routes.
    pub(crate) const ALL: [Route; 3] = [Route::ToDevice, Route::ToHost, Route::OnDevice];
}

/// One operation of a stream.
pub enum Work {
    /// A kernel; its effect on memory is applied when it ends.
    Kernel(Cost, Box<dyn FnOnce() + Send>),
    /// A copy with its duration in nanoseconds on the route, independent of turns; the bytes move when it
    /// ends.
    Copy(Route, u64, Box<dyn FnOnce() + Send>),
    /// A closure that the engine's thread runs at once, given the time. It must not block.
    Do(Box<dyn FnOnce(u64) + Send>),
    /// Marks something as done, given the time, while the engine is locked: no thread sees it done and the
    /// operation still in its queue. The second closure wakes the threads that wait for it.
    Mark(Box<dyn FnOnce(u64) + Send>, Box<dyn FnOnce() + Send>),
    /// As `Mark`, but the device must have been given to the process, whose channels it executes only then.
    Timed(Box<dyn FnOnce(u64) + Send>, Box<dyn FnOnce() + Send>),
    /// A closure of the program's, run on a separate thread because it may block.
    Host(Box<dyn FnOnce() + Send>),
    /// Operations that are executed before the stream continues. The closure is called again when they are
    /// done, until it returns none.
    Expand(Box<dyn FnMut() -> Vec<Work> + Send>),
    /// The stream continues when the closure returns true. It is called after any other progress of the
    /// engine, when the engine is nudged and, with [`Watch::Polled`], every 100 µs.
    Wait(Box<dyn FnMut() -> bool + Send>, Watch),
}

/// How an engine learns that a [`Work::Wait`] may be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The code that ends the wait nudges the engine.
    Nudged,
    /// The engine polls.
    Polled,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Work::Kernel(..) => "Kernel",
            Work::Copy(..) => "Copy",
            Work::Do(_) => "Do",
            Work::Mark(..) => "Mark",
            Work::Timed(..) => "Timed",
            Work::Host(_) => "Host",
            Work::Expand(_) => "Expand",
            Work::Wait(..) => "Wait",
        })
    }
}
