//! gcgroup-load: a workload on the CUDA driver API, the same on simulated and real GPUs.
//!
//! Prints lines on stdout: `pid`, the driver's start-up time, the device, `ready`, the output of the command,
//! and last one line of JSON. It does not know gcgroupfs.

mod bandwidth;
mod block;
mod churn;
mod clock;
mod content;
mod cpu;
mod driver;
mod gpu;
mod graph;
mod input;
mod kernels;
mod latency;
mod memory;
mod obey;
mod order;
mod overhead;
mod paced;
mod physical;
mod range;
mod roam;
mod say;
mod size;
mod stats;
mod swap;
mod throughput;
mod touch;

use std::ffi::CString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// A workload on the CUDA driver API, the same on simulated and real GPUs.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The driver's library: soname or path
    #[arg(long, global = true, default_value = "libcuda.so.1")]
    library: String,
    /// Ordinal of the device in the driver
    #[arg(long, global = true, default_value_t = 0)]
    device: i32,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Submits bursts of kernels at fixed times and measures their latency
    Latency(latency::Latency),
    /// Submits kernels back to back and measures the rate
    Throughput(throughput::Throughput),
    /// Launches kernels, waits for them and pauses, again and again
    Paced(paced::Paced),
    /// Allocates up to a size or until refused, writes and verifies the memory, and holds it
    Memory(memory::Memory),
    /// Measures nanoseconds of a launch, of an allocation and its free, of a memory query
    Overhead(overhead::Overhead),
    /// Submits work in one of many ways; its result shows whether it ran in order
    Order(order::Order),
    /// Threads allocate and free by every API concurrently, then report what they hold
    Churn(churn::Churn),
    /// Uses the device in all ways in turn, for a time or until told to stop
    Roam(roam::Roam),
    /// Uses blocks of all sizes, and verifies every word of them
    Swap(swap::Swap),
    /// Launches kernels and waits for them
    Launches(obey::Launches),
    /// Executes commands from stdin
    #[command(after_help = obey::COMMANDS)]
    Obey,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gcgroup-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    say::line(format_args!("pid {}", std::process::id()))?;
    let begin = Instant::now();
    let driver = Arc::new(driver::Driver::open(&CString::new(arguments.library)?)?);
    let opened = begin.elapsed();
    driver.initialise()?;
    let initialised = begin.elapsed() - opened;
    let usec = |took: Duration| took.as_nanos() as f64 / 1e3;
    say::line(format_args!(
        "opened in {:.1} usec, initialised in {:.1} usec",
        usec(opened),
        usec(initialised)
    ))?;
    let gpu = gpu::Gpu::open(driver, arguments.device)?;
    say::line(gpu.describe())?;
    match &arguments.command {
        Command::Latency(args) => latency::run(args, &gpu),
        Command::Throughput(args) => throughput::run(args, &gpu),
        Command::Paced(args) => paced::run(args, &gpu),
        Command::Memory(args) => memory::run(args, &gpu),
        Command::Overhead(args) => overhead::run(args, &gpu),
        Command::Order(args) => order::run(args, &gpu),
        Command::Churn(args) => churn::run(args, &gpu),
        Command::Roam(args) => roam::run(args, &gpu),
        Command::Swap(args) => swap::run(args, &gpu),
        Command::Launches(args) => obey::launches(args, &gpu),
        Command::Obey => obey::obey(&gpu),
    }
}
