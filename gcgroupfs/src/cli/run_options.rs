//! Options of `gcgroupfs run` for the settings that a program may ask for at its start, from the table of
//! settings.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use gcgroup_abi::environment::GCGROUP_SWAP;
use gcgroupfs_model::tree::{
    COMPUTE_MAX, Kind, MEMORY_HIGH, MEMORY_LIMIT, MEMORY_SWAP_MAX, RunOption, SETTINGS, Setting, Value,
};

/// The settings that were given.
#[derive(Debug, Default)]
pub(super) struct RunOptions {
    /// Environment variables of the program, and their values.
    variables: Vec<(&'static str, String)>,
    writes: Vec<Write>,
}

/// A value for a control file of the job's group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Write {
    /// UUID or index of a device; `None`: the file of the whole.
    pub(super) device: Option<String>,
    pub(super) file: &'static str,
    pub(super) value: String,
}

impl RunOptions {
    pub(super) fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.writes.is_empty()
    }

    pub(super) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.variables.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Returns whether the program's memory is to be movable.
    pub(super) fn swaps(&self) -> bool {
        let is_swap = |(name, value): (&str, &str)| name == GCGROUP_SWAP.name && value != "0";
        self.variables().any(is_swap)
    }

    /// Returns the values for the control files of the job's group.
    pub(super) fn writes(&self) -> &[Write] {
        &self.writes
    }
}

/// Values of an option: one for all devices together, and those of single devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Values {
    whole: Option<Value>,
    devices: Vec<(String, Value)>,
}

/// Settings that hold for the whole job, beside the processes' own, with the option for those that processes
/// cannot ask for.
const OF_JOBS: &[(&Setting, Option<&str>)] = &[
    (MEMORY_LIMIT, None),
    (MEMORY_HIGH, Some("memory-high")),
    (MEMORY_SWAP_MAX, None),
    (COMPUTE_MAX, Some("compute-max")),
];

/// Parses `VALUE` or `DEVICE=VALUE`, or several separated by commas.
///
/// # Errors
/// A sentence that names the invalid part.
fn parse_values(setting: &Setting, text: &str) -> Result<Values, String> {
    let mut values = Values::default();
    for part in text.split(',') {
        let (device, value) = part
            .split_once('=')
            .map_or((None, part), |(device, value)| (Some(device.trim()), value));
        let value = parse(setting, value.trim())?;
        match device {
            None if values.whole.is_none() => values.whole = Some(value),
            None => return Err("more than one value for all devices".to_owned()),
            Some("") => return Err("a device is expected before =".to_owned()),
            Some(device) if values.devices.iter().any(|(other, _)| other == device) => {
                return Err(format!("more than one value for device {device}"));
            }
            Some(device) => values.devices.push((device.to_owned(), value)),
        }
    }
    Ok(values)
}

/// Parses one value.
fn parse(setting: &Setting, text: &str) -> Result<Value, String> {
    setting
        .parse(text, setting.default, None)
        .map_err(|error| error.to_string())
}

fn all() -> impl Iterator<Item = (&'static Setting, &'static RunOption)> {
    let settings = SETTINGS.iter();
    settings.filter_map(|setting| Some((*setting, setting.run_option.as_ref()?)))
}

fn argument(setting: &'static Setting, option: &'static RunOption) -> Arg {
    let argument = Arg::new(option.name).long(option.name).help(option.help);
    let value = match setting.kind {
        Kind::Flag => return argument.action(ArgAction::SetTrue),
        Kind::Bytes | Kind::Visible => "SIZE",
        Kind::Number { .. } => "N",
        Kind::Quota => "QUOTA",
        Kind::Seconds => "SECONDS",
        Kind::LeaseAction => "ACTION",
        Kind::Idle => "RULE",
    };
    let argument = if setting == MEMORY_LIMIT {
        let parse = |text: &str| parse_values(setting, text);
        argument.value_name("[GPU=]SIZE,...").value_parser(parse)
    } else {
        let parse = |text: &str| parse(setting, text);
        argument.value_name(value).value_parser(parse)
    };
    match option.bare {
        Some(bare) => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(bare),
        None => argument,
    }
}

