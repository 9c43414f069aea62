//! The calling thread's current context.

use crate::driver::cuda::CUresult;
use crate::driver::interpose::Next;
use crate::hook;

/// Handles calls after which another context is current: set, push, pop.
pub(crate) fn switch(next: Next<'_>) -> CUresult {
    next()?;
    if let Some(hook) = hook::get() {
        hook.program.moved();
    }
    Ok(())
}
