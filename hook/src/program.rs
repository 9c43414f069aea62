//! Contexts and streams of the program, and for each of its threads a slot with counters.
//!
//! `contexts` lists the contexts and `context` describes one, with the markers (`marker`) that tell whether
//! the GPU has reached a position in its work, and `moment`s, of which it tells the time; `departed` has the
//! destroyed streams whose work runs on, and `capture` the captures in progress. `slots` assigns a `slot` to
//! each thread; `entry_snapshot` is a snapshot of a thread that is inside submissions. A slot has its
//! thread's in-flight window (`window`).

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod contexts;
pub(crate) mod departed;
pub(crate) mod entry_snapshot;
pub(crate) mod last_stream;
mod marker;
pub(crate) mod slot;
pub(crate) mod slots;
pub(crate) mod window;

use std::io;

use crate::driver;
use crate::driver::cuda::CUerror;
use crate::shared::session::Session;
use crate::shared::target::Target;
use contexts::Contexts;
use slot::Bound;
use slots::Slots;

/// Returns the driver's error for a thread without a known target.
#[cold]
#[inline(never)]
pub(crate) fn no_target() -> CUerror {
    let mut device = 0;
    let error = driver::cuCtxGetDevice(&mut device).err();
    error.unwrap_or(CUerror::INVALID_CONTEXT)
}

/// The program's contexts and threads.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) session: &'static Session,
    pub(crate) contexts: Contexts,
    pub(crate) slots: Slots,
}

impl Program {
    pub(crate) fn new(session: &'static Session) -> io::Result<Self> {
        Ok(Self {
            session,
            contexts: Contexts::new(),
            slots: Slots::new()?,
        })
    }

    /// Returns the calling thread's slot, taking one if needed; `None` without a current context.
    #[inline]
    pub(crate) fn bind(&self) -> Option<Bound<'_>> {
        self.slots.bind(self.session, &self.contexts)
    }

    /// Returns the slot for a submission to the stream with that number.
    pub(crate) fn bind_on(&self, stream: usize) -> Option<Bound<'_>> {
        self.slots.bind_on(self.session, &self.contexts, stream)
    }

    /// Returns the calling thread's slot, if it has one on its current device.
    #[inline]
    pub(crate) fn current(&self) -> Option<Bound<'_>> {
        self.slots.current(self.session)
    }

    /// Moves the calling thread to the slot of its current device, because its context may have changed.
    pub(crate) fn moved(&self) {
        self.slots.moved(self.session, &self.contexts);
    }

    /// Returns the device and context in which the calling thread allocates; `None` without a current
    /// context, which the driver refuses itself.
    #[inline]
    pub(crate) fn target(&self) -> Option<Target> {
        match self.slots.in_block_now(self.session) {
            Some(bound) => bound.target(),
            None => self.target_elsewhere().map(Target::unpacked),
        }
    }

    /// Returned in one word, so that the rare call does not force the target into memory.
    #[cold]
    #[inline(never)]
    fn target_elsewhere(&self) -> Option<u64> {
        Some(self.bind()?.target()?.packed())
    }

    /// Follows a new control block, which may number devices differently.
    pub(crate) fn renumber(&self) {
        self.slots.renumber(self.session);
        self.contexts.tell(self.session);
    }
}

#[cfg(test)]
impl Program {
    /// Returns the contexts and threads of a process without a daemon, a helper or a driver; `limit` is the
    /// memory limit for all devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        Box::leak(Box::new(Self::new(Session::of_test(limit)).unwrap()))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &std::os::fd::OwnedFd) {
        self.session.adopt(control);
        self.session.devices.refresh(self.session.control());
        self.renumber();
    }
}
