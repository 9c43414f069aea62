//! Options of `gcgroupfs run` for the settings that a program may ask for at its start, from the table of
//! settings.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use gcgroupfs_model::tree::{Kind, SETTINGS, Setting, Value, Wish};

/// The settings that were given, as environment variables of the program and their values.
#[derive(Debug)]
pub struct Wishes(Vec<(&'static str, String)>);

impl Wishes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

fn all() -> impl Iterator<Item = (&'static Setting, &'static Wish)> {
    let settings = SETTINGS.iter();
    settings.filter_map(|setting| Some((*setting, setting.wish.as_ref()?)))
}

fn option(setting: &'static Setting, wish: &'static Wish) -> Arg {
    let option = Arg::new(wish.option).long(wish.option).help(wish.help);
    let value = match setting.kind {
        Kind::Flag => return option.action(ArgAction::SetTrue),
        Kind::Bytes | Kind::Visible => "SIZE",
        Kind::Number { .. } => "N",
        Kind::Quota => "QUOTA",
    };
    let parse = |text: &str| {
        setting
            .parse(text, setting.default)
            .map_err(|error| error.to_string())
    };
    let option = option.value_name(value).value_parser(parse);
    match wish.bare {
        Some(bare) => option
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(bare),
        None => option,
    }
}

impl Args for Wishes {
    fn augment_args(command: Command) -> Command {
        all().fold(command, |command, (setting, wish)| {
            command.arg(option(setting, wish))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Wishes {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = all().filter_map(|(setting, wish)| {
            let value = match setting.kind {
                Kind::Flag => matches.get_flag(wish.option).then_some(Value::Flag(true))?,
                _ => *matches.get_one::<Value>(wish.option)?,
            };
            Some((wish.variable, setting.show(value).trim_end().to_owned()))
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
    fn every_wish_is_an_option_that_sets_its_variable() {
        let command = Wishes::augment_args(Command::new("run"));
        let parse = |argument: &str| {
            let matches = command.clone().try_get_matches_from(["run", argument])?;
            Wishes::from_arg_matches(&matches).map(|wishes| wishes.0)
        };
        for (setting, wish) in all() {
            let (argument, value) = match setting.kind {
                Kind::Flag => (format!("--{}", wish.option), "1"),
                Kind::Bytes | Kind::Visible => (format!("--{}=8K", wish.option), "8192"),
                Kind::Number { .. } => (format!("--{}=3", wish.option), "3"),
                Kind::Quota => (format!("--{}=1000", wish.option), "1000 100000"),
            };
            assert_eq!(parse(&argument).unwrap(), [(wish.variable, value.to_owned())]);
            assert!(
                parse(&format!("--{}=nonsense", wish.option)).is_err(),
                "{argument}"
            );
            if let Some(bare) = wish.bare {
                let given = [(wish.variable, bare.to_owned())];
                assert_eq!(parse(&format!("--{}", wish.option)).unwrap(), given);
            }
        }
        assert!(parse("--sample=3").is_ok());
        let none = command.try_get_matches_from(["run"]).unwrap();
        assert!(Wishes::from_arg_matches(&none).unwrap().is_empty());
    }
}
