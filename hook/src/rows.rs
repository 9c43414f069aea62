//! Macros that turn a row of the table into a function of the driver's signature and an entry to find it by.
//!
//! A row is written
//!
//! ```text
//! group Charged "linear memory";
//!
//! fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) @3020 => |next| charge(address, bytes, next);
//!
//! group Gated "kernel launches";
//!
//! fn cuLaunchKernelEx [cuLaunchKernelEx_ptsz](config: *const CUlaunchConfig, …) @11060 => submit Kernel;
//! ```
//!
//! A group has a class (`coverage::How`) and a description, under which the coverage report lists its rows.
//! Left of the arrow is what the driver's header says: the exported name, in brackets its twin (the variant
//! for the per-thread default stream), and the version since which `cuGetProcAddress` returns it (0: never).
//! Right of the arrow is what happens around the call: a handler, or the submission path.

use std::ffi::{CStr, c_void};

use crate::driver::interpose::Real;

/// One symbol of the driver.
pub struct Row {
    pub name: &'static CStr,
    /// CUDA version since which `cuGetProcAddress` returns it; 0: never.
    pub version: u32,
    /// The hook's wrapper.
    pub ours: Address,
    /// The driver's function.
    pub real: &'static Real,
}

/// Address of a function, to be returned and not called.
#[derive(Debug, Clone, Copy)]
pub struct Address(pub *mut c_void);

// SAFETY: used as a number only.
unsafe impl Sync for Address {}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Parts of a symbol's name, such as `cuMemcpyHtoD`, `_v2`, `_ptds`.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The name passed to `cuGetProcAddress`.
    pub base: &'a [u8],
    /// True for the variant for the per-thread default stream.
    pub per_thread: bool,
}

/// Splits a symbol's name.
#[must_use]
pub fn parts(name: &[u8]) -> Parts<'_> {
    let rest = without_twin(name);
    let unnumbered = rest
        .trim_suffix_digits()
        .and_then(|head| head.strip_suffix(b"_v"));
    Parts {
        base: unnumbered.unwrap_or(rest),
        per_thread: rest.len() < name.len(),
    }
}

/// Returns a symbol's name without the suffix for the per-thread default stream.
pub(crate) fn without_twin(name: &[u8]) -> &[u8] {
    name.strip_suffix(b"_ptsz")
        .or_else(|| name.strip_suffix(b"_ptds"))
        .unwrap_or(name)
}

trait TrimDigits {
    fn trim_suffix_digits(&self) -> Option<&Self>;
}

impl TrimDigits for [u8] {
    /// Returns the name without trailing digits; `None` if it has none.
    fn trim_suffix_digits(&self) -> Option<&[u8]> {
        let end = self.iter().rposition(|byte| !byte.is_ascii_digit())? + 1;
        (end < self.len()).then(|| self.split_at(end).0)
    }
}

/// Returns whether a name is NVML's; all others are libcuda's.
pub(crate) const fn is_nvml(name: &str) -> bool {
    matches!(name.as_bytes(), [b'n', b'v', b'm', b'l', ..])
}

/// Imports of the table in the hook; expands to nothing where only its names are needed (`../names.rs`).
macro_rules! in_hook {
    ($($imports:item)*) => { $($imports)* };
}

