//! Value formats of control files: those of cgroup v2, except that an empty write is not 0, a leading zero is
//! not octal, and an overflow does not wrap.

mod parse;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Write};
use std::ops::Deref;

use gcgroup_abi::NO_LIMIT;
use serde::{Deserialize, Serialize};

use crate::quota::Quota;

pub(crate) use parse::{SECONDS, VISIBLE};
pub use parse::{
    parse_bytes, parse_flag, parse_number, parse_pid, parse_policy, parse_quota, parse_seconds, parse_size,
    parse_visible,
};

/// Formats a value, with a newline.
pub fn value(value: impl Display) -> String {
    format!("{value}\n")
}

/// Formats a flag as 0 or 1.
pub fn flag(on: bool) -> String {
    value(u8::from(on))
}

/// Formats bytes, or `max` for no limit.
pub fn bytes(bytes: u64) -> String {
    if bytes == NO_LIMIT {
        value("max")
    } else {
        value(bytes)
    }
}

/// Formats a quota and its period in microseconds, as in `cpu.max`.
pub fn quota(quota: Quota) -> String {
    format!("{} {}\n", bytes(quota.usec).trim_end(), quota.period_usec)
}

/// Formats `KEY VALUE` lines.
pub fn flat_keyed<V: Display>(pairs: impl IntoIterator<Item = (&'static str, V)>) -> String {
    let mut out = String::new();
    for (key, value) in pairs {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{key} {value}");
    }
    out
}

/// Formats bytes for people, rounded to a tenth: `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes == NO_LIMIT {
        return "max".to_owned();
    }
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        (tenths, unit) = ((tenths + 512) / 1024, unit + 1);
    }
    let (whole, tenth) = (tenths / 10, tenths % 10);
    match tenth {
        0 => format!("{whole} {}", UNITS[unit]),
        tenth => format!("{whole}.{tenth} {}", UNITS[unit]),
    }
}

/// Returns a message with all but its line ends printable: control characters, and those that change the
/// direction of the text, become `\ooo` (octal) for each byte.
pub fn printable(text: &str) -> String {
    let is_control = |c: char| {
        let is_direction =
            matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        (c.is_control() && c != '\n') || is_direction
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\{byte:03o}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns text that another program chose (a process's comm, a path, a group's name) as one word that is
/// safe in terminals, logs and scripts. Each byte other than printable ASCII becomes `\ooo` (octal, as in
/// /proc/self/mountinfo), and so do the blank, `=` and the backslash. Letters of other alphabets are escaped
/// too, since right-to-left ones reorder the numbers beside them.
pub fn word(text: &str) -> Word<'_> {
    Word(text)
}

/// Result of [`word`].
#[derive(Debug, Clone, Copy)]
pub struct Word<'a>(&'a str);

impl Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'!'..=b'~' if byte != b'\\' && byte != b'=' => f.write_char(char::from(byte)),
            _ => write!(f, "\\{byte:03o}"),
        })
    }
}

/// Longest command line that is kept, bytes.
pub const MAX_COMMAND_LINE: usize = 512;

/// Returns a command line for display, at most [`MAX_COMMAND_LINE`] bytes: the arguments, each one [`word`]
/// where `=` stays, separated by blanks. `raw` is as in `/proc/PID/cmdline`: a NUL ends each argument. What
/// is cut off is marked by `...`.
pub fn command_line(raw: &[u8]) -> Box<str> {
    const CUT: &str = "...";
    let mut text = String::new();
    for byte in raw.strip_suffix(b"\0").unwrap_or(raw) {
        let before = text.len();
        // Writing to a String cannot fail.
        let _ = match byte {
            0 => text.write_char(' '),
            b'!'..=b'~' if *byte != b'\\' => text.write_char(char::from(*byte)),
            _ => write!(text, "\\{byte:03o}"),
        };
        if text.len() > MAX_COMMAND_LINE - CUT.len() {
            text.truncate(before);
            text.push_str(CUT);
            break;
        }
    }
    text.into()
}

/// Returns names with their descriptions as alternatives, for the manual.
pub(crate) fn described(all: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    let texts: Vec<String> = all.map(|(name, doc)| format!("{name} ({doc})")).collect();
    texts.join(" or ")
}

/// A process's short name, which the process may choose freely. Displayed as one [`word`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Comm(Box<str>);

impl From<&str> for Comm {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl Deref for Comm {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        word(self).fmt(f)
    }
}
