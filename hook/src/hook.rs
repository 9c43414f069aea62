//! The hook of a process that uses CUDA: one object with all of its state.
//!
//! The object is made by the first successful `cuInit`, or before the first `cuInit` if the process must be
//! governed, and is never freed. A child made by fork(2) or clone(2) has none, since blocks, locks and driver
//! state belong to the parent.

use std::io;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::time::{Duration, Instant};

use crate::compute::Compute;
use crate::compute::drain::Drain;
use crate::compute::measure::Measure;
use crate::compute::progress::Progress;
use crate::compute::watch::Watch;
use crate::driver::cuda::{CUerror, CUresult};
use crate::driver::interpose::{self, Next};
use crate::driver::{exit, library, thread};
use crate::helper::{self, Duties, Work};
use crate::memory::Memory;
use crate::memory::freeing::Settling;
use crate::program::Program;
use crate::shared::allowed;
use crate::shared::client::{self, RETRY, Refusal, Wait};
use crate::shared::environment::Options;
use crate::shared::patience::{self, Limit};
use crate::shared::session::Session;
use crate::swap::Swap;
use crate::swap::mover::Mover;
use crate::sys;
use crate::sys::descriptor::Descriptor;
use crate::sys::log;
use crate::sys::own::Own;

#[derive(Debug)]
pub(crate) struct Hook {
    own: Own,
    pub(crate) session: &'static Session,
    pub(crate) program: &'static Program,
    pub(crate) compute: &'static Compute,
    pub(crate) memory: &'static Memory,
    pub(crate) swap: &'static Swap,
}

static HOOK: AtomicPtr<Hook> = AtomicPtr::new(null_mut());

/// [`IDLE`], or [`BUSY`] while some thread makes the hook. A word and not a lock, so that a child can
/// reset it.
static STARTING: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const BUSY: u32 = 1;
/// The longest time between two checks of [`STARTING`].
const START_RECHECK: Duration = Duration::from_millis(100);
/// The longest time for which a thread waits for the helper thread to make the hook.
const START_LIMIT: Duration = Duration::from_secs(client::PATIENCE.as_secs() + patience::MOST.as_secs());
/// Bytes of stack with which a thread makes the hook itself: several times the size of a [`Hook`].
const ENOUGH_STACK: usize = 1 << 20;

/// Whether [`exit::at_exit`] is registered.
static IS_EXIT_HANDLED: AtomicBool = AtomicBool::new(false);

/// Returns the hook of this process, if it uses CUDA.
pub(crate) fn get() -> Option<&'static Hook> {
    // SAFETY: null or an object that was leaked.
    let hook = unsafe { HOOK.load(Acquire).as_ref() }?;
    if hook.own.is_own() {
        return Some(hook);
    }
    log::line(|| "this process is a copy of a governed one, and registers by itself".to_owned());
    reset();
    // Made by clone(2), without fork handlers: the driver may take it for its parent and serve it.
    thread::uncanceled(start)
}

/// Handles `cuInit`: the first successful call registers the process with the daemon.
///
/// A process that must be governed (`GCGROUP_REQUIRED`) registers before the driver is initialised. If it
/// cannot, the driver stays uninitialised and refuses every call, even if the program ignores the error of
/// this one.
///
/// A rule that demands the same of the process is known only from the daemon's answer. The driver is
/// initialised by then; this call fails, and the process gets no context (`memory::context`).
pub(crate) fn init(next: Next<'_>) -> CUresult {
    // The driver starts threads, and with threads this waits for all processors: 10 to 30 ms.
    if get().is_none() && sys::is_single_threaded() {
        sys::register_barrier();
    }
    if is_required() {
        // A panic in the hook must not lead to the driver's own answer here. If another thread is starting
        // the hook, `start` waits for it.
        interpose::guarded(|| thread::uncanceled(start));
        if !get().is_some_and(|hook| hook.session.is_governed()) {
            return Err(CUerror::SYSTEM_NOT_READY);
        }
    }
    allowed::initialize(next)?;
    // Registered after the driver's own exit handler, so that ours runs before it.
    if !IS_EXIT_HANDLED.swap(true, Relaxed) {
        sys::on_exit(exit::at_exit);
    }
    let hook = begin().inspect(|hook| library::count_unknown(hook.session.usage()));
    if hook.is_some_and(|hook| hook.session.is_barred()) {
        return Err(CUerror::SYSTEM_NOT_READY);
    }
    Ok(())
}

