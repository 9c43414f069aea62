//! `gcgroupfs check-config`: says whether a configuration can be read, before a daemon is told to.

use std::path::PathBuf;

use clap::Args;

use crate::config;

#[derive(Debug, Args)]
pub struct Arguments {
    /// The configuration
    #[arg(default_value = config::DEFAULT_PATH)]
    file: PathBuf,
}

/// # Errors
/// The file cannot be read, or is wrong: then PATH:LINE:COLUMN and what is wrong there.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    config::read(&arguments.file).map(drop)
}
