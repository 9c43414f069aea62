//! Models of the protocols in shared memory. loom runs each in every interleaving that it distinguishes, with every older value
//! that a weakly ordered load may return.
//!
//! A model calls the functions of gcgroup-abi that production calls; what the kernel or assembly does is played here. README.md
//! says what each model claims and which faults it was shown to find. scripts/models.sh runs them.
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
mod stock;
#[cfg(test)]
mod survey;

#[cfg(test)]
use kernel::{Barrier, Event, Futex};
#[cfg(test)]
use survey::{check, finds_fault, needed};

/// A block of shared memory as it is when it was just made: zero-filled.
///
/// # Safety
/// All zeroes must be a value of `T`.
#[cfg(test)]
unsafe fn zeroed<T>() -> std::sync::Arc<T> {
    // SAFETY: the caller vouches for it.
    unsafe { std::sync::Arc::<T>::new_zeroed().assume_init() }
}
