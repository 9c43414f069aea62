//! The devices that the process may use (`gcgroup.devices` of its group).
//!
//! The daemon is asked before the driver is initialised, and before NVML lists devices in a process that has
//! not used CUDA; the process need not be registered. The driver is told by `CUDA_VISIBLE_DEVICES`, so that
//! it numbers the devices itself, in every call; NVML's answers are filtered. Without a daemon, and where it
//! does not answer, all devices are allowed; where it refuses, for all of [`PATIENCE`], none.

use std::ffi::OsStr;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::Instant;

use gcgroup_abi::message::{Operation, Request};

use super::client::{self, PATIENCE, RETRY, Refusal, Wait};
use super::environment::Options;
use crate::driver::cuda::CUresult;
use crate::driver::thread;
use crate::sys;

const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The daemon's answer to one process.
#[derive(Debug)]
struct Answer {
    /// A child made by fork(2) asks for itself.
    pid: u32,
    lists: Option<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    /// UUIDs as NVML spells them.
    allowed: Vec<String>,
    /// Value of `CUDA_VISIBLE_DEVICES`.
    value: String,
}

/// The last answer. Never freed, since other threads may read it; a process asks a few times at most.
static ANSWER: AtomicPtr<Answer> = AtomicPtr::new(null_mut());

/// Whether the driver is initialised: its devices do not change any more.
static IS_INITIALIZED: AtomicBool = AtomicBool::new(false);

/// Process of which a thread initialises the driver; 0: none. A child made by fork(2) does not wait for it.
static INITIALIZING: AtomicU32 = AtomicU32::new(0);

/// The right to initialise the driver with another environment, so that two threads do not restore it in the
/// wrong order. Waits for others for [`PATIENCE`] at most: a signal handler may have interrupted the holder.
struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        let (own, deadline) = (std::process::id(), Instant::now() + PATIENCE);
        loop {
            let holder = INITIALIZING.load(Relaxed);
            let is_free = holder != own;
            if is_free
                && INITIALIZING
                    .compare_exchange(holder, own, Acquire, Relaxed)
                    .is_ok()
            {
                return Some(Self);
            }
            if Instant::now() >= deadline {
                return None;
            }
            sys::futex_wait(&INITIALIZING, own, RETRY);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        INITIALIZING.store(0, Release);
        sys::futex_wake(&INITIALIZING);
    }
}

/// Initialises the driver by `next`, which is shown the allowed devices only.
pub(crate) fn initialize(next: impl FnOnce() -> CUresult) -> CUresult {
    if IS_INITIALIZED.load(Relaxed) {
        return next();
    }
    let _turn = Turn::take();
    let lists = ask().lists.as_ref();
    let answer = match lists {
        None => next(),
        Some(lists) => sys::with_variable(VISIBLE_DEVICES, &lists.value, next),
    };
    if answer.is_ok() {
        IS_INITIALIZED.store(true, Relaxed);
    }
    answer
}

/// Returns the UUIDs of the devices that the process may use; `None`: all.
pub(crate) fn uuids() -> Option<&'static [String]> {
    // SAFETY: null or an object that was leaked.
    let known = unsafe { ANSWER.load(Acquire).as_ref() };
    let answer = known.filter(|answer| answer.pid == std::process::id());
    let lists = answer.unwrap_or_else(ask).lists.as_ref();
    lists.map(|lists| lists.allowed.as_slice())
}

/// Asks the daemon, and keeps the answer.
fn ask() -> &'static Answer {
    let answer: &'static Answer = Box::leak(Box::new(Answer {
        pid: std::process::id(),
        // Connecting is a cancellation point.
        lists: thread::uncanceled(request),
    }));
    ANSWER.store(std::ptr::from_ref(answer).cast_mut(), Release);
    answer
}

fn request() -> Option<Lists> {
    let options = Options::from_environment();
    let group = options.hello.group.as_str().unwrap_or("");
    let own = sys::variable(VISIBLE_DEVICES).map(|own| format!("={}", sendable(&own)));
    let request = Request {
        operation: Operation::Devices,
        offset: 0,
        name: group,
        value: own.as_deref().unwrap_or_default().as_bytes(),
    };
    let wait = Wait::begin();
    loop {
        let refusal = match client::request(&options.socket, &request, wait.limit()) {
            Ok(text) => {
                wait.end(true);
                return parse(&text);
            }
            Err(refusal) => refusal,
        };
        let left = wait.left();
        if left.is_zero() || !refusal.may_pass() && !matches!(refusal, Refusal::NoDescriptor) {
            wait.end(!matches!(refusal, Refusal::Unanswered));
            // Other failures end in the driver's own answer.
            return matches!(refusal, Refusal::Refused { .. }).then(Lists::default);
        }
        sys::poll([], Some(RETRY.min(left)));
    }
}

/// Returns the program's `CUDA_VISIBLE_DEVICES` as the daemon is asked. A value that is not UTF-8, or is
/// longer than a list of all devices, names no device: the program's own list is never widened.
fn sendable(own: &OsStr) -> &str {
    let own = own.to_str().unwrap_or_default();
    if own.len() > client::MAX_TEXT { "" } else { own }
}

/// Parses an answer: nothing, or the UUIDs and the value in two lines.
fn parse(text: &[u8]) -> Option<Lists> {
    let (allowed, value) = str::from_utf8(text).ok()?.split_once('\n')?;
    Some(Lists {
        allowed: allowed
            .split(',')
            .filter(|uuid| !uuid.is_empty())
            .map(str::to_owned)
            .collect(),
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_nothing_or_two_lines() {
        assert!(parse(b"").is_none() && parse(b"GPU-a").is_none());
        let lists = parse(b"GPU-a,MIG-b\nMIG-b").unwrap();
        assert_eq!((lists.allowed.len(), &*lists.value), (2, "MIG-b"));
        let none = parse(b"\n").unwrap();
        assert!(none.allowed.is_empty() && none.value.is_empty());
    }

    #[test]
    fn value_that_cannot_be_sent_names_no_device() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(sendable(OsStr::new("0,1")), "0,1");
        assert_eq!(sendable(OsStr::from_bytes(b"0,\xff")), "");
        assert_eq!(sendable(OsStr::new(&"0,".repeat(client::MAX_TEXT))), "");
    }
}