/// Returns whether the program must not use CUDA without a daemon.
fn is_required() -> bool {
    get().map_or_else(
        || Options::from_environment().required,
        |hook| hook.session.is_required(),
    )
}

/// Returns the hook, made if there is none yet. Waits while another thread makes it: otherwise the caller
/// could start work before the daemon's limits apply.
fn begin() -> Option<&'static Hook> {
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

/// Makes the hook: on the caller's stack if at least [`ENOUGH_STACK`] of it is left, else in the helper
/// thread, for which the caller waits at most [`START_LIMIT`]. A thread may have a stack of 16 KiB, and a
/// [`Hook`] is larger. The caller's stack is preferred because the first call may come from a constructor
/// of a library: dlopen(3) then holds the loader's lock, for which another thread's first access to
/// thread-local data waits in glibc before 2.35. Where no thread can be started, the hook has no helper.
fn start() -> Option<&'static Hook> {
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
            // Started first, so that the daemon is told at once where it cannot be.
            let helper = sys::spawn(c"gcgroup", help);
            make_or_complain(helper.err());
        } else {
            match sys::spawn(c"gcgroup", live) {
                Ok(()) => {
                    // The helper thread resets the word.
                    std::mem::forget(starting);
                    let deadline = Instant::now() + START_LIMIT;
                    while STARTING.load(Acquire) == BUSY && Instant::now() < deadline {
                        sys::futex_wait(&STARTING, BUSY, START_RECHECK);
                    }
                }
                Err(error) => make_or_complain(Some(error)),
            }
        }
    }
    get()
}

/// Makes the hook and runs the helper, in the helper thread.
fn live() {
    {
        let _starting = Starting;
        let _ = interpose::guarded(|| make_or_complain(None));
    }
    help();
}

/// Runs the helper, in the helper thread, once the hook is made.
fn help() {
    // The program goes on meanwhile. A barrier that is needed before takes the same time.
    sys::register_barrier();
    while STARTING.load(Acquire) == BUSY {
        sys::futex_wait(&STARTING, BUSY, START_RECHECK);
    }
    if let Some(hook) = get() {
        helper::run(hook);
    }
}

/// Makes the hook; reports on standard error, once, what prevents that, or why there is no helper thread.
fn make_or_complain(no_helper: Option<io::Error>) {
    static HAS_COMPLAINED: AtomicBool = AtomicBool::new(false);
    let line = match (make(no_helper.is_none()), no_helper) {
        (Err(error), _) => format!("not governed: {error}"),
        (Ok(()), Some(error)) => format!(
            "no helper thread: {error}: freezes are not confirmed, and the next daemon will not govern this process"
        ),
        (Ok(()), None) => return,
    };
    if !HAS_COMPLAINED.swap(true, Relaxed) {
        sys::complain(&line);
    }
}

#[inline(never)]
fn make(has_helper: bool) -> io::Result<()> {
    if !has_helper {
        sys::register_barrier();
    }
    let own = Own::new()?;
    let mut options = Options::from_environment();
    options.hello.lacks_helper = (!has_helper).into();
    let session = Box::leak(Box::new(Session::new(options)?));
    let hook: &'static Hook = Box::leak(Box::new(Hook::new(own, session)?));
    HOOK.store(std::ptr::from_ref(hook).cast_mut(), Release);
    *session.connection.lock() = hook.enter();
    Ok(())
}

/// Drops the parent's state in a forked child. Async-signal-safe, since other threads may have held any lock.
unsafe extern "C" fn in_child() {
    // SAFETY: null or an object that was leaked; the child has a copy of its memory.
    if let Some(hook) = unsafe { HOOK.load(Relaxed).as_ref() } {
        hook.session.close_in_child();
    }
    exit::reset_in_child();
    Wait::reset_in_child();
    STARTING.store(IDLE, Relaxed);
    reset();
}

