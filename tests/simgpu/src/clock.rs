//! Time and sleep: nanoseconds of the monotonic clock, which all processes of a machine share, and futexes
//! that wake across processes.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Shorter waits spin, because sleeps would end too late.
pub(crate) const SPIN_NS: u64 = 40_000;

/// Returns the time of the monotonic clock in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec; every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Lets other threads go on for about a microsecond.
pub(crate) fn pause() {
    let until = now_ns() + 1000;
    std::thread::yield_now();
    while now_ns() < until {
        std::hint::spin_loop();
    }
}

/// Returns the time of the realtime clock in microseconds since 1970.
pub(crate) fn since_1970_usec() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Sleeps until `bell` is rung, or returns at once if its value is not `seen`; at most for `limit`. May wake
/// spuriously.
pub(crate) fn sleep(bell: &AtomicU32, seen: u32, limit: Option<Duration>) {
    let time = limit.map(|limit| libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is in memory that outlives the call; the time is null or a valid timespec.
    unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAIT, seen, time) };
}

/// Wakes all threads that sleep on `bell`, in any process.
pub(crate) fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, SeqCst);
    // SAFETY: the word is in memory that outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
