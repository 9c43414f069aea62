//! Charging bytes against a limit, exactly, without a lock.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The charge would pass the limit; nothing was charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// Adds `bytes` to `current` unless the sum would exceed `limit`; returns the sum.
///
/// One compare-and-swap: two charges cannot both pass a limit that has room for one, and a refused charge
/// is never visible, so a racing charge that fits is not refused because of it.
#[inline]
pub fn try_charge(current: &AtomicU64, bytes: u64, limit: u64) -> Result<u64, Refused> {
    let mut now = current.load(Relaxed);
    loop {
        let sum = now
            .checked_add(bytes)
            .filter(|sum| *sum <= limit)
            .ok_or(Refused)?;
        match current.compare_exchange_weak(now, sum, Relaxed, Relaxed) {
            Ok(_) => return Ok(sum),
            Err(seen) => now = seen,
        }
    }
}

/// Takes `bytes` off `current`, stopping at zero.
#[inline]
pub fn uncharge(current: &AtomicU64, bytes: u64) {
    let mut now = current.load(Relaxed);
    while let Err(seen) = current.compare_exchange_weak(now, now.saturating_sub(bytes), Relaxed, Relaxed) {
        now = seen;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_reaches_the_limit_and_not_a_byte_more() {
        let current = AtomicU64::new(90);
        assert_eq!(try_charge(&current, 11, 100), Err(Refused));
        assert_eq!(try_charge(&current, 10, 100), Ok(100));
        assert_eq!(try_charge(&current, 1, 100), Err(Refused));
        assert_eq!(try_charge(&current, 0, 100), Ok(100));
    }

    #[test]
    fn a_charge_that_overflows_is_refused_without_any_limit() {
        let current = AtomicU64::new(2);
        assert_eq!(try_charge(&current, u64::MAX - 1, u64::MAX), Err(Refused));
        assert_eq!(current.load(Relaxed), 2);
    }

    #[test]
    fn a_limit_below_usage_refuses_even_nothing_new_but_keeps_what_is_there() {
        let current = AtomicU64::new(50);
        assert_eq!(try_charge(&current, 1, 10), Err(Refused));
        assert_eq!(current.load(Relaxed), 50);
    }

    #[test]
    fn uncharge_stops_at_zero() {
        let current = AtomicU64::new(5);
        uncharge(&current, 7);
        assert_eq!(current.load(Relaxed), 0);
    }
}
