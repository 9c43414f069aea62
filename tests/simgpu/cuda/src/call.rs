//! How a driver function is written: the exported symbol, its twin for the per-thread default stream,
//! the checks common to all, null mode, faults asked for and the trace.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use simgpu::shield::Shield;
use simgpu::{Faults, Strike};

use crate::abi::{CUerror, CUresult};
use crate::process::Process;

/// What the body of a driver function is given.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// Whether the null stream is the calling thread's own.
    pub(crate) per_thread: bool,
    pub(crate) process: &'static Process,
}

/// How the functions behave in this process.
static MODE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const PLAIN: u32 = 1;
const WATCHED: u32 = 2;
const NULL: u32 = 3;

/// Whether calls check nothing and return at once.
#[inline]
pub(crate) fn is_null_mode() -> bool {
    MODE.load(Relaxed) == NULL
}

/// Begins null mode. Only `cuInit` does.
pub(crate) fn set_null_mode() {
    MODE.store(NULL, Relaxed);
}

/// Answers a call by `body`, unless a fault was asked for. No handler runs in it and nobody cancels the
/// thread, except where it waits.
pub(crate) fn answer(name: &'static str, body: impl FnOnce() -> CUresult) -> CUresult {
    match MODE.load(Relaxed) {
        NULL => body(),
        PLAIN => {
            let _shield = Shield::begin();
            body()
        }
        _ => watched(name, body),
    }
}

#[cold]
fn watched(name: &'static str, body: impl FnOnce() -> CUresult) -> CUresult {
    let watch = watch();
    if MODE.load(Relaxed) == UNKNOWN {
        let mode = if watch.faults.is_empty() && watch.trace.is_none() {
            PLAIN
        } else {
            WATCHED
        };
        MODE.store(mode, Relaxed);
    }
    let strike = watch.faults.strike(name);
    match strike {
        // Before there is anything to drop.
        Some(Strike::Cancel) => pthread_testcancel(),
        // SAFETY: a number only. To this very thread, which does not go on before all are stopped.
        Some(Strike::Stop) => drop(unsafe { libc::raise(libc::SIGSTOP) }),
        Some(Strike::Error(_)) | None => {}
    }
    let _shield = Shield::begin();
    let result = match strike {
        Some(Strike::Error(error)) => Err(CUerror::new(error)),
        _ => body(),
    };
    if let Some(trace) = &watch.trace {
        let number = result.err().map_or(0, |error| error.0.get());
        let line = format!("{} {name} {number}\n", std::process::id());
        // One write, so that lines of several processes do not mix; a full disk only loses lines.
        let _ = trace.lock().write_all(line.as_bytes());
    }
    result
}

unsafe extern "C-unwind" {
    /// Ends the thread, if it was cancelled, by unwinding its stack.
    safe fn pthread_testcancel();
}

/// What the environment asks of this process.
struct Watch {
    faults: Faults,
    trace: Option<Mutex<File>>,
}

fn watch() -> &'static Watch {
    static WATCH: OnceLock<Watch> = OnceLock::new();
    WATCH.get_or_init(|| {
        let faults = std::env::var("SIMGPU_FAULTS").unwrap_or_default();
        let trace = std::env::var_os("SIMGPU_TRACE").and_then(|path| {
            let file = OpenOptions::new().append(true).create(true).open(path);
            file.map_err(|error| eprintln!("simgpu: SIMGPU_TRACE: {error}"))
                .ok()
        });
        Watch {
            faults: Faults::parse(&faults),
            trace: trace.map(Mutex::new),
        }
    })
}

/// Driver functions, one a row:
///
/// ```text
/// fn cuName(argument: Type, …) twin cuName_ptsz null { … } |call| { … }
/// ```
///
/// `twin` names the symbol that is the same with the per-thread default stream. `null` is done instead
/// of all else in null mode. The body sees the arguments and a [`Call`] and answers a `CUresult`.
/// `early fn` is for those that may be called before `cuInit`; they get no `Call`.
macro_rules! driver {
    () => {};
    ($(#[$doc:meta])* early fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$doc])*
        // SAFETY: the driver's symbol of this name with the driver's signature; pointers are as `abi` says.
        #[unsafe(no_mangle)]
        pub(crate) extern "C-unwind" fn $name($($arg: $ty),*) -> $crate::abi::CUresult {
            $crate::call::answer(stringify!($name), || $body)
        }
        $crate::call::driver! { $($rest)* }
    };
    (
        $(#[$doc:meta])* fn $name:ident $args:tt twin $twin:ident $(null $null:block)? |$call:pat_param| $body:block
        $($rest:tt)*
    ) => {
        $crate::call::driver! { @one $(#[$doc])* $name false $args ($($null)?) $call, $body }
        $crate::call::driver! { @one $(#[$doc])* $twin true $args ($($null)?) $call, $body }
        $crate::call::driver! { $($rest)* }
    };
    (
        $(#[$doc:meta])* fn $name:ident $args:tt $(null $null:block)? |$call:pat_param| $body:block $($rest:tt)*
    ) => {
        $crate::call::driver! { @one $(#[$doc])* $name false $args ($($null)?) $call, $body }
        $crate::call::driver! { $($rest)* }
    };
    (@one $(#[$doc:meta])* $name:ident $per_thread:literal $args:tt () $call:pat_param, $body:block) => {
        $crate::call::driver! { @whole $(#[$doc])* #[unsafe(no_mangle)] $name $name $per_thread $args $call, $body }
    };
    // In null mode the function must be no more than its look at the mode: all else is elsewhere.
    (
        @one $(#[$doc:meta])* $name:ident $per_thread:literal ($($arg:ident: $ty:ty),* $(,)?) ($null:block)
        $call:pat_param, $body:block
    ) => {
        $(#[$doc])*
        // SAFETY: the driver's symbol of this name with the driver's signature; pointers are as `abi` says.
        #[unsafe(no_mangle)]
        pub(crate) extern "C-unwind" fn $name($($arg: $ty),*) -> $crate::abi::CUresult {
            if $crate::call::is_null_mode() {
                $null
                return Ok(());
            }
            $crate::call::driver! {
                @whole #[inline(never)] $name full $per_thread ($($arg: $ty),*) $call, $body
            }
            full($($arg),*)
        }
    };
    (
        @whole $(#[$attribute:meta])* $name:ident $symbol:ident $per_thread:literal ($($arg:ident: $ty:ty),* $(,)?)
        $call:pat_param, $body:block
    ) => {
        $(#[$attribute])*
        pub(crate) extern "C-unwind" fn $symbol($($arg: $ty),*) -> $crate::abi::CUresult {
            $crate::call::answer(stringify!($name), || {
                let $call = $crate::call::Call { per_thread: $per_thread, process: $crate::process::get()? };
                $body
            })
        }
    };
}

pub(crate) use driver;
