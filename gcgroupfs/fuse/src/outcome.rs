//! Results of callbacks as errno values and slices.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuser::Errno;

use gcgroupfs_model::error::{Error, Result};

/// Runs the body of a callback. A panic in it becomes EIO for the client and does not end the loop.
pub(super) fn guarded<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, Errno> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result.map_err(|error| Errno::from_i32(error.errno())),
        Err(_) => Err(Errno::EIO),
    }
}

pub(super) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

/// Returns at most `size` bytes from `offset` on; empty past the end.
pub(super) fn slice(text: &[u8], offset: u64, size: u32) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
    let end = start.saturating_add(size as usize).min(text.len());
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_past_the_end_is_empty() {
        assert_eq!(slice(b"hello", 0, 4096), b"hello");
        assert_eq!(slice(b"hello", 1, 3), b"ell");
        assert_eq!(slice(b"hello", 5, 4096), b"");
        assert_eq!(slice(b"hello", u64::MAX, u32::MAX), b"");
        assert_eq!(slice(b"", 0, 1), b"");
    }

    #[test]
    fn panic_in_callback_is_eio() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = guarded(|| -> Result<()> { panic!("on purpose") });
        std::panic::set_hook(before);
        assert_eq!(result.map_err(Errno::code), Err(libc::EIO));
    }
}
