//! Exported symbols of the driver, listed by the build script, and a stub for each, which answers where
//! nothing implements it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::abi::CUresult;
use crate::call::answer;
use crate::error::NOT_SUPPORTED;

macro_rules! stubs {
    ($($symbol:ident,)*) => {
        $(
            // Accesses no arguments.
            #[allow(dead_code, reason = "may be implemented")]
            pub(crate) extern "C" fn $symbol() -> CUresult {
                static SAID: AtomicBool = AtomicBool::new(false);
                answer(stringify!($symbol), || unsupported(&SAID, stringify!($symbol)))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// Returns `CUDA_ERROR_NOT_SUPPORTED` for a function that is not simulated, and reports its first call on
/// standard error.
#[cold]
fn unsupported(said: &AtomicBool, symbol: &str) -> CUresult {
    if !said.swap(true, Relaxed) {
        eprintln!("simgpu: {symbol} is not simulated");
    }
    Err(NOT_SUPPORTED)
}
