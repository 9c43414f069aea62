//! Options of `gcgroupfs run` for the settings that a program may ask for at its start, from the table of
//! settings.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use gcgroupfs_model::tree::{Kind, RunOption, SETTINGS, Setting, Value};

/// The settings that were given, as environment variables of the program and their values.
#[derive(Debug)]
pub(super) struct RunOptions(Vec<(&'static str, String)>);

impl RunOptions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
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
    };
    let parse = |text: &str| {
        setting
            .parse(text, setting.default, None)
            .map_err(|error| error.to_string())
    };
    let argument = argument.value_name(value).value_parser(parse);
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
        all().fold(command, |command, (setting, option)| {
            command.arg(argument(setting, option))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RunOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = all().filter_map(|(setting, option)| {
            let value = match setting.kind {
                Kind::Flag => matches.get_flag(option.name).then_some(Value::Flag(true))?,
                _ => *matches.get_one::<Value>(option.name)?,
            };
            Some((option.variable, setting.show(value).trim_end().to_owned()))
        });
        Ok(Self(given.collect()))
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
            RunOptions::from_arg_matches(&matches).map(|options| options.0)
        };
        for (setting, option) in all() {
            let (argument, value) = match setting.kind {
                Kind::Flag => (format!("--{}", option.name), "1"),
                Kind::Bytes | Kind::Visible => (format!("--{}=8K", option.name), "8192"),
                Kind::Number { .. } => (format!("--{}=3", option.name), "3"),
                Kind::Quota => (format!("--{}=1000", option.name), "1000 100000"),
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
        let none = command.try_get_matches_from(["run"]).unwrap();
        assert!(RunOptions::from_arg_matches(&none).unwrap().is_empty());
    }
}
