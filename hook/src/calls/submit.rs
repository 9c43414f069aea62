//! Submissions that do not take the fast path.

use gcgroup_abi::Entrance;

use crate::compute::call::{self, Arguments};
use crate::compute::gate;
use crate::driver::interpose;
use crate::driver::thread;
use crate::hook::{self, Hook};
use crate::program::slot::unaccounted;
use crate::shared::device::LocalDevice;

/// Binds the calling thread to a slot and waits at the gate; returns the slot with the entry counted. If
/// nothing governs the process, returns the slot whose counters have no meaning.
pub(crate) extern "C" fn admit(call: u32, arguments: Arguments) -> *const Entrance {
    let is_nested = thread::is_inside();
    let admitted = interpose::guarded(|| {
        let hook = hook::get()?;
        let known = |address| known_memory(hook, address);
        gate::admit(hook.compute, &known, call, arguments, is_nested)
    });
    admitted.flatten().unwrap_or_else(unaccounted)
}

/// Ends a submission that [`admit`] has let pass, or that the driver has refused, before its exit is counted:
/// the driver has returned `result`. `call` is the word of [`describe`](call::describe).
pub(crate) extern "C" fn finish(call: u32, result: u32) {
    interpose::guarded(|| {
        if let Some(hook) = hook::get() {
            gate::finish(hook.compute, call::what(call), result != 0);
        }
    });
}

/// Returns the device of an array or of memory that may be swapped out.
fn known_memory(hook: &Hook, address: u64) -> Option<LocalDevice> {
    let array = hook.memory.arrays.local(address);
    array.or_else(|| Some(hook.swap.find(address)?.local))
}
