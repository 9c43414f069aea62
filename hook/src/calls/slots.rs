//! The calling thread's current context.

use crate::driver::cuda::CUresult;
use crate::driver::interpose::Next;
use crate::process;

/// Handles calls after which another context is current: set, push, pop.
pub(crate) fn switch(next: Next<'_>) -> CUresult {
    next()?;
    if let Some(process) = process::get() {
        process.compute.program.moved();
    }
    Ok(())
}
