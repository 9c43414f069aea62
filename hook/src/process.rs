//! The state of a process that uses CUDA.
//!
//! The object is made by the first successful `cuInit`, or before the first `cuInit` if the process must be
//! governed, and is never freed. A child made by fork(2) or clone(2) has none, since blocks, locks and driver
//! state belong to the parent.

use std::io;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst,
};
use std::time::{Duration, Instant};

use gcgroup_abi::message::Hello;
use gcgroup_abi::{Control, MAX_DEVICES, Usage};
use parking_lot::Mutex;

use crate::block::{Blocks, NotOurs};
use crate::client::{self, Refusal};
use crate::compute::contexts::Contexts;
use crate::compute::graphs::Graphs;
use crate::compute::hold::Holds;
use crate::compute::meter::Meter;
use crate::compute::reach::Reach;
use crate::compute::slots::Slots;
use crate::cuda::{CUerror, CUresult};
use crate::descriptor::{self, Descriptor};
use crate::device::Devices;
use crate::helper::{self, Line};
use crate::interpose::{self, Next};
use crate::mapping::{Mapping, PAGE};
use crate::memory::Memory;
use crate::swap::Swap;
use crate::symbols;
use crate::sys;
use crate::thread;
use crate::wishes::Wishes;

#[derive(Debug)]
pub(crate) struct Process {
    blocks: Blocks,
    wishes: Wishes,
    /// A word that is not 0, except in a child: its page is wiped on fork.
    own: Mapping,
    pub(crate) devices: Devices,
    pub(crate) memory: Memory,
    pub(crate) contexts: Contexts,
    pub(crate) slots: Slots,
    pub(crate) graphs: Graphs,
    pub(crate) reach: Reach,
    pub(crate) holds: Holds,
    pub(crate) swap: Swap,
    /// Indexed by device.
    pub(crate) meters: [Meter; MAX_DEVICES],
    /// The connection to the daemon. Used by the helper thread, by the thread that makes the process, and by
    /// a child that closes its copy.
    pub(crate) connection: Mutex<Option<Descriptor>>,
    /// Wakes the helper.
    pub(crate) line: Line,
    /// The root directory when the process was made.
    root: Option<descriptor::Identity>,
    /// Whether a daemon ever accepted this process.
    is_governed: AtomicBool,
    has_complained: AtomicBool,
    /// Whether the last attempt to register failed for want of a descriptor.
    lacks_descriptor: AtomicBool,
    has_lost_root: AtomicBool,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// [`IDLE`], or [`BUSY`] while some thread makes the process. A word and not a lock, so that a child can
/// reset it.
static STARTING: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const BUSY: u32 = 1;
/// The longest time between two checks of [`STARTING`].
const START_RECHECK: Duration = Duration::from_millis(100);
/// The longest time for which a thread waits for the helper thread to make the process.
const START_LIMIT: Duration = Duration::from_secs(2 * PATIENCE.as_secs());
/// Bytes of stack with which a thread makes the process itself: several times the size of a [`Process`].
const ENOUGH_STACK: usize = 1 << 20;

/// Set when the program exits normally; nothing waits after that.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// Whether [`at_exit`] is registered.
static IS_EXIT_HANDLED: AtomicBool = AtomicBool::new(false);

/// How long the first `cuInit` tries to register while a daemon listens and does not answer, or answers
/// `EAGAIN`; for a process that must be governed, also while there is no daemon. On an overloaded machine a
/// daemon may be delayed by 3 s. The daemon delays a registration that comes too soon by less.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause between two attempts.
const RETRY: Duration = Duration::from_millis(50);

/// Returns this process, if it uses CUDA.
pub(crate) fn get() -> Option<&'static Process> {
    // SAFETY: null or a process that was leaked.
    let process = unsafe { PROCESS.load(Acquire).as_ref() }?;
    if process.is_own() {
        return Some(process);
    }
    forget();
    None
}

/// Returns whether the program is exiting.
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(SeqCst)
}