macro_rules! hooks {
    ($(
        group $class:ident $what:literal;
        $( $(#[$doc:meta])* fn $name:ident $([$twin:ident])? ($($args:tt)*) @ $version:literal
            => $(submit $kind:ident)? $(|$next:ident| $body:expr)? ; )*
    )*) => {
        $( $( $crate::rows::function!($name [$($twin)?] ($($args)*) [$(submit $kind)? $(|$next| $body)?]); )* )*

        /// Every symbol of the table, including twins.
        pub static ROWS: &[$crate::rows::Row] = &[$( $(
            $crate::rows::entry!($name $version), $( $crate::rows::entry!($twin $version), )?
        )* )*];

        /// The groups of the table, for the coverage report. Their names include twins and are not sorted.
        #[cfg(test)]
        pub(crate) static GROUPS: &[$crate::coverage::Family] = &[$(
            $crate::coverage::Family {
                how: $crate::coverage::How::$class,
                why: $what,
                names: &[$( stringify!($name), $(stringify!($twin),)? )*],
            },
        )*];
    };
}

macro_rules! entry {
    ($name:ident $version:literal) => {
        $crate::rows::Row {
            name: $crate::driver::library::c_name!($name),
            version: $version,
            ours: $crate::rows::Address($name::ours as *mut ::std::ffi::c_void),
            real: &$name::REAL,
        }
    };
}

macro_rules! function {
    ($name:ident [$twin:ident] $args:tt $around:tt) => {
        $crate::rows::function!($name [] $args $around);
        $crate::rows::function!($twin [] $args $around);
    };

    ($name:ident [] $args:tt $around:tt) => {
        #[allow(non_snake_case, reason = "the driver's spelling")]
        mod $name {
            #[allow(unused_imports, reason = "not every function takes an argument of a type of its own")]
            use super::*;

            pub(super) static REAL: $crate::driver::interpose::Real =
                if $crate::rows::is_nvml(stringify!($name)) {
                    $crate::driver::interpose::Real::nvml()
                } else {
                    $crate::driver::interpose::Real::libcuda()
                };

            /// Resolves a stream argument: in a twin, the default stream is the thread's own.
            #[allow(dead_code, reason = "not every function takes a stream")]
            fn on(stream: $crate::driver::cuda::CUstream) -> $crate::driver::cuda::CUstream {
                $crate::driver::streams::by_name(stream, $crate::calls::fast::is_per_thread(stringify!($name)))
            }

            $crate::rows::function!(@ours $name $args $around);
        }
    };

    (@ours $name:ident ($($arg:ident: $ty:ty),* $(,)?) [submit $what:ident]) => {
        $crate::calls::fast::submission!(REAL, $name, $what, ($($arg: $ty),*));
    };

    (@ours $name:ident ($($arg:ident: $ty:ty),* $(,)?) [|$next:ident| $body:expr]) => {
        #[allow(unused_variables, reason = "a handler names only the arguments it needs")]
        pub(super) unsafe extern "C-unwind" fn ours($($arg: $ty),*) -> $crate::driver::cuda::CUresult {
            let real = move || {
                type Function = unsafe extern "C-unwind" fn($($ty),*) -> $crate::driver::cuda::CUresult;
                // SAFETY: the address of the driver's function of this name, which has this signature.
                let real = unsafe { ::std::mem::transmute::<*mut ::std::ffi::c_void, Function>(REAL.address()) };
                // SAFETY: the program's own arguments.
                unsafe { real($($arg),*) }
            };
            $crate::driver::interpose::around(&real, &mut move |$next| $body)
        }
    };
}

pub(crate) use {entry, function};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::cuda::CUresult;
    use crate::driver::unwind::tests::{cancel_self, is_canceled, pthread_testcancel};
    use crate::table::ROWS;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn a_name_is_split_into_base_version_and_twin() {
        let base = |name: &'static str| parts(name.as_bytes()).base;
        assert_eq!(base("cuMemAlloc"), b"cuMemAlloc");
        assert_eq!(base("cuMemAlloc_v2"), b"cuMemAlloc");
        assert_eq!(base("cuMemcpyHtoD_v2_ptds"), b"cuMemcpyHtoD");
        assert_eq!(base("cuLaunchKernel_ptsz"), b"cuLaunchKernel");
        assert_eq!(base("cuMemsetD2D32"), b"cuMemsetD2D32");
        assert_eq!(base("cuStreamWaitValue64_v2_ptsz"), b"cuStreamWaitValue64");
        assert!(parts(b"cuLaunchKernel_ptsz").per_thread);
        assert!(!parts(b"cuLaunchKernel").per_thread);
    }

    type Seconds = u32;

    crate::rows::function!(cuSleep [] (seconds: Seconds) [|next| next()]);

    extern "C-unwind" fn sleeps(_seconds: Seconds) -> CUresult {
        pthread_testcancel();
        Ok(())
    }

    unsafe extern "C-unwind" fn is_canceled_in_a_call(_: *mut c_void) -> *mut c_void {
        cuSleep::REAL.set(sleeps as *mut c_void, std::ptr::null_mut());
        cancel_self();
        // SAFETY: only sleeps.
        let _ = unsafe { cuSleep::ours(1) };
        std::ptr::null_mut()
    }

    #[test]
    fn thread_can_be_cancelled_in_a_hooked_call() {
        assert!(is_canceled(is_canceled_in_a_call));
    }

    #[test]
    fn every_row_is_a_symbol_of_the_driver() {
        let known = concat!(
            include_str!("../../tests/data/libcuda-13.5.symbols"),
            include_str!("../../tests/data/libnvidia-ml-12.9.symbols"),
            include_str!("../../tests/data/libnvidia-ml-13.6.added"),
        );
        // Functions for graphics are in the list of cuGetProcAddress only.
        let answered = include_str!("../../tests/simgpu/data/cuda-names.tsv").lines();
        let answered = answered.filter_map(|line| line.split('\t').nth(3));
        let known: HashSet<&str> = known.lines().chain(answered).collect();
        for row in ROWS {
            let name = row.name.to_str().unwrap();
            assert!(known.contains(name), "{name}");
        }
    }

    /// The list of `cuGetProcAddress` has base name, version, flavour, symbol.
    #[test]
    fn every_row_has_the_version_of_the_drivers_list() {
        let list = include_str!("../../tests/simgpu/data/cuda-names.tsv");
        let mut versions = HashMap::new();
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [base, version, flavour, symbol] = fields[..] else {
                panic!("{line}")
            };
            versions.insert(
                symbol,
                (base, version.parse::<u32>().unwrap(), flavour != "legacy"),
            );
        }
        for row in ROWS {
            let name = row.name.to_str().unwrap();
            let Some(&(base, version, per_thread)) = versions.get(name) else {
                assert!(row.version == 0 || parts(name.as_bytes()).per_thread, "{name}");
                continue;
            };
            let parts = parts(name.as_bytes());
            assert_eq!(parts.base, base.as_bytes(), "{name}");
            assert_eq!(parts.per_thread, per_thread, "{name}");
            // A twin is in the row of the function it is a variant of, and as old or newer.
            let is_right = if per_thread {
                row.version.max(7000) == version
            } else {
                row.version == version
            };
            assert!(is_right, "{name}: {} here, {version} in the list", row.version);
        }
    }
}
