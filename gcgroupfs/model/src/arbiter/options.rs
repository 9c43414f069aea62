//! The scheduler's options, `[compute]` in the configuration.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::policy::{self, Policy};
use super::settings::{PERCENT, Settings, options};

/// Units of options.
const USEC: u64 = 1000;
const FLAG: u64 = 1;

/// Row of the table of options, for the manual.
#[derive(Debug)]
pub(super) struct Row {
    pub name: &'static str,
    pub least: u32,
    pub most: u32,
    /// As in TOML.
    pub default: &'static str,
    pub help: &'static str,
}

/// Defines [`Options`], their table, and [`Settings::new`].
macro_rules! define {
    ($(
        $name:ident => $field:ident * $unit:ident: $least:literal..=$most:literal = $default:literal, $help:literal;
    )*) => {
        /// `[compute]`: options of the scheduler. Times are whole microseconds, as in the control files.
        #[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Options {
            /// Default policy, overridden by `--policy` and by a written `compute.policy`.
            pub policy: &'static Policy,
            $(#[doc = $help] pub $name: Range<$least, $most>,)*
        }

        impl Default for Options {
            fn default() -> Self {
                Self { policy: Default::default(), $($name: Range($default),)* }
            }
        }

        impl Settings {
            pub fn new(options: &Options) -> Self {
                Self { $($field: u64::from(options.$name.0) * $unit,)* }
            }
        }

        /// The options other than the policy.
        const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            least: $least,
            most: $most,
            default: stringify!($default),
            help: $help,
        }),*];
    };
}

options!(define);

/// A number from `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range<const LEAST: u32, const MOST: u32>(u32);

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Range<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(from)?;
        match u32::try_from(number) {
            Ok(number) if (LEAST..=MOST).contains(&number) => Ok(Self(number)),
            _ => Err(D::Error::custom(format!(
                "expected a number from {LEAST} to {MOST}, got {number}"
            ))),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(&Options::default())
    }
}

/// Returns a configuration with all options and their defaults, for the manual.
pub fn sample() -> String {
    let policy = format!("policy = {:?}", <&Policy>::default().name);
    let help = format!(
        "scheduling policy until compute.policy is written: {}",
        policy::names()
    );
    let rows = ROWS.iter().map(|row| {
        let Row {
            name,
            default,
            least,
            most,
            help,
        } = row;
        (
            format!("{name} = {default}"),
            format!("{help} ({least} to {most})"),
        )
    });
    let lines = [(policy, help)].into_iter().chain(rows);
    let lines = lines.map(|(option, help)| format!("{option:<26} # {help}\n"));
    "[compute]\n".to_owned() + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_bounds_and_a_default_within_them() {
        let read = |name: &str, number: i64| toml::from_str::<Options>(&format!("{name} = {number}"));
        for Row {
            name,
            least,
            most,
            default,
            ..
        } in ROWS
        {
            let (least, most) = (i64::from(*least), i64::from(*most));
            let default: i64 = default.replace('_', "").parse().unwrap();
            for number in [least, most, default] {
                assert!(read(name, number).is_ok(), "{name} = {number}");
            }
            assert_eq!(read(name, default).unwrap(), Options::default(), "{name}");
            let other = if default == most { least } else { most };
            assert_ne!(read(name, other).unwrap(), Options::default(), "{name}");
            for number in [least - 1, most + 1] {
                let said = read(name, number).unwrap_err().to_string();
                let expected = format!("a number from {least} to {most}, got {number}");
                assert!(said.contains(&expected), "{name}: {said}");
            }
        }
    }

    #[test]
    fn sample_has_each_option_once_with_its_default_and_help() {
        let sample = sample();
        for Row {
            name,
            default,
            least,
            most,
            help,
        } in ROWS
        {
            let line = sample
                .lines()
                .find(|line| line.starts_with(&format!("{name} = {default} ")))
                .unwrap();
            assert!(
                line.ends_with(&format!(" # {help} ({least} to {most})")),
                "{line}"
            );
        }
        assert_eq!(sample.lines().count(), 2 + ROWS.len());
    }
}
