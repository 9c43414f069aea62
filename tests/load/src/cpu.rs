//! CPU affinity of a thread.

use std::io;
use std::mem::MaybeUninit;

/// Pins the calling thread to one of its allowed CPUs: thread `number` to the CPU at that index, modulo their
/// number.
///
/// # Errors
/// The kernel's.
pub(crate) fn pin(number: usize) -> io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a bit set, for which all zeroes is a valid value.
    let mut allowed: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the calling thread, and an out-pointer of that size.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the index is within the set.
    let is_allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &allowed) };
    let all: Vec<usize> = (0..8 * size).filter(is_allowed).collect();
    let Some(cpu) = all.get(number % all.len().max(1)) else {
        return Ok(());
    };
    // SAFETY: as above.
    let mut own: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the index is within the set.
    unsafe { libc::CPU_SET(*cpu, &mut own) };
    // SAFETY: the calling thread, and a set of that size.
    if unsafe { libc::sched_setaffinity(0, size, &raw const own) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_thread_stays_on_its_cpu() {
        for number in 0..4 {
            let put = std::thread::spawn(move || {
                pin(number).expect("the thread may run on some CPU");
                // SAFETY: no arguments.
                let first = unsafe { libc::sched_getcpu() };
                pin(number + 1).expect("the CPU exists");
                // SAFETY: no arguments.
                (first, unsafe { libc::sched_getcpu() })
            });
            let (first, then) = put.join().expect("the thread ends without a panic");
            assert_eq!(first, then, "only one CPU is allowed");
        }
    }
}
