//! Options for the lease of a job's group.

use clap::Args;

use crate::cli::report::age;
use crate::cli::run_options::Write;
use gcgroupfs_model::tree::{LEASE, LEASE_ACTION, LEASE_ACTIONS};

#[derive(Debug, Args)]
pub(super) struct LeaseOptions {
    /// End the job's lease after this time, as 90 (seconds), 30m, 2h or 1d; then --then applies to the job
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    seconds: Option<u64>,
    /// Action once the lease has ended, until gcgroup.lease of the job's group is written again
    /// [default: freeze]
    #[arg(long = "then", value_name = "ACTION", requires = "seconds", value_parser = action)]
    action: Option<&'static str>,
}

/// Parses a time of at least one second.
fn seconds(text: &str) -> Result<u64, String> {
    let seconds = age(text).ok();
    let seconds = seconds.filter(|seconds| (1..=u64::from(u32::MAX)).contains(seconds));
    seconds.ok_or_else(|| "a time of at least a second is expected, as 90, 30m, 2h or 1d".to_owned())
}

fn action(text: &str) -> Result<&'static str, String> {
    let names = LEASE_ACTIONS.iter().map(|action| action.name);
    let mut all = names.clone();
    all.find(|name| *name == text)
        .ok_or_else(|| format!("expected {}", names.collect::<Vec<_>>().join(" or ")))
}

impl LeaseOptions {
    pub(super) fn is_empty(&self) -> bool {
        self.seconds.is_none()
    }

    /// Returns the values for the control files of the job's group. The action comes first: it is known when
    /// the lease begins.
    pub(super) fn writes(&self) -> impl Iterator<Item = Write> {
        let action = self.action.map(|action| (LEASE_ACTION.name, action.to_owned()));
        let seconds = self.seconds.map(|seconds| (LEASE.name, seconds.to_string()));
        action.into_iter().chain(seconds).map(|(file, value)| Write {
            device: None,
            file,
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_a_unit_or_is_in_seconds() {
        for (text, expected) in [
            ("90", 90),
            ("1s", 1),
            ("30m", 1800),
            ("2h", 7200),
            ("1d", 86_400),
            ("1w", 604_800),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "0",
            "h",
            "+5",
            "-1",
            "1.5h",
            "2 h",
            "4294967296",
            "99999999999999d",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
