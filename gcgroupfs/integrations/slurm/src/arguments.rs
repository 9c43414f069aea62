//! Arguments of the plugin in `plugstack.conf`.

use std::path::PathBuf;

use anyhow::bail;
use gcgroup_abi::size::{BYTES, parse_bytes};

/// Action when Slurm suspends a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSuspend {
    /// Nothing.
    Stop,
    /// The group is frozen.
    Freeze,
    /// The group is frozen, and its memory moves to the host.
    Reclaim,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
    /// The preload library; `None`: beside the plugin.
    pub(crate) library: Option<PathBuf>,
    /// The group above those of jobs.
    pub(crate) group: String,
    /// Whether a step starts even if its group cannot be set up.
    pub(crate) best_effort: bool,
    /// Whether a job's shards are enforced.
    pub(crate) shares: bool,
    /// Whether users' options may not exceed the job's shards.
    pub(crate) bound: bool,
    /// Lowest number that `--gpu-priority` accepts.
    pub(crate) highest_priority: u8,
    /// Bytes of host memory that all steps of a job with `--gpu-swap` may use together on a node, as
    /// `memory.swap.max` takes it; `0` refuses the option.
    pub(crate) swap_max: String,
    /// Whether a job without GPUs and shards may use no GPU memory.
    pub(crate) denies_without_gres: bool,
    /// Whether GPU time and peak memory are added to the job's `AdminComment`.
    pub(crate) usage: bool,
    /// File to which a line is appended for each step.
    pub(crate) usage_log: Option<PathBuf>,
    pub(crate) suspend: OnSuspend,
    /// Program that asks the controller.
    pub(crate) scontrol: PathBuf,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            socket: "/run/gcgroupfs/gcgroup.sock".into(),
            library: None,
            group: "slurm".to_owned(),
            best_effort: false,
            shares: true,
            bound: false,
            highest_priority: 8,
            swap_max: "max".to_owned(),
            denies_without_gres: false,
            usage: true,
            usage_log: None,
            suspend: OnSuspend::Freeze,
            scontrol: "scontrol".into(),
        }
    }
}

impl Arguments {
    /// Parses the words after the plugin's path.
    ///
    /// # Errors
    /// A sentence that names the first invalid word.
    pub(crate) fn parse(words: &[String]) -> anyhow::Result<Self> {
        let mut arguments = Self::default();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let path = || match value.starts_with('/') {
                true => Ok(PathBuf::from(value)),
                false => bail!("{key}: an absolute path is expected, not {value:?}"),
            };
            let flag = || match value {
                "yes" => Ok(true),
                "no" => Ok(false),
                _ => bail!("{key}: yes or no is expected, not {value:?}"),
            };
            match key {
                "socket" => arguments.socket = path()?,
                "library" => arguments.library = Some(path()?),
                "scontrol" => arguments.scontrol = path()?,
                "usage-log" => arguments.usage_log = Some(path()?),
                "group" if !value.is_empty() => arguments.group = value.trim_matches('/').to_owned(),
                "best-effort" => arguments.best_effort = flag()?,
                "shares" => match value {
                    "yes" | "no" => arguments.shares = flag()?,
                    "bound" => (arguments.shares, arguments.bound) = (true, true),
                    _ => bail!("shares: yes, no or bound is expected, not {value:?}"),
                },
                "highest-priority" => match value.parse() {
                    Ok(number @ 0..=15) => arguments.highest_priority = number,
                    _ => bail!("highest-priority: a number from 0 to 15 is expected, not {value:?}"),
                },
                "swap-max" if parse_bytes(value).is_ok() => arguments.swap_max = value.to_owned(),
                "swap-max" => bail!("swap-max: {BYTES} is expected, not {value:?}"),
                "without-gres" => match value {
                    "allow" => arguments.denies_without_gres = false,
                    "deny" => arguments.denies_without_gres = true,
                    _ => bail!("without-gres: allow or deny is expected, not {value:?}"),
                },
                "usage" => arguments.usage = flag()?,
                "suspend" => {
                    arguments.suspend = match value {
                        "stop" => OnSuspend::Stop,
                        "freeze" => OnSuspend::Freeze,
                        "reclaim" => OnSuspend::Reclaim,
                        _ => bail!("suspend: stop, freeze or reclaim is expected, not {value:?}"),
                    }
                }
                _ => bail!("{word:?} is no argument of this plugin"),
            }
        }
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> anyhow::Result<Arguments> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words)
    }

    #[test]
    fn every_argument_is_read() {
        assert_eq!(parse("").unwrap(), Arguments::default());
        let line = "socket=/s library=/l.so scontrol=/b/scontrol usage-log=/u group=/hpc/ best-effort=yes \
                    shares=bound highest-priority=4 swap-max=16G without-gres=deny usage=no suspend=reclaim";
        let wanted = Arguments {
            socket: "/s".into(),
            library: Some("/l.so".into()),
            group: "hpc".to_owned(),
            best_effort: true,
            shares: true,
            bound: true,
            highest_priority: 4,
            swap_max: "16G".to_owned(),
            denies_without_gres: true,
            usage: false,
            usage_log: Some("/u".into()),
            suspend: OnSuspend::Reclaim,
            scontrol: "/b/scontrol".into(),
        };
        assert_eq!(parse(line).unwrap(), wanted);
        assert!(!parse("shares=no").unwrap().shares);
    }

    #[test]
    fn invalid_argument_is_named() {
        for word in [
            "socket=run",
            "shares=half",
            "suspend=",
            "usage=1",
            "highest-priority=16",
            "highest-priority=",
            "swap-max=",
            "swap-max=50%",
            "swap-max=lots",
            "without-gres=yes",
            "group=",
            "required",
            "x=y",
        ] {
            let error = parse(word).unwrap_err().to_string();
            assert!(error.contains(word.split('=').next().unwrap()), "{error}");
        }
    }
}
