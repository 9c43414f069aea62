//! Environment variables of governed programs: one row each, with the syntax of its value. The hook, the
//! preload library and the command line take names and values from here, and the manual page its entries.

use core::ffi::CStr;

use crate::NO_LIMIT;
use crate::message::GroupName;

/// Row of the table of environment variables.
#[derive(Debug)]
pub struct Variable {
    pub name: &'static str,
    /// The name as getenv(3) takes it.
    pub c_name: &'static CStr,
    /// Value as the manual page shows it: in capitals a placeholder.
    pub value: &'static str,
    pub syntax: Syntax,
    /// Programs that read it: `hook`, `gcgroupfs`, or both.
    pub readers: &'static str,
    /// Entry in the manual page gcgroupfs(5).
    pub doc: &'static str,
}

/// Syntax of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// A [`switch`].
    Switch,
    /// A [`size`].
    Size,
    /// A decimal number below this one.
    Number(u32),
    /// One of these words.
    Word(&'static [&'static str]),
    /// A [`GroupName`].
    Group,
    /// A text, such as a path, of at most this many bytes.
    Text(usize),
}

/// A parsed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// 0 or 1 of a switch; bytes of a size; index of a word.
    Number(u64),
    Group(GroupName),
    Text,
}

/// The value of a variable does not have its syntax, or does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotUnderstood;

/// Longest path of a socket, bytes (unix(7)).
const LONGEST_SOCKET: usize = 107;

/// Longest path of a file, bytes.
const LONGEST_PATH: usize = 4095;

impl Variable {
    /// Parses a value; `None` for an empty one, which counts as not set. Spaces around a value count only in
    /// groups and paths.
    ///
    /// # Errors
    /// [`NotUnderstood`].
    pub fn parse(&self, value: &[u8]) -> Result<Option<Value>, NotUnderstood> {
        if value.is_empty() {
            return Ok(None);
        }
        let text = || core::str::from_utf8(value).ok();
        let word = || text().map(str::trim);
        let value = match self.syntax {
            Syntax::Switch => switch(value).map(|is_on| Value::Number(is_on.into())),
            Syntax::Size => word().and_then(size).map(Value::Number),
            Syntax::Number(end) => word()
                .filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|word| word.parse::<u32>().ok())
                .filter(|number| *number < end)
                .map(|number| Value::Number(number.into())),
            Syntax::Word(words) => word()
                .and_then(|word| words.iter().position(|one| *one == word))
                .map(|index| Value::Number(index as u64)),
            Syntax::Group => text().and_then(GroupName::new).map(Value::Group),
            Syntax::Text(longest) => (value.len() <= longest).then_some(Value::Text),
        };
        value.map(Some).ok_or(NotUnderstood)
    }
}

/// Parses `1`, `true`, `yes` or `on`, and `0`, `false`, `no` or `off`, in any case.
#[must_use]
pub fn switch(value: &[u8]) -> Option<bool> {
    let is_any = |words: [&str; 4]| {
        let value = value.trim_ascii();
        words
            .iter()
            .any(|word| value.eq_ignore_ascii_case(word.as_bytes()))
    };
    match (
        is_any(["1", "true", "yes", "on"]),
        is_any(["0", "false", "no", "off"]),
    ) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Parses a size as `memory.limit` accepts it, without percentages: decimal, with K, M, G, T or P (powers of
/// 1024; also `KB`, `Ki`, `KiB`) and then up to 9 decimals, or `max`. Returns bytes.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    if text.eq_ignore_ascii_case("max") {
        return Some(NO_LIMIT);
    }
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, unit) = text.split_at(text.bytes().take_while(is_number).count());
    let factor = match unit.as_bytes() {
        [] => 1_u128,
        [prefix, rest @ ..]
            if ["", "b", "i", "ib"]
                .iter()
                .any(|end| rest.eq_ignore_ascii_case(end.as_bytes())) =>
        {
            let power = b"kmgtp"
                .iter()
                .position(|one| *one == prefix.to_ascii_lowercase())?;
            1024 << (10 * power)
        }
        _ => return None,
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let has_point = whole.len() < number.len();
    if whole.is_empty() || has_point && (factor == 1 || decimals.is_empty() || decimals.len() > 9) {
        return None;
    }
    let (mut digits, mut parts) = (0_u64, 1_u128);
    for byte in whole.bytes().chain(decimals.bytes()) {
        digits = digits
            .checked_mul(10)?
            .checked_add(u64::from(byte.checked_sub(b'0')?))?;
    }
    decimals.bytes().for_each(|_| parts *= 10);
    u64::try_from(u128::from(digits) * factor / parts).ok()
}

