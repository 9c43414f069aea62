//! The gate: what a submission does when it may not simply pass.

use gcgroup_abi::Thread;

/// Binds the calling thread to a slot and waits while the gate is held; returns the slot, already marked.
pub(crate) extern "C" fn admit(_what: u32) -> *mut Thread {
    crate::interpose::thread()
}
