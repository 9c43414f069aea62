//! `overhead`: what a call costs. Many rounds of many calls; the median and the least of the rounds.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::block::{Allocator, Api, Block};
use crate::gpu::{Gpu, Stream};
use crate::say;
use crate::size::Size;
use crate::stats::{quantile, sorted};

/// A call that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// `cuLaunchKernel` of a kernel that does nothing
    Launch,
    /// `cuMemAlloc` and `cuMemFree`
    AllocFree,
    /// `cuMemGetInfo`
    Meminfo,
}

#[derive(Debug, Args)]
pub struct Overhead {
    /// What to measure; everything without it
    #[arg(long, value_enum)]
    call: Vec<Call>,
    /// Rounds of each
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Calls of a round. Launches beyond what the driver queues (about 1000) measure the kernel instead
    #[arg(long, default_value_t = 500)]
    calls: u32,
    /// Blocks that live meanwhile
    #[arg(long, default_value_t = 10)]
    live: u32,
    /// Bytes of a block
    #[arg(long, default_value = "512")]
    size: Size,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    live: u32,
    rounds: u32,
    calls: u32,
    ns: Vec<Cost>,
}

#[derive(Serialize)]
struct Cost {
    call: Call,
    median: f64,
    min: f64,
}

pub fn run(args: &Overhead, gpu: &Gpu) -> Result<()> {
    let allocator = Allocator::new(gpu, Api::Linear)?;
    let live: Vec<Block> = (0..args.live)
        .map(|_| allocator.allocate(args.size.0))
        .collect::<Result<_, _>>()?;
    say::line("ready")?;
    let all = [Call::Launch, Call::AllocFree, Call::Meminfo];
    let mut ns = Vec::new();
    for call in if args.call.is_empty() {
        &all
    } else {
        args.call.as_slice()
    } {
        round(*call, args.calls.min(100), args, gpu, &allocator)?;
        let rounds: Result<Vec<f64>> = (0..args.rounds)
            .map(|_| round(*call, args.calls, args, gpu, &allocator))
            .collect();
        let rounds = sorted(rounds?);
        let cost = Cost {
            call: *call,
            median: quantile(&rounds, 0.5),
            min: quantile(&rounds, 0.0),
        };
        say::line(format_args!(
            "{call:?} median {:.1} ns, least {:.1} ns",
            cost.median, cost.min
        ))?;
        ns.push(cost);
    }
    for block in live {
        allocator.free(block)?;
    }
    let Overhead {
        live, rounds, calls, ..
    } = *args;
    say::result(&Report {
        command: "overhead",
        live,
        rounds,
        calls,
        ns,
    })
}

/// Nanoseconds a call.
fn round(call: Call, calls: u32, args: &Overhead, gpu: &Gpu, allocator: &Allocator<'_>) -> Result<f64> {
    let stream: &Stream<'_> = &allocator.stream;
    let start = Instant::now();
    for _ in 0..calls {
        match call {
            Call::Launch => gpu.spin(stream.raw, black_box(0))?,
            Call::AllocFree => allocator.free(allocator.allocate(black_box(args.size.0))?)?,
            Call::Meminfo => drop(black_box(gpu.memory_info()?)),
        }
    }
    let took = start.elapsed();
    // Outside the measured time, so that the next round finds an empty queue.
    stream.synchronize()?;
    Ok(took.as_secs_f64() * 1e9 / f64::from(calls.max(1)))
}
