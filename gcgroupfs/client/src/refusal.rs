//! Refusals of requests, in words.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;

use nix::errno::Errno;

/// Refusal of a request by the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Path that was asked for; empty for a list.
    pub path: String,
    /// The error of the same operation at the mount.
    pub errno: Errno,
    /// The daemon's explanation; may be empty.
    pub why: String,
}

impl Refusal {
    /// Returns the error in the C library's words, and the daemon's explanation; only that where those words
    /// mean something else.
    pub fn reason(&self) -> String {
        let reason = strerror(self.errno);
        match (self.errno, self.why.as_str()) {
            (_, "") => reason,
            // "Disk quota exceeded".
            (Errno::EDQUOT, why) => why.to_owned(),
            (_, why) => format!("{reason}: {why}"),
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.reason())
    }
}

impl Error for Refusal {}

/// Returns the errno's text in the C library's words, as a shell shows it.
pub(crate) fn strerror(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    // The standard library adds " (os error N)".
    text.rsplit_once(" (os error")
        .map_or(text.clone(), |(words, _)| words.to_owned())
}