/// Handles `cuInit`: the first successful call registers the process with the daemon.
///
/// A process that must be governed (`GCGROUP_REQUIRED`) registers before the driver is initialised. If it
/// cannot, the driver stays uninitialised and refuses every call, even if the program ignores the error of
/// this one.
pub(crate) fn init(next: Next<'_>) -> CUresult {
    if is_required() {
        // A panic in the hook must not lead to the driver's own answer here. If another thread is starting
        // the process, `start` waits for it.
        interpose::guarded(|| thread::uncanceled(start));
        if !get().is_some_and(|process| process.is_governed.load(Relaxed)) {
            return Err(CUerror::SYSTEM_NOT_READY);
        }
    }
    next()?;
    // Registered after the driver's own exit handler, so that ours runs before it.
    if !IS_EXIT_HANDLED.swap(true, Relaxed) {
        sys::on_exit(at_exit);
    }
    begin().inspect(|process| symbols::count_unknown(process));
    Ok(())
}

/// Returns whether the program must not use CUDA without a daemon.
fn is_required() -> bool {
    get().map_or_else(
        || Wishes::from_environment().required,
        |process| process.wishes.required,
    )
}

/// Returns this process, made if there is none yet. Waits while another thread makes it: otherwise the caller
/// could start work before the daemon's limits apply.
fn begin() -> Option<&'static Process> {
    match STARTING.load(Acquire) {
        IDLE => get(),
        _ => None,
    }
    .or_else(|| thread::uncanceled(start))
}

/// Resets [`STARTING`] when dropped.
struct Starting;

impl Drop for Starting {
    fn drop(&mut self) {
        STARTING.store(IDLE, Release);
        sys::futex_wake(&STARTING);
    }
}

/// Makes the process: on the caller's stack if at least [`ENOUGH_STACK`] of it is left, else in the helper
/// thread, for which the caller waits at most [`START_LIMIT`]. A thread may have a stack of 16 KiB, and a
/// [`Process`] is larger. The caller's stack is preferred because the first call may come from a constructor
/// of a library: dlopen(3) then holds the loader's lock, for which another thread's first access to
/// thread-local data waits in glibc before 2.35. Where no thread can be started, the process has no helper.
fn start() -> Option<&'static Process> {
    static IS_FORK_HANDLED: AtomicBool = AtomicBool::new(false);
    while STARTING.compare_exchange(IDLE, BUSY, AcqRel, Relaxed).is_err() {
        sys::futex_wait(&STARTING, BUSY, START_RECHECK);
    }
    let starting = Starting;
    if get().is_none() {
        if !IS_FORK_HANDLED.swap(true, Relaxed) {
            sys::on_fork(in_child);
        }
        if sys::stack_left().is_some_and(|left| left >= ENOUGH_STACK) {
            if make().is_ok() {
                let _ = sys::spawn(c"gcgroup", helper::run);
            }
        } else if sys::spawn(c"gcgroup", live).is_ok() {
            // The helper thread resets the word.
            std::mem::forget(starting);
            let deadline = Instant::now() + START_LIMIT;
            while STARTING.load(Acquire) == BUSY && Instant::now() < deadline {
                sys::futex_wait(&STARTING, BUSY, START_RECHECK);
            }
        } else {
            let _ = make();
        }
    }
    get()
}

/// Makes the process and runs the helper, in the helper thread.
fn live() {
    {
        let _starting = Starting;
        let _ = interpose::guarded(make);
    }
    helper::run();
}

#[inline(never)]
fn make() -> io::Result<()> {
    sys::register_barrier();
    let process: &'static Process = Box::leak(Box::new(Process::new(Wishes::from_environment())?));
    PROCESS.store(std::ptr::from_ref(process).cast_mut(), Release);
    *process.connection.lock() = process.enter();
    Ok(())
}

