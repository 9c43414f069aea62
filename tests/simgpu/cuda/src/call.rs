//! Definition of driver functions: the exported symbol, its variant for the per-thread default stream, the
//! common checks, null mode, injected faults and the trace.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use simgpu::shield::Shield;
use simgpu::{Faults, Strike};

use crate::abi::{CUerror, CUresult};
use crate::checkpoint;
use crate::process::Process;

/// Context passed to the body of a driver function.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// Whether the null stream means the per-thread default stream.
    pub(crate) per_thread: bool,
    pub(crate) process: &'static Process,
}

/// Mode of the driver functions in this process.
static MODE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const PLAIN: u32 = 1;
const WATCHED: u32 = 2;
const NULL: u32 = 3;

/// Returns whether calls check nothing and return at once.
#[inline]
pub(crate) fn is_null_mode() -> bool {
    MODE.load(Relaxed) == NULL
}

/// Enables null mode. Called by `cuInit` only.
pub(crate) fn set_null_mode() {
    MODE.store(NULL, Relaxed);
}

/// Answers a call with `body`, unless a fault is injected. Signal handlers and cancellation are disabled
/// during the call, except while it waits.
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
        // Here no value needs to be dropped yet. A thread that ends here is in no call.
        Some(Strike::Cancel) => {
            checkpoint::leave();
            pthread_testcancel();
            checkpoint::enter();
        }
        // SAFETY: passes only a number. The signal goes to this thread, which continues only after the whole
        // process was stopped.
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
        // A single write, so that lines of different processes do not mix; a full disk only loses lines.
        let _ = trace.lock().write_all(line.as_bytes());
    }
    result
}

unsafe extern "C-unwind" {
    /// Ends the thread by unwinding its stack if it was cancelled.
    safe fn pthread_testcancel();
}

/// Faults and trace requested by the environment.
struct Watch {
    faults: Faults,
    trace: Option<Mutex<File>>,
}

fn watch() -> &'static Watch {
    static WATCH: OnceLock<Watch> = OnceLock::new();
    WATCH.get_or_init(|| {
        let trace = std::env::var_os("SIMGPU_TRACE").and_then(|path| {
            let file = OpenOptions::new().append(true).create(true).open(path);
            file.map_err(|error| eprintln!("simgpu: SIMGPU_TRACE: {error}"))
                .ok()
        });
        Watch {
            faults: Faults::from_env(),
            trace: trace.map(Mutex::new),
        }
    })
}

/// Defines driver functions with the driver's signatures (for pointers see `abi`), one per row:
///
/// ```text
/// fn cuName(argument: Type, …) twin cuName_ptsz null { … } |call| { … }
/// ```
///
/// `twin` names the symbol of the variant for the per-thread default stream. `null` is executed in null mode
/// instead of checks and body. The body has access to the arguments and a [`Call`] and returns a `CUresult`.
/// `early fn` is for functions that may be called before `cuInit`; they get no `Call`.
macro_rules! driver {
    () => {};
    ($(#[$doc:meta])* early fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $(#[$doc])*
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
        $crate::call::driver! { @whole $(#[$doc])* $name $name $per_thread $args $call, $body }
    };
    // In null mode the function must do nothing but check the mode, so the rest is in a separate function.
    (
        @one $(#[$doc:meta])* $name:ident $per_thread:literal ($($arg:ident: $ty:ty),* $(,)?) ($null:block)
        $call:pat_param, $body:block
    ) => {
        $(#[$doc])*
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
            $crate::checkpoint::enter();
            let result = $crate::call::answer(stringify!($name), || {
                let $call = $crate::call::Call { per_thread: $per_thread, process: $crate::process::get()? };
                $body
            });
            $crate::checkpoint::leave();
            result
        }
    };
}

pub(crate) use driver;
