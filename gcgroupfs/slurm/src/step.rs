//! The group of a step: made for slurmstepd, with the limits of the job and of the step.

use std::env;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use gcgroup_abi::environment::{GCGROUP_GROUP, GCGROUP_REQUIRED, GCGROUP_SOCKET};
use nix::sys::prctl;

use crate::arguments::Arguments;
use crate::controller;
use crate::daemon::{self, Client};
use crate::options::{Options, Value};
use crate::shares::{Allocation, Device, Limits, Shards, parse_devices};
use crate::spank::{self, Item, Spank};

/// Steps that are no numbers, as in `slurm.h`, with the names that Slurm gives their cgroups.
const NAMED_STEPS: &[(u32, &str)] = &[
    (BATCH, "batch"),
    (0xffff_fffc, "extern"),
    (0xffff_fffa, "interactive"),
];

/// The script of sbatch.
const BATCH: u32 = 0xffff_fffb;

/// The preload library beside the plugin.
const LIBRARY: &str = "libgcgroup.so";

/// Variables of a step with GPUs or shards, by Slurm. Users can change them: nothing is granted by them.
const GPU_VARIABLES: &[&str] = &["SLURM_GPUS_ON_NODE", "SLURM_SHARDS_ON_NODE"];

/// A step that runs in a group.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) job: u32,
    /// As in `batch` or `0`.
    pub(crate) name: String,
    /// Name of the node.
    pub(crate) node: String,
    /// Path of its group.
    pub(crate) group: String,
    /// Whether its processes may use a GPU only in the group.
    is_required: bool,
    /// Holds the group, beside this process.
    _connection: OwnedFd,
}

/// Options and resources of a step, from Slurm.
#[derive(Debug)]
struct Given<'a> {
    options: &'a Options,
    allocation: Allocation,
    /// Shards of the step itself, which may be fewer than the job's.
    step_shards: Option<u64>,
    is_batch: bool,
    is_bound: bool,
    /// Whether the controller has not said what the job was given.
    is_unknown: bool,
}

