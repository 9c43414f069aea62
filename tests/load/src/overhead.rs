//! `overhead`: measures the cost of a call. Many rounds of many calls; reports median and minimum of the
//! rounds.
//!
//! Two values: elapsed time, and CPU time of the calling threads, which excludes preemption and sleep.

use std::hint::black_box;
use std::io::stdin;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::block::{Allocator, Api, Block};
use crate::clock;
use crate::cpu;
use crate::driver::CudaError;
use crate::gpu::Gpu;
use crate::physical::{Physical, Range};
use crate::say;
use crate::size::Size;
use crate::stats::{quantile, sorted};

/// A call to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    /// `cuLaunchKernel` of an empty kernel
    Launch,
    /// `cuMemAlloc` and `cuMemFree`
    AllocFree,
    /// `cuMemGetInfo`
    Meminfo,
    /// `cuMemCreate` and `cuMemRelease`; measured only if named, as are those below
    Create,
    /// `cuMemMap` and `cuMemUnmap` of existing memory
    Map,
    /// `cuMemAlloc` of blocks that are kept until the end
    Grow,
}

#[derive(Debug, Args)]
pub(crate) struct Overhead {
    /// Calls to measure; default: launch, alloc-free and meminfo
    #[arg(long, value_enum)]
    call: Vec<Call>,
    /// Number of rounds for each call
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Calls per round. Beyond the driver's queue (about 1000), launches measure the kernel instead
    #[arg(long, default_value_t = 500)]
    calls: u32,
    /// Number of live blocks
    #[arg(long, default_value_t = 10)]
    live: u32,
    /// Bytes of a block
    #[arg(long, default_value = "512")]
    size: Size,
    /// API to allocate with
    #[arg(long, value_enum, default_value_t = Api::Linear)]
    api: Api,
    /// Number of threads that call concurrently, each with its part of the live blocks. Reported per call:
    /// the time until all threads have finished a round, divided by all calls
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Spread the threads over the CPUs and pin them. Otherwise such short runs are often on one CPU
    #[arg(long)]
    pinned: bool,
    /// Wait for a line from stdin before measuring, with the live blocks allocated
    #[arg(long)]
    hold: bool,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    live: u32,
    threads: u32,
    rounds: u32,
    calls: u32,
    ns: Vec<Cost>,
}

#[derive(Serialize)]
struct Cost {
    call: Call,
    median: f64,
    min: f64,
    /// CPU time of the threads, median and minimum.
    cpu_median: f64,
    cpu_min: f64,
}

/// Duration of a round, nanoseconds.
#[derive(Clone, Copy)]
struct Took {
    cpu: f64,
    elapsed: f64,
}

pub(crate) fn run(args: &Overhead, gpu: &Gpu) -> Result<()> {
    let crowd = Crowd::new(args, gpu)?;
    say::line("ready")?;
    if args.hold {
        stdin().read_line(&mut String::new())?;
    }
    let all = [Call::Launch, Call::AllocFree, Call::Meminfo];
    let mut ns = Vec::new();
    for call in if args.call.is_empty() {
        &all
    } else {
        args.call.as_slice()
    } {
        let took = crowd.rounds(*call, args)?;
        let rounds = sorted(took.iter().map(|took| took.elapsed).collect());
        let cpu = sorted(took.iter().map(|took| took.cpu).collect());
        let cost = Cost {
            call: *call,
            median: quantile(&rounds, 0.5),
            min: quantile(&rounds, 0.0),
            cpu_median: quantile(&cpu, 0.5),
            cpu_min: quantile(&cpu, 0.0),
        };
        say::line(format_args!(
            "{call:?} median {:.1} ns, least {:.1} ns",
            cost.median, cost.min
        ))?;
        ns.push(cost);
    }
    crowd.free()?;
    let Overhead {
        live,
        threads,
        rounds,
        calls,
        ..
    } = *args;
    say::result(&Report {
        command: "overhead",
        live,
        threads,
        rounds,
        calls,
        ns,
    })
}

/// Allocator and live blocks of each thread.
struct Crowd<'g> {
    members: Vec<(Allocator<'g>, Vec<Block>)>,
}

