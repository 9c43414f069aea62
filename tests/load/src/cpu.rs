//! Which CPU a thread runs on.

use std::io;
use std::mem::MaybeUninit;

/// Has the calling thread run on one of the CPUs that it may run on, and on no other: by its number among the threads, so
/// that they are on all of them.
///
/// # Errors
/// What the kernel says.
pub fn pin(number: usize) -> io::Result<()> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: bits, of which none is set.
    let mut allowed: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the calling thread, and a place of that size.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: within the set.
    let is_allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &allowed) };
    let all: Vec<usize> = (0..8 * size).filter(is_allowed).collect();
    let Some(cpu) = all.get(number % all.len().max(1)) else {
        return Ok(());
    };
    // SAFETY: as above.
    let mut own: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: within the set.
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
    fn a_thread_stays_where_it_is_put() {
        for number in 0..4 {
            let put = std::thread::spawn(move || {
                pin(number).expect("it may run somewhere");
                // SAFETY: no arguments.
                let first = unsafe { libc::sched_getcpu() };
                pin(number + 1).expect("there is one");
                // SAFETY: no arguments.
                (first, unsafe { libc::sched_getcpu() })
            });
            let (first, then) = put.join().expect("it ends");
            assert_eq!(first, then, "it may run there alone");
        }
    }
}
