//! Output: one line at a time, flushed at once, so that a script can wait for it.

use std::io::{self, Write as _};

use serde::Serialize;

/// Prints a line and flushes it.
///
/// # Errors
/// The reader of stdout is gone.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Prints the result, one JSON object, as the last line of a command.
///
/// # Errors
/// The reader of stdout is gone.
pub(crate) fn result(object: &impl Serialize) -> anyhow::Result<()> {
    Ok(line(serde_json::to_string(object)?)?)
}