/// Drops the parent's state in a forked child. Async-signal-safe, since other threads may have held any lock.
unsafe extern "C" fn in_child() {
    // SAFETY: null or a process that was leaked; the child has a copy of its memory.
    if let Some(process) = unsafe { PROCESS.load(Relaxed).as_ref() } {
        process.blocks.close_file();
        descriptor::close_in_child(&process.connection);
        process.line.close_in_child();
        descriptor::restore_limit_in_child();
    }
    helper::forget();
    STARTING.store(IDLE, Relaxed);
    forget();
}

fn forget() {
    PROCESS.store(null_mut(), Relaxed);
    thread::set_slot(thread::unbound());
}

extern "C" fn at_exit() {
    IS_EXITING.store(true, Relaxed);
    helper::leave_driver();
}

impl Process {
    fn new(wishes: Wishes) -> io::Result<Self> {
        let can_swap = wishes.hello.can_swap != 0;
        let blocks = Blocks::new(wishes.hello.memory_limit, wishes.hello.memory_swap_max)?;
        blocks.usage().can_swap.store(can_swap.into(), Relaxed);
        blocks.usage().asks_to_swap.store(1, Relaxed);
        let own = Mapping::anonymous(PAGE)?;
        own.wipe_on_fork()?;
        own_word(&own).store(1, Relaxed);
        Ok(Self {
            blocks,
            wishes,
            own,
            devices: Devices::new(),
            memory: Memory::new(),
            contexts: Contexts::new(),
            slots: Slots::new()?,
            graphs: Graphs::default(),
            reach: Reach::default(),
            holds: Holds::new(),
            swap: Swap::new(can_swap),
            meters: [const { Meter::new() }; MAX_DEVICES],
            connection: Mutex::new(None),
            line: Line::new(),
            root: descriptor::root(),
            is_governed: AtomicBool::new(false),
            has_complained: AtomicBool::new(false),
            lacks_descriptor: AtomicBool::new(false),
            has_lost_root: AtomicBool::new(false),
        })
    }

    fn is_own(&self) -> bool {
        own_word(&self.own).load(Relaxed) != 0
    }

    pub(crate) fn usage(&self) -> &Usage {
        self.blocks.usage()
    }

    pub(crate) fn control(&self) -> &Control {
        self.blocks.control()
    }

    /// Registers for the first time. Retries for [`PATIENCE`] while a daemon listens that may admit the
    /// process later. If the process must be governed, retries also while there is no daemon, and reports on
    /// standard error why CUDA is refused. Otherwise calls pass ungoverned until the helper has registered
    /// the process.
    fn enter(&self) -> Option<Descriptor> {
        let is_required = self.wishes.required;
        let mut left = PATIENCE;
        let deadline = Instant::now() + left;
        loop {
            let refusal = match self.register(left) {
                Ok(connection) => return Some(connection),
                Err(refusal) => refusal,
            };
            left = deadline.saturating_duration_since(Instant::now());
            let is_worth_it = refusal.may_pass() || is_required && !refusal.is_final();
            if left.is_zero() || !is_worth_it {
                if is_required {
                    sys::complain(&self.refused_for(&refusal));
                }
                return None;
            }
            sys::poll([], Some(RETRY.min(left)));
        }
    }

    fn refused_for(&self, refusal: &Refusal) -> String {
        let socket = self.wishes.socket.to_string_lossy();
        let reason = match (refusal, self.wishes.hello.group.as_str()) {
            (Refusal::Absent | Refusal::Unanswered, _) => format!("no daemon answers at {socket}"),
            (Refusal::NoDescriptor, _) => "no file descriptor is free".to_owned(),
            (Refusal::Version(theirs), _) => format!("the daemon speaks version {theirs}"),
            (refusal, Some(group)) if refusal.is_for_permission() => {
                format!("the daemon does not admit this process to group {group}")
            }
            (Refusal::Refused(errno), _) => {
                let error = io::Error::from_raw_os_error(errno.cast_signed());
                format!("the daemon refuses this process: {error}")
            }
        };
        format!("CUDA is refused, since this process must be governed (GCGROUP_REQUIRED): {reason}")
    }

