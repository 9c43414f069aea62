//! Options of srun, sbatch and salloc: a row for each.

use anyhow::{Context, bail, ensure};
use gcgroup_abi::size::{Decimal, parse_bytes};

use crate::arguments::Arguments;

/// A value for all GPUs of the node together, or for one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// Index on the node, or UUID; `None`: all together.
    pub(crate) gpu: Option<String>,
    /// As the control file takes it.
    pub(crate) text: String,
}

/// Options that were given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) memory: Vec<Value>,
    pub(crate) max: Vec<Value>,
    pub(crate) priority: Option<u8>,
    pub(crate) swap: bool,
}

/// An option.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Name of its value in the help; `None`: it has no value.
    pub(crate) value: Option<&'static str>,
    pub(crate) help: &'static str,
    set: fn(&mut Options, &str) -> anyhow::Result<()>,
}

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "gpu-memory",
        value: Some("SIZE[:GPU]"),
        help: "most GPU memory of the step on each node, as 8G or 50%; of one GPU: 8G:0; several: 8G:0,4G:1",
        set: |options, text| {
            options.memory = values(text, "a size as 8G, a percentage as 50% or max", |text| {
                parse_bytes(text).is_ok() || is_percentage(text)
            })?;
            Ok(())
        },
    },
    Row {
        name: "gpu-priority",
        value: Some("N"),
        help: "priority on the GPU, up to 15, the lowest; from 8, unless the administrator allows less",
        set: |options, text| {
            let number: u8 = text.parse().unwrap_or(u8::MAX);
            ensure!(number <= 15, "a number from 0 to 15 is expected, not {text:?}");
            options.priority = Some(number);
            Ok(())
        },
    },
    Row {
        name: "gpu-max",
        value: Some("PERCENT[:GPU]"),
        help: "most GPU time of the step on each node, in percent of one GPU's, as 50%; of one GPU: 50%:0",
        set: |options, text| {
            options.max = values(text, "a percentage as 50% or max", is_percentage)?;
            Ok(())
        },
    },
    Row {
        name: "gpu-swap",
        value: None,
        help: "let GPU memory of the step be moved to host memory",
        set: |options, _| {
            options.swap = true;
            Ok(())
        },
    },
];

impl Options {
    /// Sets the option of a row.
    ///
    /// # Errors
    /// The value is not one of the option; the text says what is expected.
    pub(crate) fn set(&mut self, row: &Row, text: &str) -> anyhow::Result<()> {
        (row.set)(self, text)
    }

    /// Checks the options against the administrator's arguments.
    ///
    /// # Errors
    /// The priority is above `highest-priority`, or swapping is refused (`swap-max=0`). Names the option.
    pub(crate) fn check_bounds(&self, arguments: &Arguments) -> anyhow::Result<()> {
        let checked = self.check_priority(arguments.highest_priority);
        checked.context("--gpu-priority")?;
        ensure!(
            !self.swap || arguments.swap_max != "0",
            "--gpu-swap: swapping of GPU memory is not allowed here"
        );
        Ok(())
    }

    /// Checks the priority against the argument `highest-priority`.
    fn check_priority(&self, highest: u8) -> anyhow::Result<()> {
        if let Some(priority) = self.priority {
            ensure!(
                priority >= highest,
                "the highest priority here is {highest}: a number from {highest} to 15 is expected, not \
                 {priority}"
            );
        }
        Ok(())
    }

    pub(crate) fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

/// Parses `VALUE[:GPU]`, or several separated by commas.
fn values(text: &str, expected: &str, check: fn(&str) -> bool) -> anyhow::Result<Vec<Value>> {
    let mut values: Vec<Value> = Vec::new();
    for part in text.split(',') {
        let (value, gpu) = part
            .split_once(':')
            .map_or((part, None), |(value, gpu)| (value, Some(gpu)));
        ensure!(check(value), "{expected} is expected, not {value:?}");
        if let Some(gpu) = gpu
            && !is_gpu(gpu)
        {
            bail!("a GPU's index or UUID is expected, not {gpu:?}");
        }
        let gpu = gpu.map(str::to_owned);
        ensure!(
            values.iter().all(|other| other.gpu != gpu),
            "more than one value for the same GPU"
        );
        values.push(Value {
            gpu,
            text: value.to_owned(),
        });
    }
    Ok(values)
}

/// Returns whether the text is a positive percentage, or `max`. The daemon checks the range.
fn is_percentage(text: &str) -> bool {
    text == "max" || matches!(Decimal::percent(text), Some(Ok(percent)) if percent.is_above(0))
}

fn is_gpu(text: &str) -> bool {
    let is_index = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_uuid = (text.starts_with("GPU-") || text.starts_with("MIG-"))
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_index || is_uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, text: &str) -> anyhow::Result<Options> {
        let mut options = Options::default();
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        options.set(row, text).map(|()| options)
    }

    #[test]
    fn values_name_gpus() {
        let value = |text: &str, gpu: Option<&str>| Value {
            gpu: gpu.map(str::to_owned),
            text: text.to_owned(),
        };
        let memory = set("gpu-memory", "16G,8G:0,1.5GiB:GPU-a-1").unwrap().memory;
        let wanted = [
            value("16G", None),
            value("8G", Some("0")),
            value("1.5GiB", Some("GPU-a-1")),
        ];
        assert_eq!(memory, wanted);
        assert_eq!(set("gpu-max", "50%:1").unwrap().max, [value("50%", Some("1"))]);
        assert_eq!(set("gpu-priority", "12").unwrap().priority, Some(12));
        assert!(set("gpu-swap", "").unwrap().swap);
    }

    #[test]
    fn priority_above_the_highest_is_refused() {
        let options = set("gpu-priority", "7").unwrap();
        let error = options.check_priority(8).unwrap_err().to_string();
        assert!(error.contains("from 8 to 15"), "{error}");
        options.check_priority(7).unwrap();
        Options::default().check_priority(15).unwrap();
    }

    #[test]
    fn swap_is_refused_where_the_administrator_allows_none() {
        let options = set("gpu-swap", "").unwrap();
        let mut arguments = Arguments::default();
        options.check_bounds(&arguments).unwrap();
        arguments.swap_max = "0".to_owned();
        let error = options.check_bounds(&arguments).unwrap_err().to_string();
        assert!(error.contains("--gpu-swap"), "{error}");
        Options::default().check_bounds(&arguments).unwrap();
    }

    #[test]
    fn invalid_values_are_refused() {
        for (name, texts) in [
            (
                "gpu-memory",
                &[
                    "",
                    "G",
                    "8X",
                    "8G:",
                    "8G:x",
                    "8G,4G",
                    "8G:0,4G:0",
                    "-1",
                    "1.2.3G",
                    "8 G",
                    "0%",
                    "8G:a/b",
                ][..],
            ),
            ("gpu-max", &["", "50", "0%", "%", "50%:", "-5%", "50%:/"]),
            ("gpu-priority", &["", "16", "-1", "high"]),
        ] {
            for text in texts {
                assert!(set(name, text).is_err(), "{name}={text}");
            }
        }
        for text in ["0", "max", "8192", "8g", "33.3%"] {
            assert!(set("gpu-memory", text).is_ok(), "{text}");
        }
    }
}
