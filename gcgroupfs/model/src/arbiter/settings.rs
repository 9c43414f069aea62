//! The scheduler's options, `[compute]` in the configuration, and the arbiter's settings made from them.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::policy::{self, Policy};

/// Units of options.
const USEC: u64 = 1000;
const PERCENT: u64 = 1;
const FLAG: u64 = 1;

/// Longest time in which a process repays GPU time that it used out of its turn or beyond its quota,
/// nanoseconds. What is still owed then is remitted: a process that only waited for another process may have
/// been charged for that, and must go on.
pub(super) const LONGEST_DEBT: u64 = 20_000_000_000;

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

/// Declares the options, one a line: `NAME => FIELD * UNIT: BOUNDS = DEFAULT, "HELP";`. `NAME` is in the
/// configuration, a whole number; `FIELD` is that number times `UNIT` in [`Settings`].
macro_rules! options {
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

        /// Settings of the arbiter. Times are nanoseconds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $help] pub $field: u64,)*
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

options! {
    window_usec => window * USEC: 100..=100_000 = 500,
        "GPU time that a process may have queued where one of higher priority may come";
    linger_usec => linger * USEC: 0..=1_000_000 = 1_000,
        "time for which a process counts as busy after its last work";
    cycle_usec => cycle * USEC: 1_000..=1_000_000 = 20_000,
        "each busy process gets a turn within this time, if its share allows one";
    starvation_percent => starvation * PERCENT: 0..=50 = 1,
        "share of the GPU for the waiting processes of one priority; 0: only in their turn";
    patience_usec => patience * USEC: 5_000..=1_000_000 = 250_000,
        "after this time a waiting process submits one batch, whatever the daemon says";
    watch_usec => watch * USEC: 0..=3_600_000_000 = 10_000_000,
        "GPU time is measured for this long after compute.stat was read";
    always_measure => measures * FLAG: 0..=1 = 1,
        "1: GPU time is always measured, with drivers from CUDA 12.5 on; 0: only as watch_usec says";
    memory_turn_move_percent => turn_move_percent * PERCENT: 0..=50 = 5,
        "memory turns last so long that moving memory takes this part of them; 0: no memory turns";
    memory_turn_least_usec => turn_least * USEC: 100_000..=60_000_000 = 1_000_000,
        "shortest memory turn";
    memory_turn_most_usec => turn_most * USEC: 100_000..=600_000_000 = 60_000_000,
        "longest memory turn";
}

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

impl Settings {
    /// Returns the time in which a process repays `nsec` of GPU time that it used while others had the turn.
    pub(super) fn repayment(&self, nsec: u64) -> u64 {
        nsec.saturating_mul(100 / PERCENT) / self.starvation.max(PERCENT)
    }

    /// Returns the interval at which a waiting process that owes nothing gets an in-flight window; `None`:
    /// only in its turn.
    pub(super) fn starvation_interval(&self) -> Option<u64> {
        (self.starvation > 0).then(|| self.repayment(self.window))
    }

    /// Returns the interval of ticks while a process waits for others' work, in case the end of that work is
    /// not rung.
    pub fn tick(&self) -> u64 {
        (4 * self.window).clamp(500_000, 2_000_000)
    }
}

/// Returns `nsec` in microseconds, the unit of control blocks and of the configuration.
pub(super) fn usec(nsec: u64) -> u32 {
    u32::try_from(nsec / 1000).unwrap_or(u32::MAX)
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(&Options::default())
    }
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