impl Args for RunOptions {
    fn augment_args(command: Command) -> Command {
        let command = all().fold(command, |command, (setting, option)| {
            command.arg(argument(setting, option))
        });
        let quota = Arg::new("compute-max")
            .long("compute-max")
            .value_name("[GPU=]QUOTA,...")
            .help("Limit of GPU time for the whole job, as 50%, \"50000 100000\" (us in each period), or max")
            .value_parser(|text: &str| parse_values(COMPUTE_MAX, text));
        let high = Arg::new("memory-high")
            .long("memory-high")
            .value_name("[GPU=]SIZE,...")
            .help("Device memory of the whole job beyond which allocations wait and movable memory moves out")
            .value_parser(|text: &str| parse_values(MEMORY_HIGH, text));
        command.arg(high).arg(quota)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RunOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &Setting, name: &str| match setting.kind {
            Kind::Flag => Values {
                whole: matches.get_flag(name).then_some(Value::Flag(true)),
                ..Values::default()
            },
            _ if [MEMORY_LIMIT, MEMORY_HIGH, COMPUTE_MAX].contains(&setting) => {
                matches.get_one::<Values>(name).cloned().unwrap_or_default()
            }
            _ => Values {
                whole: matches.get_one::<Value>(name).copied(),
                ..Values::default()
            },
        };
        let show = |setting: &Setting, value: Value| setting.show(value).trim_end().to_owned();
        let mut options = Self::default();
        for (setting, option) in all() {
            if let Some(value) = given(setting, option.name).whole {
                options.variables.push((option.variable, show(setting, value)));
            }
        }
        for (setting, name) in OF_JOBS {
            let name = setting.run_option.as_ref().map(|option| option.name).or(*name);
            let Some(name) = name else { continue };
            let Values { whole, devices } = given(setting, name);
            let whole = whole.map(|value| (None, value)).into_iter();
            let devices = devices.into_iter().map(|(device, value)| (Some(device), value));
            options
                .writes
                .extend(whole.chain(devices).map(|(device, value)| Write {
                    device,
                    file: setting.name,
                    value: show(setting, value),
                }));
        }
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_option_sets_its_variable() {
        let command = RunOptions::augment_args(Command::new("run"));
        let parse = |argument: &str| {
            let matches = command.clone().try_get_matches_from(["run", argument])?;
            RunOptions::from_arg_matches(&matches).map(|options| options.variables)
        };
        for (setting, option) in all() {
            let (argument, value) = match setting.kind {
                Kind::Flag => (format!("--{}", option.name), "1"),
                Kind::Bytes | Kind::Visible => (format!("--{}=8K", option.name), "8192"),
                Kind::Number { .. } => (format!("--{}=3", option.name), "3"),
                Kind::Quota => (format!("--{}=1000", option.name), "1000 100000"),
                Kind::Seconds => (format!("--{}=60", option.name), "60"),
                Kind::LeaseAction => (format!("--{}=kill", option.name), "kill"),
                Kind::Idle => (format!("--{}=30 reclaim", option.name), "30 reclaim"),
            };
            assert_eq!(parse(&argument).unwrap(), [(option.variable, value.to_owned())]);
            assert!(
                parse(&format!("--{}=nonsense", option.name)).is_err(),
                "{argument}"
            );
            if let Some(bare) = option.bare {
                let given = [(option.variable, bare.to_owned())];
                assert_eq!(parse(&format!("--{}", option.name)).unwrap(), given);
            }
        }
        assert!(parse("--sample=3").is_ok());
        let writes = |argument: &str| {
            let matches = command.clone().try_get_matches_from(["run", argument]).ok()?;
            let options = RunOptions::from_arg_matches(&matches).unwrap();
            let writes = options.writes.into_iter();
            let texts = writes.map(|write| {
                let device = write
                    .device
                    .map(|device| format!("{device}/"))
                    .unwrap_or_default();
                format!("{device}{} {}", write.file, write.value)
            });
            Some(texts.collect::<Vec<_>>().join("; "))
        };
        for (argument, wanted) in [
            ("--memory-limit=8K", Some("memory.limit 8192")),
            (
                "--memory-limit=GPU-a=8K,1=max",
                Some("GPU-a/memory.limit 8192; 1/memory.limit max"),
            ),
            (
                "--memory-limit=16K,0=8K",
                Some("memory.limit 16384; 0/memory.limit 8192"),
            ),
            ("--memory-limit=8K,4K", None),
            ("--memory-limit=0=8K,0=4K", None),
            ("--memory-limit=0=", None),
            ("--memory-limit==8K", None),
            ("--swap=4K", Some("memory.swap.max 4096")),
            ("--priority=3", Some("")),
            ("--compute-max=50%", Some("compute.max 50000 100000")),
            ("--compute-max=250%", Some("compute.max 250000 100000")),
            ("--compute-max=20000", Some("compute.max 20000 100000")),
            ("--compute-max=1=20000 50000", Some("1/compute.max 20000 50000")),
            ("--compute-max=max", Some("compute.max max 100000")),
            ("--compute-max=%", None),
            ("--compute-max=-5%", None),
            ("--compute-max=0%", None),
        ] {
            assert_eq!(writes(argument).as_deref(), wanted, "{argument}");
        }
        let none = command.try_get_matches_from(["run"]).unwrap();
        assert!(RunOptions::from_arg_matches(&none).unwrap().is_empty());
    }
}
