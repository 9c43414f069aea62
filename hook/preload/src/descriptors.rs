//! A free descriptor for loading the hook, in a program that has used up its own.

use core::ffi::{CStr, c_int, c_void};

use crate::{arch, objects};

const O_PATH: c_int = 0o10_000_000;
const O_CLOEXEC: c_int = 0o2_000_000;
const RLIMIT_NOFILE: c_int = 7;
const ENFILE: isize = 23;
const EMFILE: isize = 24;
/// Amount by which the soft limit is raised.
const EXTRA: u64 = 16;

/// `struct rlimit`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Limit {
    soft: u64,
    hard: u64,
}

type GetLimit = unsafe extern "C" fn(c_int, *mut Limit) -> c_int;
type SetLimit = unsafe extern "C" fn(c_int, *const Limit) -> c_int;

/// Returns the C library's function with that name.
fn of_c(name: &CStr) -> Option<*mut c_void> {
    objects::c_library(name.as_ptr())
}

/// Returns whether the program has a descriptor left for another file.
pub(crate) fn is_any_free() -> bool {
    ![-EMFILE, -ENFILE].contains(&arch::try_open(c"/", O_PATH | O_CLOEXEC))
}

/// Runs `open`, which opens a file. If no descriptor is free, the soft `RLIMIT_NOFILE` is raised meanwhile,
/// as far as the hard limit allows.
pub(crate) fn with_room<T>(open: impl FnOnce() -> T) -> T {
    if is_any_free() {
        return open();
    }
    let before = limit();
    let raised = before.map(|Limit { soft, hard }| Limit {
        soft: soft.saturating_add(EXTRA).min(hard),
        hard,
    });
    set_limit(raised);
    let opened = open();
    // Not restored if the program has set a limit of its own meanwhile.
    if limit() == raised {
        set_limit(before);
    }
    opened
}

fn limit() -> Option<Limit> {
    let get = of_c(c"getrlimit")?;
    // SAFETY: the C library's function of this name.
    let get = unsafe { core::mem::transmute::<*mut c_void, GetLimit>(get) };
    let mut limit = Limit { soft: 0, hard: 0 };
    // SAFETY: room for what it writes.
    (unsafe { get(RLIMIT_NOFILE, &raw mut limit) } == 0).then_some(limit)
}

fn set_limit(limit: Option<Limit>) {
    if let (Some(set), Some(limit)) = (of_c(c"setrlimit"), limit) {
        // SAFETY: the C library's function of this name.
        let set = unsafe { core::mem::transmute::<*mut c_void, SetLimit>(set) };
        // SAFETY: a limit that outlives the call.
        unsafe { set(RLIMIT_NOFILE, &raw const limit) };
    }
}
