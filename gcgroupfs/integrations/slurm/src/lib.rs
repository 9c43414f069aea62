//! SPANK plugin of Slurm: each step of a job runs in a group of gcgroupfs, `slurm/job_ID/step_ID`, with its
//! limits, which hold before the first task starts. README.md describes its use and design.
//!
//! slurmstepd, the parent of all tasks of a step on a node, loads the plugin as root. It asks the daemon for
//! the group itself, so that the group holds slurmstepd and its descendants by what the kernel says, and ends
//! with them. Only `callbacks` and `spank` have `unsafe` code.

mod arguments;
mod callbacks;
mod controller;
mod daemon;
mod options;
mod plugin;
mod release;
mod shares;
mod spank;
mod step;
mod suspend;
mod usage;
