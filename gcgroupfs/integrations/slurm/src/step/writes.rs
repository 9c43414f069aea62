//! Values for the control files of the groups of a job and of a step, from shards and options.

use anyhow::Context;

use crate::options::{Options, Value};
use crate::shares::{Allocation, Limits, Shards};
use gcgroup_client::node::Device;

/// Options and resources of a step, from Slurm.
#[derive(Debug)]
pub(super) struct Given<'a> {
    pub(super) options: &'a Options,
    pub(super) allocation: Allocation,
    /// Shards of the step itself, which may be fewer than the job's.
    pub(super) step_shards: Option<u64>,
    pub(super) is_batch: bool,
    pub(super) is_bound: bool,
    /// Whether the controller has not said what the job was given.
    pub(super) is_unknown: bool,
    /// Whether the job may use no GPU memory, as it was given no GPUs and no shards.
    pub(super) is_denied: bool,
    /// Most bytes of host memory for `--gpu-swap`, of the job and of each step.
    pub(super) swap_max: &'a str,
}

/// A value for a control file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) file: String,
    pub(super) value: String,
    /// Only where the file has no value.
    pub(super) is_default: bool,
}

impl Given<'_> {
    /// Returns whether the step must not start without its group.
    pub(super) fn needs_group(&self) -> bool {
        self.is_unknown || self.options.is_any() || self.is_denied || self.allocation.is_any()
    }

    /// Returns what is to be written, for the groups of the job and of the step.
    ///
    /// Shards bound the job, so that all its steps together stay within them, and each step. Options take the
    /// place of shards for the memory or the time that they are given for, unless they are bound by shards.
    /// Options of sbatch hold for the whole job.
    pub(super) fn writes(&self, job: &str, step: &str, devices: &[Device]) -> anyhow::Result<Vec<Write>> {
        let mut writes = Vec::new();
        let mut write = |file: String, value: &str, is_default: bool| {
            writes.push(Write {
                file,
                value: value.to_owned(),
                is_default,
            });
        };
        if self.is_unknown || self.is_denied {
            write(format!("{step}/memory.limit"), "0", false);
        }
        // Options of memory and time have no effect: the step's limit would take the place of 0.
        if self.is_denied {
            return Ok(writes);
        }
        if let Some(shards) = &self.allocation.shards {
            let of_step = self
                .step_shards
                .map_or(shards.count, |count| count.min(shards.count));
            for (group, count, is_job) in [(job, shards.count, true), (step, of_step, false)] {
                let Limits { memory, time } = shards.limits(count, devices)?;
                let applies = |given: &[Value]| given.is_empty() || is_job && self.is_bound;
                if applies(&self.options.memory) {
                    write(format!("{group}/memory.limit"), &memory.to_string(), is_job);
                    for device in unused(shards, devices).filter(|_| is_job) {
                        write(format!("{group}/{}/memory.limit", device.index), "0", true);
                    }
                }
                if applies(&self.options.max) {
                    write(format!("{group}/compute.max"), &time, is_job);
                }
            }
        }
        let groups = [Some(step), Some(job).filter(|_| self.is_batch && !self.is_bound)];
        for group in groups.into_iter().flatten() {
            let files = [
                ("memory.limit", &self.options.memory),
                ("compute.max", &self.options.max),
            ];
            for (file, values) in files {
                for value in values {
                    write(
                        format!("{group}/{}{file}", directory(value, devices)?),
                        &value.text,
                        false,
                    );
                }
            }
        }
        if let Some(priority) = self.options.priority {
            write(format!("{step}/compute.priority"), &priority.to_string(), false);
        }
        let is_bounded = self.swap_max != "max";
        if self.options.swap {
            // Overlapping steps share the bound.
            if is_bounded {
                write(format!("{job}/memory.swap.max"), self.swap_max, true);
            }
            write(format!("{step}/memory.swap.max"), self.swap_max, false);
        } else if is_bounded {
            // The bound of the job would allow it.
            write(format!("{step}/memory.swap.max"), "0", false);
        }
        Ok(writes)
    }
}

/// Returns the GPUs that a job has no shards of.
fn unused<'a>(shards: &'a Shards, devices: &'a [Device]) -> impl Iterator<Item = &'a Device> {
    devices
        .iter()
        .filter(|device| !shards.gpus.contains(&device.index))
}