impl Step {
    /// Makes the group and sets its limits. `None`: the step has no GPU and no options, and its group could
    /// not be made.
    ///
    /// # Errors
    /// The daemon or the controller does not answer; a limit is refused.
    pub(crate) fn begin(
        spank: &Spank,
        arguments: &Arguments,
        options: &Options,
    ) -> anyhow::Result<Option<Self>> {
        let checked = options.check_priority(arguments.highest_priority);
        checked.context("--gpu-priority")?;
        let job = spank
            .item(Item::JobId)
            .context("Slurm does not tell the job's number")?;
        let step = spank
            .item(Item::StepId)
            .context("Slurm does not tell the step's number")?;
        let node = env::var("SLURMD_NODENAME").context("SLURMD_NODENAME is not set")?;
        let mut is_unknown = false;
        let of_job = if arguments.shares {
            match controller::resources_of_job(&arguments.scontrol, job, &node) {
                Ok(of_job) => of_job,
                Err(error)
                    if options.is_any()
                        || GPU_VARIABLES.iter().any(|name| spank.variable(name).is_some()) =>
                {
                    return Err(error);
                }
                Err(error) => {
                    spank::log_error(&format!("the step may use no GPU memory: {error:#}"));
                    is_unknown = true;
                    String::new()
                }
            }
        } else {
            String::new()
        };
        let of_node = if of_job.contains("shard") {
            controller::resources_of_node(&arguments.scontrol, &node)?
        } else {
            String::new()
        };
        let given = Given {
            options,
            allocation: Allocation::parse(&of_job, &of_node)?,
            step_shards: spank
                .variable("SLURM_SHARDS_ON_NODE")
                .and_then(|count| count.parse().ok()),
            is_batch: step == BATCH,
            is_bound: arguments.bound,
            is_unknown,
        };
        let is_required = given.needs_group() && !arguments.best_effort;
        let name = step_name(step);
        match Self::make(arguments, &given, job, &name) {
            Ok((group, connection)) => Ok(Some(Self {
                job,
                name,
                node,
                group,
                is_required,
                _connection: connection,
            })),
            Err(error) if !given.needs_group() => {
                spank::log_verbose(&format!("the step, without a GPU, has no group: {error:#}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn make(
        arguments: &Arguments,
        given: &Given<'_>,
        job: u32,
        name: &str,
    ) -> anyhow::Result<(String, OwnedFd)> {
        let of_job = format!("{}/job_{job}", arguments.group);
        // Without this, a process whose parents have ended would have no ancestor in the step.
        prctl::set_child_subreaper(true).map_err(|errno| anyhow!("PR_SET_CHILD_SUBREAPER: {errno}"))?;
        let begun = daemon::begin_patiently(&arguments.socket, &of_job, &format!("step_{name}"))?;
        let mut client = Client::connect_patiently(&arguments.socket)?;
        let devices = parse_devices(&client.get("devices")?);
        for write in given.writes(&of_job, &begun.0, &devices)? {
            // What an administrator has changed since the job's first step stays.
            if !write.is_default || client.get(&write.file)?.starts_with("max") {
                client.set(&write.file, &write.value)?;
            }
        }
        Ok(begun)
    }

    /// Sets the variables of a task: the library that governs it, and its group.
    ///
    /// # Errors
    /// There is no library.
    pub(crate) fn set_variables(&self, spank: &Spank, arguments: &Arguments) -> anyhow::Result<()> {
        let library = match &arguments.library {
            Some(library) => library.clone(),
            None => beside_plugin()?,
        };
        if library.exists() {
            let before = spank.variable("LD_PRELOAD").unwrap_or_default();
            spank.set_variable("LD_PRELOAD", &preload(&before, &library.to_string_lossy()))?;
        } else if self.is_required {
            return Err(anyhow!("no preload library at {}", library.display()));
        }
        spank.set_variable(GCGROUP_GROUP.name, &self.group)?;
        spank.set_variable(GCGROUP_SOCKET.name, &arguments.socket.to_string_lossy())?;
        let word = if self.is_required { "1" } else { "0" };
        spank.set_variable(GCGROUP_REQUIRED.name, word)
    }
}

/// A value for a control file.
#[derive(Debug, PartialEq, Eq)]
struct Write {
    file: String,
    value: String,
    /// Only where the file has no value.
    is_default: bool,
}

impl Given<'_> {
    /// Returns whether the step must not start without its group.
    fn needs_group(&self) -> bool {
        self.is_unknown
            || self.options.is_any()
            || self.allocation.has_gpus
            || self.allocation.shards.is_some()
    }

    /// Returns what is to be written, for the groups of the job and of the step.
    ///
    /// Shards bound the job, so that all its steps together stay within them, and each step. Options take the
    /// place of shards for the memory or the time that they are given for, unless they are bound by shards.
    /// Options of sbatch hold for the whole job.
    fn writes(&self, job: &str, step: &str, devices: &[Device]) -> anyhow::Result<Vec<Write>> {
        let mut writes = Vec::new();
        let mut write = |file: String, value: &str, is_default: bool| {
            writes.push(Write {
                file,
                value: value.to_owned(),
                is_default,
            });
        };
        if self.is_unknown {
            write(format!("{step}/memory.limit"), "0", false);
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
        if self.options.swap {
            write(format!("{step}/memory.swap.max"), "max", false);
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

fn step_name(step: u32) -> String {
    let named = NAMED_STEPS.iter().find(|(number, _)| *number == step);
    named.map_or_else(|| step.to_string(), |(_, name)| (*name).to_owned())
}

/// Returns the path of the preload library in the directory of the plugin.
fn beside_plugin() -> anyhow::Result<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").context("/proc/self/maps cannot be read")?;
    let own = maps.lines().find_map(|line| {
        let path = line.get(line.find('/')?..)?;
        path.ends_with("/libgcgroup_slurm.so").then_some(path)
    });
    let directory = own.and_then(|path| Path::new(path).parent());
    let library = directory.map(|directory| directory.join(LIBRARY));
    library.context("the plugin's directory is unknown: give the argument library=")
}

/// Returns the value of `LD_PRELOAD` with the library appended.
fn preload(before: &str, library: &str) -> String {
    let entries: Vec<&str> = before
        .split([':', ' '])
        .filter(|entry| !entry.is_empty())
        .collect();
    match (entries.is_empty(), entries.contains(&library)) {
        (true, _) => library.to_owned(),
        (false, true) => before.to_owned(),
        (false, false) => format!("{before}:{library}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        let writes = given.writes("j", "j/s", &parse_devices(DEVICES)).unwrap();
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
        };
        let error = given.writes("j", "j/s", &parse_devices(DEVICES)).unwrap_err();
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
        };
        let writes = given.writes("j", "j/s", &parse_devices(DEVICES)).unwrap();
        let wanted = Write {
            file: "j/s/memory.limit".to_owned(),
            value: "0".to_owned(),
            is_default: false,
        };
        assert_eq!(writes, [wanted]);
        assert!(given.needs_group());
    }

    #[test]
    fn steps_have_the_names_of_their_cgroups() {
        assert_eq!(step_name(3), "3");
        assert_eq!(step_name(BATCH), "batch");
        assert_eq!(preload("", "/l.so"), "/l.so");
        assert_eq!(preload("/a.so", "/l.so"), "/a.so:/l.so");
        assert_eq!(preload("/a.so /l.so", "/l.so"), "/a.so /l.so");
    }
}
