//! Settings requested by the environment (`gcgroup_abi::environment`). With a daemon, the daemon decides.

use std::ffi::{OsStr, OsString};

use gcgroup_abi::environment::{
    GCGROUP_FREEZE, GCGROUP_GROUP, GCGROUP_JOB_LIMITS, GCGROUP_LOG, GCGROUP_MEMORY_LIMIT, GCGROUP_PRIORITY,
    GCGROUP_REQUIRED, GCGROUP_SOCKET, GCGROUP_SWAP, Variable,
};
use gcgroup_abi::message::{GroupName, Hello};
use gcgroup_abi::{DEFAULT_SOCKET, NO_LIMIT};

use crate::sys;

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) socket: OsString,
    pub(crate) hello: Hello,
    /// Whether the process does not swap even if the daemon enables it.
    pub(crate) refuses_swap: bool,
    /// Whether CUDA is refused unless a daemon governs the process in the requested group.
    pub(crate) required: bool,
    /// File of the hook's log.
    pub(crate) log: Option<OsString>,
    /// A variable with a value that cannot be parsed, which is ignored.
    pub(crate) ignored: Option<&'static str>,
}

impl Options {
    /// Reads the environment. Values that cannot be parsed are ignored.
    pub(crate) fn from_environment() -> Self {
        Self::from(sys::variable)
    }

    fn from(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |variable: Variable| get(variable.name).and_then(|value| value.into_string().ok());
        let is_set = |variable| text(variable).is_some_and(|value| value.trim() == "1");
        let priority = text(GCGROUP_PRIORITY).and_then(|value| value.trim().parse().ok());
        let priority = priority.filter(|priority| *priority < 16);
        let limit = text(GCGROUP_MEMORY_LIMIT).and_then(|value| bytes(&value));
        // `1` means without a limit.
        let swap = text(GCGROUP_SWAP).and_then(|value| bytes(&value));
        // A value that was set since is the process's own.
        let of_job = [GCGROUP_MEMORY_LIMIT, GCGROUP_SWAP].map(|variable| text(variable).unwrap_or_default());
        let has_jobs_limits = text(GCGROUP_JOB_LIMITS) == Some(of_job.join("/"));
        let is_ignored = |variable: Variable, is_parsed: bool| {
            (!is_parsed && get(variable.name).is_some_and(|value| !value.is_empty())).then_some(variable.name)
        };
        let ignored = is_ignored(GCGROUP_MEMORY_LIMIT, limit.is_some())
            .or_else(|| is_ignored(GCGROUP_PRIORITY, priority.is_some()))
            .or_else(|| is_ignored(GCGROUP_SWAP, swap.is_some()));
        let refuses_swap = swap == Some(0);
        let swap = swap.filter(|bytes| *bytes != 0);
        let swap = swap.map(|bytes| if bytes == 1 { NO_LIMIT } else { bytes });
        Self {
            socket: get(GCGROUP_SOCKET.name)
                .filter(|path| !path.is_empty())
                .unwrap_or(DEFAULT_SOCKET.into()),
            hello: Hello {
                memory_limit: limit.unwrap_or(NO_LIMIT),
                priority: priority.unwrap_or(u32::MAX),
                freeze: is_set(GCGROUP_FREEZE).into(),
                can_swap: swap.is_some().into(),
                memory_swap_max: swap.unwrap_or(0),
                group: text(GCGROUP_GROUP)
                    .and_then(|name| GroupName::new(&name))
                    .unwrap_or(GroupName::NONE),
                has_jobs_limits: has_jobs_limits.into(),
                ..Hello::PLAIN
            },
            refuses_swap,
            required: is_set(GCGROUP_REQUIRED),
            log: get(GCGROUP_LOG.name).filter(|path| !path.is_empty()),
            ignored,
        }
    }
}

/// Parses a size like [`bytes`]; 0 if it cannot be parsed.
pub(crate) fn size(text: &OsStr) -> u64 {
    text.to_str().and_then(bytes).unwrap_or(0)
}

/// Parses a size as `memory.limit` accepts it, without percentages: decimal, with K, M, G, T or P (powers of
/// 1024; also `KB`, `Ki`, `KiB`) and then up to 9 decimals, or `max`. Returns bytes.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    if text == "max" {
        return Some(NO_LIMIT);
    }
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, unit) = text.split_at(text.bytes().take_while(is_number).count());
    let mut rest = unit.chars();
    let factor = match (rest.next(), rest.as_str()) {
        (None, _) => 1_u128,
        (Some(prefix), "" | "b" | "i" | "ib") => 1024 << (10 * "kmgtp".find(prefix)?),
        _ => return None,
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let has_point = whole.len() < number.len();
    if whole.is_empty() || has_point && (factor == 1 || decimals.is_empty() || decimals.len() > 9) {
        return None;
    }
    let digits = u128::from(format!("{whole}{decimals}").parse::<u64>().ok()?);
    let parts = decimals.bytes().fold(1, |parts, _| parts * 10);
    u64::try_from(digits * factor / parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_syntax_matches_memory_limit() {
        for (text, want) in [
            ("4096", Some(4096)),
            (" 010\n", Some(10)),
            ("3K", Some(3072)),
            ("3ki", Some(3072)),
            ("2GiB", Some(2 << 30)),
            ("1t", Some(1 << 40)),
            ("max", Some(NO_LIMIT)),
            ("18446744073709551615", Some(NO_LIMIT)),
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
            ("G", None),
        ] {
            assert_eq!(bytes(text), want, "{text:?}");
        }
    }

    #[test]
    fn unparsable_value_is_ignored() {
        let options = Options::from(|name| match name {
            "GCGROUP_SOCKET" => None,
            "GCGROUP_GROUP" => Some("x".repeat(GroupName::LONGEST + 1).into()),
            _ => Some("16".into()),
        });
        assert_eq!(
            options.hello,
            Hello {
                memory_limit: 16,
                can_swap: 1,
                memory_swap_max: 16,
                ..Hello::PLAIN
            }
        );
        assert_eq!(options.socket, DEFAULT_SOCKET);
        assert!(!options.required);
        assert_eq!(options.ignored, Some("GCGROUP_PRIORITY"));
    }

    #[test]
    fn hello_carries_settings() {
        let options = Options::from(|name| match name {
            "GCGROUP_PRIORITY" => Some("3".into()),
            "GCGROUP_FREEZE" => Some("1".into()),
            "GCGROUP_SWAP" => Some("1".into()),
            "GCGROUP_GROUP" => Some("team/a".into()),
            "GCGROUP_SOCKET" => Some("/run/other".into()),
            _ => None,
        });
        assert_eq!(
            options.hello,
            Hello {
                priority: 3,
                freeze: 1,
                can_swap: 1,
                memory_swap_max: NO_LIMIT,
                group: GroupName::new("team/a").unwrap(),
                ..Hello::PLAIN
            }
        );
        assert_eq!(options.socket, "/run/other");
        assert_eq!(options.ignored, None);
    }
}
