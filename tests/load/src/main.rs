//! gcgroup-load: a workload on the driver API, the same on simulated and real GPUs.
//!
//! It says what it does on stdout, a line at a time: `pid`, how long the
//! driver took to start, the device, `ready`, then what the command prints,
//! and last one line of JSON. It knows nothing of gcgroupfs.

mod bandwidth;
mod block;
mod churn;
mod clock;
mod content;
mod cpu;
mod driver;
mod gpu;
mod graph;
mod kernels;
mod latency;
mod memory;
mod obey;
mod order;
mod overhead;
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
    /// The driver's library: a soname or a path
    #[arg(long, global = true, default_value = "libcuda.so.1")]
    library: String,
    /// The device, as the driver counts
    #[arg(long, global = true, default_value_t = 0)]
    device: i32,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bursts of kernels at times set beforehand; how long after its time each is done
    Latency(latency::Latency),
    /// Kernels back to back; how many a second
    Throughput(throughput::Throughput),
    /// Allocates up to a size or until refused, writes and verifies it, and holds it
    Memory(memory::Memory),
    /// Nanoseconds of a launch, of an allocation and its free, of a look at the memory
    Overhead(overhead::Overhead),
    /// Work whose result tells whether it was done in order, submitted in one of many ways
    Order(order::Order),
    /// Threads that allocate and free by every API at once, and what they hold at the end
    Churn(churn::Churn),
    /// Uses the device in every way by turns, for a while or until told to hold still
    Roam(roam::Roam),
    /// Memory of all sizes in use, every word of it known and verified
    Swap(swap::Swap),
    /// Launches so many kernels and waits for them
    Launches(obey::Launches),
    /// Does what it reads from stdin
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
