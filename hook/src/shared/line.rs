//! The socket pair that wakes the helper thread.

use std::os::fd::RawFd;

use parking_lot::Mutex;

use crate::sys;
use crate::sys::descriptor::{self, Descriptor};

/// A socket pair by which the program's threads wake the helper. Sockets have identities by which a reused
/// descriptor is detected; eventfds do not. A program that closes all of the hook's descriptors at once
/// (closefrom(3)) wakes the helper too, because the other end hangs up.
#[derive(Debug)]
pub(crate) struct Line {
    near: Mutex<Option<Descriptor>>,
    far: Mutex<Option<Descriptor>>,
}

impl Line {
    pub(crate) fn new() -> Self {
        let line = Self {
            near: Mutex::new(None),
            far: Mutex::new(None),
        };
        line.near();
        line
    }

    /// Returns the helper's end. Makes a new pair if the program closed one end; `None` where descriptors are
    /// short.
    pub(crate) fn near(&self) -> Option<RawFd> {
        let of = |end: &Mutex<Option<Descriptor>>| end.lock().as_ref().and_then(Descriptor::get);
        if let (Some(near), Some(_)) = (of(&self.near), of(&self.far)) {
            return Some(near);
        }
        let [near, far] = sys::line().ok()?.map(|end| Descriptor::new(end).ok());
        let fd = near.as_ref()?.get()?;
        *self.near.lock() = near;
        *self.far.lock() = far;
        Some(fd)
    }

    /// Closes both ends in a forked child.
    pub(crate) fn close_in_child(&self) {
        descriptor::close_in_child(&self.near);
        descriptor::close_in_child(&self.far);
    }

    /// Wakes the helper.
    pub(crate) fn wake(&self) {
        if let Some(far) = self.far.lock().as_ref().and_then(Descriptor::get) {
            sys::post(far);
        }
    }
}
