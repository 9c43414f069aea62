//! The group of a step: made for slurmstepd, with the limits of the job and of the step.

mod writes;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use gcgroup_abi::environment::{GCGROUP_GROUP, GCGROUP_JOB, GCGROUP_REQUIRED, GCGROUP_SOCKET};
use gcgroup_abi::preload_order;
use nix::sys::prctl;

use self::writes::Given;
use crate::arguments::Arguments;
use crate::controller;
use crate::daemon::{self, Client};
use crate::options::Options;
use crate::shares::Allocation;
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
}

impl Step {
    /// Returns whether it is the script of sbatch.
    pub(crate) fn is_batch(&self) -> bool {
        self.name == step_name(BATCH)
    }

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
        options.check_bounds(arguments)?;
        let job = spank
            .item(Item::JobId)
            .context("Slurm does not tell the job's number")?;
        let step = spank
            .item(Item::StepId)
            .context("Slurm does not tell the step's number")?;
        let node = env::var("SLURMD_NODENAME").context("SLURMD_NODENAME is not set")?;
        let mut is_unknown = false;
        let of_job = if arguments.shares || arguments.denies_without_gres {
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
        let mut allocation = Allocation::parse(&of_job, &of_node)?;
        let is_denied = arguments.denies_without_gres && !is_unknown && !allocation.is_any();
        if !arguments.shares {
            allocation.shards = None;
        }
        let given = Given {
            options,
            allocation,
            swap_max: &arguments.swap_max,
            is_denied,
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
            Ok(group) => {
                if is_required {
                    daemon::promise(&arguments.socket);
                }
                Ok(Some(Self {
                    job,
                    name,
                    node,
                    group,
                    is_required,
                }))
            }
            Err(error) if !given.needs_group() => {
                spank::log_verbose(&format!("the step, without a GPU, has no group: {error:#}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn make(arguments: &Arguments, given: &Given<'_>, job: u32, name: &str) -> anyhow::Result<String> {
        let of_job = format!("{}/job_{job}", arguments.group);
        // Without this, a process whose parents have ended would have no ancestor in the step.
        prctl::set_child_subreaper(true).map_err(|errno| anyhow!("PR_SET_CHILD_SUBREAPER: {errno}"))?;
        let begun = daemon::begin_patiently(&arguments.socket, &of_job, &format!("step_{name}"))?;
        let mut client = Client::connect_patiently(&arguments.socket)?;
        let devices = client.devices()?;
        for write in given.writes(&of_job, &begun, &devices)? {
            // What an administrator has changed since the job's first step stays.
            if !write.is_default || client.get(&write.file)?.starts_with("max") {
                client.set(&write.file, &write.value)?;
            }
        }
        Ok(begun)
    }

    /// Sets the variables of a task: the library that governs it, also where the step has no group, and the
    /// group.
    ///
    /// # Errors
    /// There is no library.
    pub(crate) fn set_variables(
        step: Option<&Self>,
        spank: &Spank,
        arguments: &Arguments,
    ) -> anyhow::Result<()> {
        let library = match &arguments.library {
            Some(library) => library.clone(),
            None => beside_plugin()?,
        };
        if library.exists() {
            let before = spank.variable("LD_PRELOAD").unwrap_or_default();
            let library = library.to_string_lossy();
            let order: Vec<_> = preload_order(before.as_bytes(), library.as_bytes()).collect();
            spank.set_variable("LD_PRELOAD", &String::from_utf8_lossy(&order.join(&b':')))?;
        } else if step.is_some_and(|step| step.is_required) {
            return Err(anyhow!("no preload library at {}", library.display()));
        }
        spank.set_variable(GCGROUP_SOCKET.name, &arguments.socket.to_string_lossy())?;
        let Some(step) = step else { return Ok(()) };
        spank.set_variable(GCGROUP_GROUP.name, &step.group)?;
        spank.set_variable(GCGROUP_JOB.name, &step.group)?;
        let word = if step.is_required { "1" } else { "0" };
        spank.set_variable(GCGROUP_REQUIRED.name, word)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_the_names_of_their_cgroups() {
        assert_eq!(step_name(3), "3");
        assert_eq!(step_name(BATCH), "batch");
    }
}