    /// Registers with the daemon and takes its control block.
    pub(crate) fn register(&self, patience: Duration) -> Result<Descriptor, Refusal> {
        self.keep_usage();
        // Once the process has started in its group, it may have been moved to another one.
        let hello = Hello {
            insists: (self.wishes.required && !self.is_governed.load(Relaxed)).into(),
            ..self.wishes.hello
        };
        let answer = self
            .blocks
            .with_usage_file(|usage| client::register(&self.wishes.socket, &hello, usage, patience))
            .unwrap_or_else(|error| Err(error.into()));
        let answer = answer.and_then(|(connection, control)| self.govern(connection, &control));
        self.complain_of(answer.as_ref().err());
        answer
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

    fn govern(&self, connection: Descriptor, control: &Descriptor) -> Result<Descriptor, Refusal> {
        let control = control.get().ok_or(Refusal::Absent)?;
        self.blocks.adopt(&control).map_err(|not_ours| match not_ours {
            NotOurs::Version(theirs) => Refusal::Version(theirs),
            NotOurs::Kind => Refusal::Unanswered,
        })?;
        self.is_governed.store(true, Relaxed);
        self.memory.grants.begin_again();
        self.renumber();
        Ok(connection)
    }

    /// Looks for devices that the daemon has found since the last look.
    pub(crate) fn look_for_devices(&self) {
        if self.devices.are_outdated(self.control()) {
            self.renumber();
        }
    }

    /// Updates device numbers from a new control block, which may know more devices or number them
    /// differently.
    fn renumber(&self) {
        self.devices.refresh(self.control());
        self.memory.renumber(self);
        self.swap.renumber(self);
        self.slots.renumber(self);
        self.contexts.tell(self);
    }

    /// Opens the gates, because the daemon has been away for longer than announced.
    pub(crate) fn open_gates(&self, keep_frozen: bool) {
        // Without memory the gates stay as they were.
        let _ = self.blocks.open_gates(keep_frozen);
    }

    /// Reports on standard error why the process is not governed, once for each reason, where a daemon can be
    /// expected.
    fn complain_of(&self, refusal: Option<&Refusal>) {
        let lacks_descriptor = matches!(refusal, Some(Refusal::NoDescriptor));
        let lacked_descriptor = self.lacks_descriptor.swap(lacks_descriptor, Relaxed);
        let socket = self.wishes.socket.to_string_lossy();
        match refusal {
            Some(Refusal::Version(theirs)) if !self.has_complained.swap(true, Relaxed) => {
                let ours = gcgroup_abi::VERSION;
                sys::complain(&format!(
                    "the daemon speaks version {theirs}, this hook {ours}: not governed"
                ));
            }
            Some(Refusal::NoDescriptor) if !lacked_descriptor && Path::new(&self.wishes.socket).exists() => {
                sys::complain("no file descriptor is free: not governed until one is");
            }
            Some(Refusal::Absent)
                if self.is_governed.load(Relaxed)
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

fn own_word(page: &Mapping) -> &AtomicU32 {
    // SAFETY: the beginning of a page of ours that is mapped as long as the mapping lives.
    unsafe { &*page.address().cast::<AtomicU32>() }
}

#[cfg(test)]
impl Process {
    /// Returns a process for a test, without a daemon, a helper or a driver; `limit` is the limit for all
    /// devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        let wishes = Wishes {
            socket: "".into(),
            hello: Hello {
                memory_limit: limit,
                ..Hello::PLAIN
            },
            required: false,
        };
        Box::leak(Box::new(Self::new(wishes).unwrap()))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &OwnedFd) {
        self.blocks.adopt(control).unwrap();
        self.renumber();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_abi::NO_LIMIT;

    #[test]
    fn child_without_fork_handler_is_detected() {
        let process = Process::of_test(NO_LIMIT);
        assert!(process.is_own());
        // SAFETY: the child only reads a word and leaves.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let status = i32::from(process.is_own());
            // SAFETY: leaves without running anything of the parent's.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: room for the status of a child of ours.
        unsafe { libc::waitpid(i32::try_from(child).unwrap(), &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
