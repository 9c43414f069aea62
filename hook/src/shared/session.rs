//! The process's side of what it shares with the daemon: both blocks, the connection, and the devices.

use std::io;
use std::path::Path;
use std::sync::atomic::{
    AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

use gcgroup_abi::message::Hello;
use gcgroup_abi::{Control, ControlDevice, Usage, UsageDevice};
use parking_lot::Mutex;

use super::block::{Blocks, NotOurs};
use super::client::{self, Refusal};
use super::device::Devices;
use super::environment::Options;
use super::line::Line;
use super::patience::{Limit, Patience};
use super::promise;
use crate::sys;
use crate::sys::descriptor::{self, Descriptor};
use crate::sys::log;

#[derive(Debug)]
pub(crate) struct Session {
    blocks: Blocks,
    options: Options,
    pub(crate) devices: Devices,
    /// The connection to the daemon. Used by the helper thread, by the thread that makes the process, and by
    /// a child that closes its copy.
    pub(crate) connection: Mutex<Option<Descriptor>>,
    /// Wakes the helper.
    pub(crate) line: Line,
    /// The root directory when the session was made.
    root: Option<descriptor::Identity>,
    /// Whether a daemon ever accepted this process.
    is_governed: AtomicBool,
    /// Whether CUDA is forbidden to the process while it is not governed: by a rule, as the last answer of a
    /// daemon says, or because no daemon answers and the administrator promises limits ([`promise`]).
    is_barred: AtomicBool,
    has_complained: AtomicBool,
    /// Whether the last attempt to register failed for want of a descriptor.
    lacks_descriptor: AtomicBool,
    has_lost_root: AtomicBool,
    /// Outcome of the last attempt to register, for the log.
    last_outcome: AtomicU32,
}

impl Session {
    /// Makes a session without a daemon.
    ///
    /// # Errors
    /// There is no memory for the blocks.
    pub(crate) fn new(options: Options) -> io::Result<Self> {
        if let Some(path) = &options.log {
            log::LOG.start(path);
        }
        if let Some(variable) = options.misunderstood.filter(|_| !options.required) {
            sys::complain(&format!("{variable} is ignored: its value is not understood"));
        }
        let blocks = Blocks::new(options.hello.memory_limit, options.hello.memory_swap_max)?;
        blocks.usage().can_swap.store(options.hello.can_swap, Relaxed);
        blocks.usage().tells_wanted.store(1, Relaxed);
        Ok(Self {
            blocks,
            options,
            devices: Devices::new(),
            connection: Mutex::new(None),
            line: Line::new(),
            root: descriptor::root(),
            is_governed: AtomicBool::new(false),
            is_barred: AtomicBool::new(false),
            has_complained: AtomicBool::new(false),
            lacks_descriptor: AtomicBool::new(false),
            has_lost_root: AtomicBool::new(false),
            last_outcome: AtomicU32::new(0),
        })
    }

    #[inline]
    pub(crate) fn usage(&self) -> &Usage {
        self.blocks.usage()
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        self.blocks.control()
    }

    /// Returns the parts of both blocks about the device with that index.
    #[inline]
    pub(crate) fn device(&self, index: usize) -> Option<(&UsageDevice, &ControlDevice)> {
        Some((
            self.usage().devices.get(index)?,
            self.control().devices.get(index)?,
        ))
    }

    /// Returns whether the daemon enables swap for the process.
    pub(crate) fn enables_swap(&self) -> bool {
        !self.options.refuses_swap && self.control().enables_swap.load(Relaxed) != 0
    }

    /// Returns whether CUDA is refused unless a daemon governs the process.
    pub(crate) fn is_required(&self) -> bool {
        self.options.required
    }

    /// Returns whether a rule of the daemon forbids CUDA to this process, which the daemon has refused to
    /// govern.
    #[inline]
    pub(crate) fn is_barred(&self) -> bool {
        self.is_barred.load(Relaxed)
    }

    /// Returns whether a daemon ever accepted this process.
    pub(crate) fn is_governed(&self) -> bool {
        self.is_governed.load(Relaxed)
    }

    /// Registers with the daemon and takes its control block. Waits for its answer within `limit`.
    pub(crate) fn register(&self, limit: Limit) -> Result<Descriptor, Refusal> {
        if let Some(variable) = self.options.misunderstood.filter(|_| self.is_required()) {
            return Err(Refusal::Misunderstood(variable));
        }
        self.keep_usage();
        // Once the process has started in its group, it may have been moved to another one.
        let hello = Hello {
            insists: (self.is_required() && !self.is_governed()).into(),
            ..self.options.hello
        };
        let answer = self
            .blocks
            .with_usage_file(|usage| client::register(&self.options.socket, &hello, usage, limit))
            .unwrap_or_else(|error| Err(self.excuse(error)));
        let answer = answer.and_then(|(connection, control)| self.govern(connection, &control));
        self.note_bar(answer.as_ref().err());
        self.complain_of(answer.as_ref().err());
        self.log_outcome(answer.as_ref().err());
        answer
    }

    /// Keeps whether the daemon's answer, or the lack of one, forbids CUDA to the process.
    fn note_bar(&self, refusal: Option<&Refusal>) {
        let is_barred = match refusal {
            None => false,
            // A process that was governed keeps its last limits.
            Some(_) if !self.is_governed() && promise::is_made(&self.options.socket) => true,
            Some(Refusal::Refused { bars_cuda, .. }) => *bars_cuda,
            // Not an answer of a daemon.
            Some(_) => return,
        };
        // EAGAIN is no verdict of the rules, and leaves an earlier one in force.
        if is_barred || !refusal.is_some_and(Refusal::may_pass) {
            self.is_barred.store(is_barred, Relaxed);
        }
    }

    /// Tells the daemon once that the process has no usage block.
    fn excuse(&self, error: io::Error) -> Refusal {
        let refusal = error.into();
        if matches!(refusal, Refusal::Forbidden(_)) && !self.has_complained.load(Relaxed) {
            client::excuse(&self.options.socket, &self.options.hello);
        }
        refusal
    }

    /// Logs the outcome of an attempt to register, unless the last one had the same.
    fn log_outcome(&self, refusal: Option<&Refusal>) {
        let number = refusal.map_or(1, Refusal::number);
        if self.last_outcome.swap(number, Relaxed) == number && refusal.is_some() {
            return;
        }
        let socket = self.options.socket.to_string_lossy();
        log::line(|| match refusal {
            None => format!("governed by the daemon at {socket}"),
            Some(refusal) => format!("not registered with {socket}: {refusal:?}"),
        });
    }

    fn govern(&self, connection: Descriptor, control: &Descriptor) -> Result<Descriptor, Refusal> {
        let control = control.get().ok_or(Refusal::Absent)?;
        self.blocks.adopt(&control).map_err(|not_ours| match not_ours {
            NotOurs::Version(theirs) => Refusal::Version(theirs),
            NotOurs::Kind => Refusal::Unanswered,
            NotOurs::Forbidden(error) => error.into(),
        })?;
        self.is_governed.store(true, Relaxed);
        Ok(connection)
    }

    /// Copies what the last daemon charged and measured, so that the next one continues from there.
    fn keep_usage(&self) {
        for (control, usage) in self.control().devices.iter().zip(&self.usage().devices) {
            usage
                .usage_nsec_before
                .store(control.usage_nsec.load(Relaxed), Relaxed);
            usage
                .memory_overhead_before
                .store(control.memory_overhead.load(Relaxed), Relaxed);
        }
    }

    /// Begins a wait for an answer of the daemon in a control block.
    pub(crate) fn patience(&self, limit: Limit) -> Patience {
        let connection = self.connection.lock();
        let socket = connection.as_ref().and_then(Descriptor::get);
        Patience::new(limit, socket.unwrap_or(-1))
    }

    /// Rings the daemon to look at the usage block. The lock is held for at most the time of one packet.
    pub(crate) fn ring(&self) {
        let connection = self.connection.lock();
        let is_lost = connection
            .as_ref()
            .is_some_and(|connection| !client::ring(connection));
        drop(connection);
        if is_lost {
            // The program closed the connection: the helper makes another.
            self.line.wake();
        }
    }

    /// Rings the daemon if the process has left the GPU because it was idle: a call needs the GPU. The caller
    /// has seen a closed gate or a hold.
    pub(crate) fn want_gpu(&self) {
        fence(SeqCst);
        let number = self.control().idle_generation.load(Relaxed);
        if number != 0 && self.usage().wanted_generation.swap(number, Release) != number {
            self.ring();
        }
    }

    /// Opens the gates, because the daemon has been away for longer than announced.
    pub(crate) fn open_gates(&self, keep_frozen: bool) {
        log::line(|| "gates opened: the daemon has been away for too long".to_owned());
        // Without memory the gates stay as they were.
        let _ = self.blocks.open_gates(keep_frozen);
    }

    /// Closes a forked child's copies of the descriptors. Async-signal-safe.
    pub(crate) fn close_in_child(&self) {
        self.blocks.leave_in_child();
        descriptor::close_in_child(&self.connection);
        self.line.close_in_child();
    }

    /// Reports on standard error why CUDA is refused to a process that must be governed.
    pub(crate) fn complain_of_refusal(&self, refusal: &Refusal) {
        let socket = self.options.socket.to_string_lossy();
        let reason = match (refusal, self.options.hello.group.as_str()) {
            (Refusal::Absent, _) => format!("no daemon answers at {socket}"),
            (Refusal::Unanswered, _) => format!("the daemon at {socket} does not answer in time"),
            (Refusal::Misunderstood(variable), _) => format!("the value of {variable} is not understood"),
            (Refusal::NoDescriptor, _) => "no file descriptor is free".to_owned(),
            (Refusal::Forbidden(error), _) => error.to_string(),
            (Refusal::Version(theirs), _) => format!("the daemon speaks version {theirs}"),
            (refusal, Some(group)) if refusal.is_for_permission() => {
                format!("the daemon does not admit this process to group {group}")
            }
            (refusal, _) if refusal.is_for_now() => "the daemon has too much to do".to_owned(),
            (Refusal::Refused { errno, .. }, _) if *errno == libc::EDQUOT.cast_unsigned() => {
                "too many processes of this user are governed".to_owned()
            }
            (Refusal::Refused { errno, .. }, _) => {
                let error = io::Error::from_raw_os_error(errno.cast_signed());
                format!("the daemon refuses this process: {error}")
            }
        };
        let by = match refusal {
            _ if self.is_required() => "GCGROUP_REQUIRED",
            Refusal::Refused { bars_cuda: true, .. } => "by a rule",
            _ => "by the administrator",
        };
        sys::complain(&format!(
            "CUDA is refused, since this process must be governed ({by}): {reason}"
        ));
    }

    /// Reports on standard error why the process is not governed, once for each reason, where a daemon can be
    /// expected.
    fn complain_of(&self, refusal: Option<&Refusal>) {
        let lacks_descriptor = matches!(refusal, Some(Refusal::NoDescriptor));
        let lacked_descriptor = self.lacks_descriptor.swap(lacks_descriptor, Relaxed);
        let socket = self.options.socket.to_string_lossy();
        match refusal {
            Some(Refusal::Version(theirs)) if !self.has_complained.swap(true, Relaxed) => {
                let ours = gcgroup_abi::VERSION;
                sys::complain(&format!(
                    "the daemon speaks version {theirs}, this hook {ours}: not governed"
                ));
            }
            Some(Refusal::Forbidden(error)) if !self.has_complained.swap(true, Relaxed) => {
                sys::complain(&format!("not governed: {error}"));
            }
            Some(Refusal::NoDescriptor) if !lacked_descriptor && Path::new(&self.options.socket).exists() => {
                sys::complain("no file descriptor is free: not governed until one is");
            }
            Some(Refusal::Absent)
                if self.is_governed()
                    && descriptor::root() != self.root
                    && !self.has_lost_root.swap(true, Relaxed) =>
            {
                sys::complain(&format!(
                    "no daemon answers at {socket} in the program's new root directory: the last limits hold"
                ));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
impl Session {
    /// Returns a session for a test, without a daemon; `limit` is the limit for all devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        let options = Options {
            socket: "".into(),
            hello: Hello {
                memory_limit: limit,
                ..Hello::PLAIN
            },
            refuses_swap: false,
            required: false,
            log: None,
            misunderstood: None,
        };
        Box::leak(Box::new(Self::new(options).unwrap()))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &std::os::fd::OwnedFd) {
        self.blocks.adopt(control).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_of_a_rule_outlasts_eagain() {
        let session = Session::of_test(0);
        let refused = |errno: i32, bars_cuda| Refusal::Refused {
            errno: errno.cast_unsigned(),
            bars_cuda,
        };
        for (refusal, want) in [
            (Some(refused(libc::EAGAIN, false)), false),
            (Some(refused(libc::EAGAIN, true)), true),
            (Some(refused(libc::EAGAIN, false)), true),
            (Some(Refusal::Unanswered), true),
            (Some(refused(libc::EDQUOT, false)), false),
            (Some(refused(libc::EACCES, true)), true),
            (Some(refused(libc::EAGAIN, false)), true),
            (None, false),
        ] {
            session.note_bar(refusal.as_ref());
            assert_eq!(session.is_barred(), want, "{refusal:?}");
        }
    }
}