macro_rules! variables {
    ($( $(#[doc = $doc:literal])* $name:ident = $value:literal, $syntax:expr, $readers:literal; )*) => {
        $(
            $(#[doc = $doc])*
            pub const $name: Variable = Variable {
                name: stringify!($name),
                c_name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
                value: $value,
                syntax: $syntax,
                readers: $readers,
                doc: concat!($($doc),*),
            };
        )*

        /// All variables, in the order of the manual page.
        pub const VARIABLES: &[Variable] = &[$($name),*];
    };
}

variables! {
    /// Path of the daemon's socket. Also used by the commands of gcgroupfs, where --socket is not given.
    GCGROUP_SOCKET = "PATH", Syntax::Text(LONGEST_SOCKET), "hook, gcgroupfs";
    /// Group in which the process asks to begin, as run --group: below the group that a rule of the daemon
    /// gives. run sets it to the path of the job's group.
    GCGROUP_GROUP = "NAME", Syntax::Group, "hook, gcgroupfs";
    /// Path of the job's group; run sets it. While GCGROUP_GROUP is equal to it, the group is not made for
    /// the process if the daemon does not know the job.
    GCGROUP_JOB = "NAME", Syntax::Group, "hook, gcgroupfs";
    /// As run --required. With 1 (true, yes, on), cuInit fails with CUDA_ERROR_SYSTEM_NOT_READY unless a
    /// daemon governs the process in its group, and if the value of any variable here is not understood. If
    /// the hook cannot be loaded, every CUDA function does.
    GCGROUP_REQUIRED = "1", Syntax::Switch, "hook";
    /// First value of memory.limit. Holds without a daemon too.
    GCGROUP_MEMORY_LIMIT = "SIZE", Syntax::Size, "hook";
    /// First value of compute.priority.
    GCGROUP_PRIORITY = "N", Syntax::Number(16), "hook";
    /// With 1 (true, yes, on), the program starts frozen.
    GCGROUP_FREEZE = "1", Syntax::Switch, "hook";
    /// Makes large allocations movable to host memory, as run --swap. First value of memory.swap.max; 1
    /// means max.
    GCGROUP_SWAP = "SIZE", Syntax::Size, "hook";
    /// Set by run to the values of GCGROUP_MEMORY_LIMIT and GCGROUP_SWAP, with a slash between: they are
    /// those of the job. While the group of the job has them, the process has none of its own.
    GCGROUP_JOB_LIMITS = "SIZE/SIZE", Syntax::Text(LONGEST_PATH), "hook, gcgroupfs";
    /// Order in which allocations move out: oldest (default) or largest.
    GCGROUP_RECLAIM = "ORDER", Syntax::Word(&["oldest", "largest"]), "hook";
    /// With wait, a thaw waits until the GPU has room for all that was moved out. Otherwise memory that
    /// does not fit is used over PCIe.
    GCGROUP_THAW = "wait", Syntax::Word(&["wait"]), "hook";
    /// File to which the hook appends a line for each registration with the daemon and its loss, each refused
    /// allocation, each completed freeze and each move. It must be a regular file or absent, not a symbolic
    /// link; it is made with mode 0600.
    GCGROUP_LOG = "FILE", Syntax::Text(LONGEST_PATH), "hook";
    /// File to which the hook appends what it does, to find out why a program is not governed: the lines of
    /// GCGROUP_LOG, each hooked function with its addresses, the first call of each that reaches the driver,
    /// and each driver call of its own that fails. A file as for GCGROUP_LOG.
    GCGROUP_TRACE = "FILE", Syntax::Text(LONGEST_PATH), "hook";
    /// File that is read in place of /proc/meminfo, for tests.
    GCGROUP_MEMINFO = "FILE", Syntax::Text(LONGEST_PATH), "hook, gcgroupfs";
    /// Directory that is read in place of /sys/devices/system/node, for tests.
    GCGROUP_NODES = "DIRECTORY", Syntax::Text(LONGEST_PATH), "hook";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_syntax_matches_memory_limit() {
        for (text, want) in [
            ("4096", Some(4096)),
            ("010", Some(10)),
            ("3K", Some(3072)),
            ("3ki", Some(3072)),
            ("2GiB", Some(2 << 30)),
            ("1t", Some(1 << 40)),
            ("max", Some(NO_LIMIT)),
            ("18446744073709551615", Some(NO_LIMIT)),
            ("18446744073709551616", None),
            ("16777216T", None),
            ("", None),
            ("-1", None),
            ("0x10", None),
            ("1.5G", Some(3 << 29)),
            ("8GB", Some(8 << 30)),
            ("0.25kb", Some(256)),
            ("2P", Some(2 << 50)),
            ("1.5", None),
            ("1.G", None),
            (".5G", None),
            ("1.5.5G", None),
            ("1.0123456789G", None),
            ("50%", None),
            ("8\u{e9}", None),
            ("8b", None),
            ("8 G", None),
            ("G", None),
        ] {
            assert_eq!(size(text), want, "{text:?}");
        }
    }
}