fn reset() {
    HOOK.store(null_mut(), Relaxed);
    thread::set_slot(thread::unbound());
}

impl Hook {
    fn new(own: Own, session: &'static Session) -> io::Result<Self> {
        let program = &*Box::leak(Box::new(Program::new(session)?));
        let memory = &*Box::leak(Box::new(Memory::new(program)));
        let compute = &*Box::leak(Box::new(Compute::new(program)));
        let swap = Box::leak(Box::new(Swap::new(memory, compute)));
        Ok(Self {
            own,
            session,
            program,
            compute,
            memory,
            swap,
        })
    }

    /// Registers for the first time. Retries for [`client::PATIENCE`] while a daemon listens that may admit
    /// the process later. If the process must be governed, retries also while there is no daemon, and reports
    /// on standard error why CUDA is refused. Otherwise calls pass ungoverned until the helper has registered
    /// the process.
    fn enter(&'static self) -> Option<Descriptor> {
        let wait = Wait::begin();
        loop {
            let refusal = match self.register(wait.limit()) {
                Ok(connection) => {
                    wait.end(true);
                    return Some(connection);
                }
                Err(refusal) => refusal,
            };
            let is_required = self.session.is_required() || self.session.is_barred();
            let left = match is_required && refusal.is_for_now() {
                true => wait.left_while_busy(),
                false => wait.left(),
            };
            let is_worth_it = refusal.may_pass() || is_required && !refusal.is_final();
            if left.is_zero() || !is_worth_it {
                wait.end(false);
                if is_required {
                    self.session.complain_of_refusal(&refusal);
                }
                return None;
            }
            sys::poll([], Some(RETRY.min(left)));
        }
    }

    /// Updates device numbers from a new control block, which may know more devices or number them
    /// differently.
    fn renumber(&self) {
        self.session.devices.refresh(self.session.control());
        self.memory.renumber();
        self.swap.renumber();
        self.program.renumber();
    }
}

impl Duties for &'static Hook {
    fn session(&self) -> &Session {
        self.session
    }

    fn work(&self) -> Vec<Work> {
        let hook = *self;
        let (mut drain, mut progress) = (Drain::new(), Progress::new());
        let (mut watch, mut measure) = (Watch::new(), Measure::new());
        let (mut mover, mut settling) = (Mover::new(hook.swap), Settling::new());
        let compute = hook.compute;
        vec![
            Box::new(move |_| drain.step(compute)),
            Box::new(move |_| progress.step(compute)),
            Box::new(move |_| {
                let gates = compute.gates();
                // The watch ends a period when the gate opens.
                let watched = watch.step(compute, &gates);
                watched.and(measure.step(compute, &gates))
            }),
            Box::new(move |order| mover.step(hook.swap, order)),
            Box::new(move |_| settling.step(hook.memory)),
        ]
    }

    /// Registers with the daemon and takes its control block.
    fn register(&self, limit: Limit) -> Result<Descriptor, Refusal> {
        // As soon as the daemon has answered, it may measure what is not charged in its slots yet.
        let _renumbering = self.memory.renumbering();
        let connection = self.session.register(limit)?;
        self.memory.begin_again();
        if self.session.enables_swap() {
            self.swap.enable();
        }
        self.renumber();
        Ok(connection)
    }

    fn look_for_devices(&self) {
        if self.session.devices.are_outdated(self.session.control()) {
            self.renumber();
        }
    }

    fn identify_devices(&self) {
        self.session.devices.identify(self.session.control());
        self.renumber();
    }

    fn is_alive(&self) -> bool {
        get().is_some()
    }
}

#[cfg(test)]
impl Hook {
    /// Returns a hook for a test, without a daemon, a helper or a driver; `limit` is the limit for all
    /// devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        let own = Own::new().unwrap();
        Box::leak(Box::new(Self::new(own, Session::of_test(limit)).unwrap()))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &OwnedFd) {
        self.session.adopt(control);
        self.renumber();
    }
}
