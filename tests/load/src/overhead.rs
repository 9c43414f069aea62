//! `overhead`: what a call costs. Many rounds of many calls; the median and the least of the rounds.
//!
//! Told twice: what passed by the clock on the wall, and for how long the calling threads had a CPU, in which there are
//! neither others' turns nor sleep.

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
    /// `cuMemCreate` and `cuMemRelease`; only where it is asked for, as are those below
    Create,
    /// `cuMemMap` and `cuMemUnmap` of memory that is there
    Map,
    /// `cuMemAlloc` of blocks that stay until the end
    Grow,
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
    /// How to allocate
    #[arg(long, value_enum, default_value_t = Api::Linear)]
    api: Api,
    /// Threads that call at once, each with its part of the live blocks. What is told is the time that all of them took
    /// for a round, for each call of each
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Spread the threads over the CPUs and keep them there. What lasts for so short is else on one CPU as often as not
    #[arg(long)]
    pinned: bool,
    /// Begin only when a line is read, with the live blocks there
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
    /// The same of the threads' own time.
    cpu_median: f64,
    cpu_min: f64,
}

/// Nanoseconds of a round.
#[derive(Clone, Copy)]
struct Took {
    cpu: f64,
    elapsed: f64,
}

pub fn run(args: &Overhead, gpu: &Gpu) -> Result<()> {
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

/// What each thread calls with.
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

    /// Nanoseconds a call, by round.
    fn rounds(&self, call: Call, args: &Overhead) -> Result<Vec<Took>> {
        let barrier = Barrier::new(self.members.len());
        let all = self.members.len() as f64 * f64::from(args.calls.max(1));
        let run = |number, allocator| rounds_of_one(call, args, number, allocator, &barrier);
        let (first, others) = self.members.split_first().context("there is a thread")?;
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

/// What each round took the calling thread, and until all had done it; before them, one that does not count.
fn rounds_of_one(
    call: Call,
    args: &Overhead,
    number: usize,
    allocator: &Allocator<'_>,
    barrier: &Barrier,
) -> Result<Vec<Took>> {
    let is_put = if args.pinned { cpu::pin(number) } else { Ok(()) };
    // Who failed must not keep the others waiting.
    let mut outcome = allocator.gpu.attach();
    let mut took = Vec::new();
    for number in 0..=args.rounds {
        let calls = if number == 0 {
            args.calls.min(100)
        } else {
            args.calls
        };
        // Before the others are let go: on one CPU they may all have their turn first.
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
        // Outside the measured time, so that the next round finds an empty queue.
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
        // Not freed: the driver does that when the program ends.
        Call::Grow => repeat(calls, || allocator.allocate(size()).map(drop)),
    }
}

fn repeat(calls: u32, call: impl Fn() -> Result<(), CudaError>) -> Result<(), CudaError> {
    (0..calls).try_for_each(|_| call())
}