impl<'g> Crowd<'g> {
    fn new(args: &Overhead, gpu: &'g Gpu) -> Result<Self> {
        let threads = args.threads.max(1);
        let member = |number| -> Result<_> {
            let allocator = Allocator::new(gpu, args.api)?;
            let part = args.live / threads + u32::from(number < args.live % threads);
            let live: Result<_, _> = (0..part).map(|_| allocator.allocate(args.size.0)).collect();
            Ok((allocator, live?))
        };
        let members: Result<_> = (0..threads).map(member).collect();
        Ok(Self { members: members? })
    }

    fn free(self) -> Result<()> {
        for (allocator, live) in self.members {
            for block in live {
                allocator.free(block)?;
            }
        }
        Ok(())
    }

    /// Measures `call`; returns nanoseconds per call, for each round.
    fn rounds(&self, call: Call, args: &Overhead) -> Result<Vec<Took>> {
        let barrier = Barrier::new(self.members.len());
        let all = self.members.len() as f64 * f64::from(args.calls.max(1));
        let run = |number, allocator| rounds_of_one(call, args, number, allocator, &barrier);
        let (first, others) = self.members.split_first().context("no thread")?;
        let took = std::thread::scope(|scope| -> Result<_> {
            let others: Vec<_> = (1..)
                .zip(others)
                .map(|(number, (allocator, _))| scope.spawn(move || run(number, allocator)))
                .collect();
            let mut took = run(0, &first.0);
            for other in others {
                let others = other.join().map_err(|_| anyhow!("a thread panicked"))??;
                for (took, other) in took.iter_mut().flatten().zip(others) {
                    took.cpu += other.cpu;
                }
            }
            took
        })?;
        let each = |took: Took| Took {
            cpu: took.cpu / all,
            elapsed: took.elapsed / all,
        };
        Ok(took.into_iter().map(each).collect())
    }
}

/// Measures the rounds in one thread: its CPU time, and the time until all threads have finished. Discards a
/// first round.
fn rounds_of_one(
    call: Call,
    args: &Overhead,
    number: usize,
    allocator: &Allocator<'_>,
    barrier: &Barrier,
) -> Result<Vec<Took>> {
    let is_put = if args.pinned { cpu::pin(number) } else { Ok(()) };
    // A thread that fails continues to the barriers, so that the others do not wait for it.
    let mut outcome = allocator.gpu.attach();
    let mut took = Vec::new();
    for number in 0..=args.rounds {
        let calls = if number == 0 {
            args.calls.min(100)
        } else {
            args.calls
        };
        // Taken before the barrier: on one CPU, all other threads may run first.
        let start = Instant::now();
        barrier.wait();
        let began = clock::of_thread();
        if outcome.is_ok() {
            outcome = round(call, calls, args, allocator);
        }
        let cpu = (clock::of_thread() - began) as f64;
        barrier.wait();
        let elapsed = start.elapsed().as_secs_f64() * 1e9;
        took.push(Took { cpu, elapsed });
        // Not measured; the next round begins with an empty queue.
        if outcome.is_ok() {
            outcome = allocator.stream.synchronize();
        }
    }
    is_put.context("a thread cannot be pinned")?;
    outcome?;
    Ok(took.split_off(1))
}

fn round(call: Call, calls: u32, args: &Overhead, allocator: &Allocator<'_>) -> Result<(), CudaError> {
    let (gpu, size) = (allocator.gpu, || black_box(args.size.0));
    match call {
        Call::Launch => repeat(calls, || gpu.spin(allocator.stream.raw, black_box(0))),
        Call::AllocFree => repeat(calls, || allocator.free(allocator.allocate(size())?)),
        Call::Meminfo => repeat(calls, || black_box(gpu.memory_info()).map(|_| ())),
        Call::Create => repeat(calls, || Physical::create(gpu, size())?.release(gpu)),
        Call::Map => {
            let physical = Physical::create(gpu, size())?;
            let range = Range::reserve(gpu, physical.bytes)?;
            repeat(calls, || {
                black_box(range).map(gpu, physical)?;
                range.unmap(gpu)
            })?;
            range.free(gpu)?;
            physical.release(gpu)
        }
        // Not freed: the driver does that at exit.
        Call::Grow => repeat(calls, || allocator.allocate(size()).map(drop)),
    }
}

fn repeat(calls: u32, call: impl Fn() -> Result<(), CudaError>) -> Result<(), CudaError> {
    (0..calls).try_for_each(|_| call())
}
