//! Work for the device: let through, counted, held back.
//!
//! The handlers of submissions are in `calls`, among them `fast`, the path while the gate is open. `slots`
//! says where a thread counts, `gate` what it does at a gate that is not open, `window` how much of it may be
//! queued, `meter` for how long there was some, `graphs` what a graph has in it and `reach` where, `contexts`
//! what there is to wait for (`mark` asks the GPU); `drain`, `progress` and `watch` wait for it in the helper
//! thread.
//!
#![doc = include_str!("freezing.md")]

pub mod call;
pub mod capture;
pub mod context;
pub mod contexts;
pub(crate) mod device_set;
pub mod drain;
pub mod elsewhere;
pub mod gate;
pub mod graphs;
pub mod hold;
mod inside;
mod mark;
pub mod meter;
pub mod named;
mod noted;
pub mod progress;
pub mod quiet;
pub mod reach;
pub mod slot;
pub mod slots;
pub mod wait;
pub mod watch;
mod window;

use std::io;

use gcgroup_abi::{Control, MAX_DEVICES, Usage};

use crate::shared::place::Place;
use crate::shared::session::Session;
use crate::sys;
use contexts::Contexts;
use graphs::Graphs;
use hold::{Holds, Scope};
use meter::Meter;
use reach::Reach;
use slot::Bound;
use slots::Slots;

/// The process's submissions and what they depend on.
#[derive(Debug)]
pub(crate) struct Compute {
    pub(crate) session: &'static Session,
    pub(crate) contexts: Contexts,
    pub(crate) slots: Slots,
    pub(crate) graphs: Graphs,
    pub(crate) reach: Reach,
    pub(crate) holds: Holds,
    /// Indexed by device.
    meters: [Meter; MAX_DEVICES],
}

impl Compute {
    pub(crate) fn new(session: &'static Session) -> io::Result<Self> {
        Ok(Self {
            session,
            contexts: Contexts::new(),
            slots: Slots::new()?,
            graphs: Graphs::default(),
            reach: Reach::default(),
            holds: Holds::new(),
            meters: [const { Meter::new() }; MAX_DEVICES],
        })
    }

    #[inline]
    pub(crate) fn usage(&self) -> &Usage {
        self.session.usage()
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        self.session.control()
    }

    /// Returns the calling thread's slot, taking one if needed; `None` without a current context.
    #[inline]
    pub(crate) fn bind(&self) -> Option<Bound<'_>> {
        self.slots.bind(self.session, &self.contexts)
    }

    /// Returns the slot for a submission to the stream with that number.
    fn bind_on(&self, stream: usize) -> Option<Bound<'_>> {
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
    pub(crate) fn place(&self) -> Option<Place> {
        match self.slots.in_block_now(self.session) {
            Some(bound) => bound.place(),
            None => self.place_elsewhere().map(Place::unpacked),
        }
    }

    /// Returned in one word, so that the rare call does not force the place into memory.
    #[cold]
    #[inline(never)]
    fn place_elsewhere(&self) -> Option<u64> {
        Some(self.bind()?.place()?.packed())
    }

    /// Blocks new submissions to the devices. The caller must wait for threads already inside a submission.
    pub(crate) fn hold(&self, scope: Scope) {
        self.holds.close(scope);
        self.slots.watch(self.session, true);
        sys::barrier();
    }

    /// Follows a new control block, which may number devices differently.
    pub(crate) fn renumber(&self) {
        self.slots.renumber(self.session);
        self.contexts.tell(self.session);
    }
}

impl std::ops::Deref for Compute {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session
    }
}

#[cfg(test)]
impl Compute {
    /// Returns the compute engine of a process without a daemon, a helper or a driver; `limit` is the memory
    /// limit for all devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        Box::leak(Box::new(Self::new(Session::of_test(limit)).unwrap()))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &std::os::fd::OwnedFd) {
        self.session.adopt(control);
        self.session.devices.refresh(self.control());
        self.renumber();
    }
}
