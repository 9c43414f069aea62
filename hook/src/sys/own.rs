//! Detection of children, which have a copy of this process's memory but none of its threads.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::mapping::{Mapping, PAGE};

/// Value of the word where the kernel wipes its page in children.
const WIPED: u32 = u32::MAX;

/// A word by which a process tells whether it is the one that made it.
///
/// The kernel wipes the word's page in a child (`MADV_WIPEONFORK`). Where that is refused (gVisor, seccomp),
/// the word is this process's id and is compared with the caller's, which takes a system call.
#[derive(Debug)]
pub(crate) struct Own(Mapping);

impl Own {
    /// # Errors
    /// There is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        let own = Self(Mapping::anonymous(PAGE)?);
        let value = match own.0.wipe_on_fork() {
            Ok(()) => WIPED,
            Err(_) => std::process::id(),
        };
        own.word().store(value, Relaxed);
        Ok(own)
    }

    /// Returns whether the calling process made this, and is not a child of that process.
    pub(crate) fn is_own(&self) -> bool {
        match self.word().load(Relaxed) {
            WIPED => true,
            0 => false,
            pid => pid == std::process::id(),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the beginning of a page of ours that is mapped as long as `self` lives.
        unsafe { &*self.0.address().cast::<AtomicU32>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a child made by clone(2), without fork handlers, takes itself for this process.
    fn is_own_in_child(own: &Own) -> bool {
        // SAFETY: the child only reads a word and leaves.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let status = i32::from(own.is_own());
            // SAFETY: leaves without running anything of the parent's.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: room for the status of a child of ours.
        unsafe { libc::waitpid(libc::pid_t::try_from(child).unwrap(), &raw mut status, 0) };
        status != 0
    }

    #[test]
    fn child_without_fork_handler_is_detected() {
        let own = Own::new().unwrap();
        assert!(own.is_own());
        assert!(!is_own_in_child(&own));
    }

    #[test]
    fn child_is_detected_where_pages_are_not_wiped() {
        let own = Own(Mapping::anonymous(PAGE).unwrap());
        own.word().store(std::process::id(), Relaxed);
        assert!(own.is_own());
        assert!(!is_own_in_child(&own));
    }
}
