//! System-wide and per-thread clocks.

/// Returns `CLOCK_MONOTONIC`, nanoseconds.
pub(crate) fn monotonic() -> i128 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread, nanoseconds; excludes preemption and sleep.
pub(crate) fn of_thread() -> i128 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> i128 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the out-pointer outlives the call.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}
