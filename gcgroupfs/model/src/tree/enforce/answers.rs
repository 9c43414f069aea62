//! Answers to what a process requests in its usage block.

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::tree::process::Process;

/// Answers a request for memory pressure: whether other processes have made room.
pub(in crate::tree) fn answer_pressure(process: &Process, device: usize, number: u32, is_granted: bool) {
    if let Some(control) = process.control().devices.get(device) {
        if !is_granted {
            control.pressure_refused.store(number, Relaxed);
        }
        control.pressure_answer.store(number, Release);
    }
}

/// Answers a process's request for a grant on a device.
pub(in crate::tree) fn answer(process: &Process, device: usize, number: u32, is_granted: bool) {
    if let Some(control) = process.control().devices.get(device) {
        if !is_granted {
            control.grant_refused.store(number, Relaxed);
        }
        control.grant_answer.store(number, Release);
    }
}

/// Returns the number of the last request to measure contexts that was answered.
pub(in crate::tree) fn context_answer(process: &Process, device: usize) -> Option<u32> {
    let control = process.control().devices.get(device)?;
    Some(control.context_answer.load(Relaxed))
}

/// Answers a process's request to measure contexts.
pub(in crate::tree) fn answer_context(process: &Process, device: usize, number: u32, missing: u64) {
    if let Some(control) = process.control().devices.get(device) {
        control.context_missing.store(missing, Relaxed);
        control.context_answer.store(number, Release);
    }
}

/// Answer to a request to swap out more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum SwapAnswer {
    Granted,
    Refused,
    /// Refused; other processes have been asked to release their swap pools.
    Recalled,
}

/// Answers a process's request to swap out more from a device.
pub(in crate::tree) fn answer_swap(process: &Process, device: usize, number: u32, answer: SwapAnswer) {
    if let Some(control) = process.control().devices.get(device) {
        if answer != SwapAnswer::Granted {
            control.swap_refused.store(number, Relaxed);
        }
        if answer == SwapAnswer::Recalled {
            control.swap_recalled.store(number, Relaxed);
        }
        control.swap_answer.store(number, Release);
    }
}

/// Answers a process's claim of host memory: `others` is the number of bytes that other processes are about
/// to take.
pub(in crate::tree) fn answer_claim(process: &Process, number: u32, others: u64) {
    let control = process.control();
    control.host_claimed.store(others, Relaxed);
    control.host_answer.store(number, Release);
}
