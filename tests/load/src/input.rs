//! Input that has come.

use std::io;

/// Returns whether a read of stdin would not wait, provided that nothing is buffered.
///
/// # Errors
/// Those of poll(2).
pub(crate) fn is_there() -> io::Result<bool> {
    let mut input = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, borrowed for the call.
    match unsafe { libc::poll(&raw mut input, 1, 0) } {
        -1 => Err(io::Error::last_os_error()),
        ready => Ok(ready != 0),
    }
}
