//! Models of the protocols in shared memory. loom runs each in every interleaving that it distinguishes, with
//! every older value that a weakly ordered load may return.
//!
//! A model calls the functions of gcgroup-abi that production calls; the kernel and assembly are simulated
//! here. README.md lists each model's claim and the faults that it finds. scripts/models.sh runs them.
#![cfg(loom)]

#[cfg(test)]
mod bell;
#[cfg(test)]
mod busy;
#[cfg(test)]
mod charge;
#[cfg(test)]
mod checker;
#[cfg(test)]
mod freeze;
#[cfg(test)]
mod kernel;
#[cfg(test)]
mod registration;
#[cfg(test)]
mod survey;

#[cfg(test)]
use kernel::{Barrier, Event, Futex};
#[cfg(test)]
use survey::{check, finds_fault, needed};

/// Returns a new, zero-filled block of shared memory.
///
/// # Safety
/// All zeroes must be a valid value of `T`.
#[cfg(test)]
unsafe fn zeroed<T>() -> std::sync::Arc<T> {
    // SAFETY: the caller guarantees that all zeroes is a valid value.
    unsafe { std::sync::Arc::<T>::new_zeroed().assume_init() }
}
