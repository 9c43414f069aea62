//! `memory.notice`: what a program is told before its memory moves out for others. The hook gives the notice
//! and waits (`hook/src/swap/notice.rs`); the daemon shows it, wakes its pollers, and tells the hook whether
//! there are readers: without them no move is delayed.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::NO_LIMIT;

use super::process::Process;
use super::{Edit, Notice, Scope, State, View, enforce};
use crate::error::{Error, Result};
use crate::text::parse_number;

/// Time between a notice and the move unless written, and the longest, milliseconds: memory turns take a
/// process to be stuck that moves nothing for 5 s, and an allocation waits 10 s for room.
const GRACE: u32 = 100;
pub const MOST_GRACE: u32 = 3000;

/// For how long a program that has read the file is a reader, nanoseconds: one that does not poll reads again
/// within this time.
const READ: u64 = 2_000_000_000;

impl State {
    /// Returns `memory.notice.grace`.
    fn notice_grace(&self) -> u32 {
        self.root.notice_grace().unwrap_or(GRACE)
    }

    /// Returns the time that a process is given before its memory moves.
    pub(super) fn grace_of(&self, process: &Process) -> Duration {
        Duration::from_micros(enforce::notice_usec(process, (self.devices.host.now)()).into())
    }

    /// Returns the bytes that a process may take on a device before a limit is reached or the device is full.
    fn available_to(&self, process: &Process, device: usize) -> u64 {
        let left = |limit: u64, held: u64| match limit {
            NO_LIMIT => NO_LIMIT,
            limit => limit.saturating_sub(held),
        };
        let control = process.control();
        let Some(on_device) = control.devices.get(device) else {
            return 0;
        };
        let total = self.devices.get(device).map_or(0, |device| device.total);
        left(total, self.current_in(None, Some(device)))
            .min(left(
                on_device.memory_limit.load(Relaxed),
                self.current_of(process, Some(device)),
            ))
            .min(left(
                control.memory_limit.load(Relaxed),
                self.current_of(process, None),
            ))
            .min(on_device.group_room.load(Relaxed))
    }
}

impl View<'_> {
    /// Returns the line of `memory.notice`, and has the process given notice while it is read.
    ///
    /// # Errors
    /// [`Error::NotFound`] except for processes.
    pub fn notice(&self) -> Result<String> {
        let Scope::Process(process, device) = self.scope() else {
            return Err(Error::NotFound);
        };
        let (state, now) = (self.state(), (self.state().devices.host.now)());
        enforce::read_notices(process, state.notice_grace() * 1000, now.saturating_add(READ));
        let target = process.notice_target(device, &state.devices);
        if target > 0 {
            let most = u64::from(MOST_GRACE) * 1000;
            let left = process.usage().notice_deadline().saturating_sub(now) / 1000;
            return Ok(format!(
                "evict target={target} deadline_usec={}\n",
                left.min(most)
            ));
        }
        let is_used = |slot: &usize| device.is_none() && state.current_of(process, Some(*slot)) > 0;
        let mut slots: Vec<usize> = (0..state.devices.len()).filter(is_used).collect();
        slots.extend(device);
        let available = slots.iter().map(|slot| state.available_to(process, *slot));
        Ok(format!("available {}\n", available.fold(0, u64::saturating_add)))
    }

    /// Notes whether `memory.notice` of the process has a poller.
    pub fn poll_notices(&self, is_polled: bool) {
        if let Scope::Process(process, _) = self.scope() {
            let until = if is_polled { u64::MAX } else { 0 };
            enforce::poll_notices(process, self.state().notice_grace() * 1000, until);
        }
    }

    /// Returns `memory.notice.grace`.
    pub fn notice_grace(&self) -> u32 {
        self.state().notice_grace()
    }
}

impl Edit<'_> {
    /// Sets `memory.notice.grace`.
    ///
    /// # Errors
    /// * `EINVAL`: not a number.
    /// * `ERANGE`: more than 3000.
    pub fn set_notice_grace(&mut self, text: &str) -> Result<()> {
        let msec = parse_number(text, MOST_GRACE.into(), "milliseconds (from 0 to 3000)")?;
        let msec = u32::try_from(msec).unwrap_or(MOST_GRACE);
        let root = &mut self.state.root;
        if root.notice_grace() != Some(msec) {
            root.set_notice_grace(msec);
            for process in self.state.processes.values() {
                enforce::give_notice(process, msec * 1000);
            }
            self.notices.push(Notice::RootChanged);
        }
        Ok(())
    }
}