/// Returns the directory of a value's GPU, with a slash.
fn directory(value: &Value, devices: &[Device]) -> anyhow::Result<String> {
    let Some(gpu) = &value.gpu else {
        return Ok(String::new());
    };
    let mut found = devices.iter();
    let found = found.find(|device| device.uuid == *gpu || device.index.to_string() == *gpu);
    let device = found.with_context(|| format!("there is no GPU {gpu} on this node"))?;
    Ok(format!("{}/", device.index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroup_client::node::devices;

    const DEVICES: &str = "0 GPU-a 0000:01:00.0 8000 A\n1 GPU-b 0000:02:00.0 8000 A\n";

    fn options(settings: &[(&str, &str)]) -> Options {
        let mut options = Options::default();
        for (name, text) in settings {
            let row = crate::options::ROWS.iter().find(|row| row.name == *name).unwrap();
            options.set(row, text).unwrap();
        }
        options
    }

    /// Returns the writes for a job with 4 of the 8 shards of GPU 0 and these options.
    fn writes(
        given: &[(&str, &str)],
        is_batch: bool,
        is_bound: bool,
        step_shards: Option<u64>,
    ) -> Vec<String> {
        let allocation = Allocation::parse("shard:4(IDX:0)", "gpu:2,shard:16").unwrap();
        let given = Given {
            options: &options(given),
            allocation,
            step_shards,
            is_batch,
            is_bound,
            is_unknown: false,
            is_denied: false,
            swap_max: "max",
        };
        let writes = given.writes("j", "j/s", &devices(DEVICES, "")).unwrap();
        let texts = writes.into_iter().map(|write| {
            let mark = if write.is_default { "?" } else { "" };
            format!("{}{mark} {}", write.file, write.value)
        });
        texts.collect()
    }

    #[test]
    fn shards_bound_job_and_step() {
        let wanted = [
            "j/memory.limit? 4000",
            "j/1/memory.limit? 0",
            "j/compute.max? 50000 100000",
            "j/s/memory.limit 2000",
            "j/s/compute.max 25000 100000",
        ];
        assert_eq!(writes(&[], false, false, Some(2)), wanted);
        // More than the job has is no more than the job has.
        assert_eq!(writes(&[], false, false, Some(99))[3], "j/s/memory.limit 4000");
    }

    #[test]
    fn options_replace_shards_unless_bound() {
        let memory = [
            ("gpu-memory", "6000,1K:GPU-b"),
            ("gpu-swap", ""),
            ("gpu-priority", "9"),
        ];
        let step = ["j/s/memory.limit 6000", "j/s/1/memory.limit 1K"];
        let rest = ["j/s/compute.priority 9", "j/s/memory.swap.max max"];
        let times = ["j/compute.max? 50000 100000", "j/s/compute.max 50000 100000"];
        let all = |parts: &[&[&str]]| parts.concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(writes(&memory, false, false, None), all(&[&times, &step, &rest]));
        let job = ["j/memory.limit 6000", "j/1/memory.limit 1K"];
        assert_eq!(
            writes(&memory, true, false, None),
            all(&[&times, &step, &job, &rest])
        );
        let bound = writes(&memory, true, true, None);
        assert!(bound.contains(&"j/memory.limit? 4000".to_owned()), "{bound:?}");
        assert!(!bound.contains(&job[0].to_owned()), "{bound:?}");
    }

    #[test]
    fn unknown_gpu_is_an_error() {
        let given = Given {
            options: &options(&[("gpu-max", "50%:2")]),
            allocation: Allocation::default(),
            step_shards: None,
            is_batch: false,
            is_bound: false,
            is_unknown: false,
            is_denied: false,
            swap_max: "max",
        };
        let error = given.writes("j", "j/s", &devices(DEVICES, "")).unwrap_err();
        assert!(error.to_string().contains("no GPU 2"), "{error}");
        assert!(given.needs_group());
    }

    #[test]
    fn step_of_unknown_resources_has_no_gpu_memory() {
        let given = Given {
            options: &Options::default(),
            allocation: Allocation::default(),
            step_shards: None,
            is_batch: false,
            is_bound: false,
            is_unknown: true,
            is_denied: false,
            swap_max: "max",
        };
        let writes = given.writes("j", "j/s", &devices(DEVICES, "")).unwrap();
        let wanted = Write {
            file: "j/s/memory.limit".to_owned(),
            value: "0".to_owned(),
            is_default: false,
        };
        assert_eq!(writes, [wanted]);
        assert!(given.needs_group());
    }

    #[test]
    fn job_without_gpus_that_is_denied_has_no_memory_whatever_its_options() {
        let given = Given {
            options: &options(&[("gpu-memory", "6000"), ("gpu-max", "50%")]),
            allocation: Allocation::default(),
            step_shards: None,
            is_batch: true,
            is_bound: false,
            is_unknown: false,
            is_denied: true,
            swap_max: "max",
        };
        let writes = given.writes("j", "j/s", &devices(DEVICES, "")).unwrap();
        let files: Vec<_> = writes
            .iter()
            .map(|write| (write.file.as_str(), write.value.as_str()))
            .collect();
        assert_eq!(files, [("j/s/memory.limit", "0")]);
        assert!(given.needs_group());
    }

    #[test]
    fn swap_of_a_job_is_bounded_and_that_of_other_steps_is_off() {
        let writes = |settings: &[(&str, &str)]| {
            let given = Given {
                options: &options(settings),
                allocation: Allocation::default(),
                step_shards: None,
                is_batch: false,
                is_bound: false,
                is_unknown: false,
                is_denied: false,
                swap_max: "16G",
            };
            let writes = given.writes("j", "j/s", &devices(DEVICES, "")).unwrap();
            let texts = writes
                .into_iter()
                .map(|write| format!("{} {}", write.file, write.value));
            texts.collect::<Vec<_>>()
        };
        assert_eq!(
            writes(&[("gpu-swap", "")]),
            ["j/memory.swap.max 16G", "j/s/memory.swap.max 16G"]
        );
        assert_eq!(writes(&[]), ["j/s/memory.swap.max 0"]);
    }
}
