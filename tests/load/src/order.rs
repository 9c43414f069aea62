//! `order`: submits work in one of many ways; its result shows whether all of it ran, and in order.
//!
//! A chain of steps on one block of memory: fill it with numbers, run for some time, add its checksum to a
//! sum. A step that is omitted, repeated, or run before its predecessor gives a different sum.

use std::io::{Read as _, stdin};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::driver::{self, CUdeviceptr, CUstream};
use crate::gpu::{Gpu, Stream};
use crate::graph::Graph;
use crate::say;

/// Ways to submit the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// Chains on separate streams, in turn
    Streams,
    /// One thread for each chain, on its default stream (`CU_STREAM_PER_THREAD`)
    PerThread,
    /// One chain over blocking streams and the legacy default stream, which alone keep it in order
    Legacy,
    /// One thread and one context for each chain
    Contexts,
    /// Each step is captured from a stream, and launched once
    Capture,
    /// One graph of several steps, launched repeatedly
    Graphs,
}

#[derive(Debug, Args)]
pub(crate) struct Order {
    #[arg(value_enum)]
    way: Way,
    /// Steps of each chain
    #[arg(long, default_value_t = 20)]
    steps: u32,
    /// Number of chains, where there are several
    #[arg(long, default_value_t = 4)]
    chains: u32,
    /// Microseconds that a step runs, in addition to the fill and the checksum
    #[arg(long, default_value_t = 100)]
    kernel_usec: u64,
    /// Wait for the end of stdin before exiting
    #[arg(long)]
    hold: bool,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    way: Way,
    /// Number of launched kernels, including those in graphs.
    kernels: u64,
    /// Number of captured kernels; capturing runs none of them.
    captured: u64,
    seconds: f64,
}

const CU_STREAM_LEGACY: CUstream = 0;
const CU_STREAM_PER_THREAD: CUstream = 2;
/// Number of kernels in a step.
const KERNELS: u64 = 3;
const WORDS: u64 = 1024;
/// Number of steps in a graph that is launched repeatedly.
const GRAPH_STEPS: u32 = 2;

pub(crate) fn run(args: &Order, gpu: &Gpu) -> Result<()> {
    say::line("ready")?;
    let start = Instant::now();
    let steps = match args.way {
        Way::Streams => streams(args, gpu)?,
        Way::PerThread => threads(args, |number| {
            gpu.attach()?;
            chain_on(args, gpu, CU_STREAM_PER_THREAD, number)
        })?,
        Way::Contexts => threads(args, |number| {
            let gpu = gpu.another()?;
            let stream = Stream::new(&gpu)?;
            chain_on(args, &gpu, stream.raw, number)
        })?,
        Way::Legacy => legacy(args, gpu)?,
        Way::Capture => capture(args, gpu)?,
        Way::Graphs => graphs(args, gpu)?,
    };
    let captured = match args.way {
        Way::Capture => args.steps,
        Way::Graphs => GRAPH_STEPS,
        _ => 0,
    };
    say::line("in order")?;
    if args.hold {
        stdin().read_to_end(&mut Vec::new())?;
    }
    say::result(&Report {
        command: "order",
        way: args.way,
        kernels: u64::from(steps) * KERNELS,
        captured: u64::from(captured) * KERNELS,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// A block of memory and its expected sum.
struct Chain<'g> {
    gpu: &'g Gpu,
    memory: CUdeviceptr,
    expected: u64,
    value: u32,
}

impl<'g> Chain<'g> {
    fn new(gpu: &'g Gpu, number: u32) -> driver::Result<Self> {
        let mut memory = 0;
        // SAFETY: the out-pointer outlives the call.
        unsafe { gpu.driver.cuMemAlloc_v2(&mut memory, bytes(WORDS + 2)) }?;
        let chain = Self {
            gpu,
            memory,
            expected: 0,
            value: number,
        };
        gpu.set(chain.sum(), 0, 8)?;
        gpu.synchronize()?;
        Ok(chain)
    }

    fn sum(&self) -> CUdeviceptr {
        self.memory + WORDS * 4
    }

    /// Submits the next step: its fill to stream `first`, the rest to stream `then`.
    fn submit(&mut self, first: CUstream, then: CUstream, usec: u64) -> driver::Result<()> {
        self.value = self.value.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
        self.expected = self.expected.wrapping_add(checksum(self.value));
        self.gpu.fill(first, self.memory, WORDS, self.value)?;
        self.gpu.spin(then, usec)?;
        self.gpu.checksum(then, self.memory, WORDS, self.sum())
    }

    /// Checks the sum after all submissions have ended, and frees the block.
    fn end(self) -> Result<()> {
        let mut sum = [0; 8];
        self.gpu.read(self.sum(), &mut sum)?;
        let found = u64::from_le_bytes(sum);
        ensure!(
            found == self.expected,
            "out of order: the sum is {found:#x}, not {:#x}",
            self.expected
        );
        // SAFETY: allocated in `new`, and not used after this.
        Ok(unsafe { self.gpu.driver.cuMemFree_v2(self.memory) }?)
    }
}

fn bytes(words: u64) -> usize {
    usize::try_from(words * 4).unwrap_or(usize::MAX)
}

/// Returns the result of the checksum kernel for the pattern of the fill kernel.
fn checksum(value: u32) -> u64 {
    (0..WORDS).zip(0_u32..).fold(0, |sum, (index, word)| {
        u64::from(value.wrapping_add(word))
            .wrapping_mul(index + 1)
            .wrapping_add(sum)
    })
}

fn chain_on(args: &Order, gpu: &Gpu, stream: CUstream, number: u32) -> Result<u32> {
    let mut chain = Chain::new(gpu, number)?;
    for _ in 0..args.steps {
        chain.submit(stream, stream, args.kernel_usec)?;
    }
    gpu.synchronize()?;
    chain.end()?;
    Ok(args.steps)
}

fn streams(args: &Order, gpu: &Gpu) -> Result<u32> {
    let mut chains = (0..args.chains)
        .map(|number| Ok((Stream::new(gpu)?, Chain::new(gpu, number)?)))
        .collect::<driver::Result<Vec<_>>>()?;
    for _ in 0..args.steps {
        for (stream, chain) in &mut chains {
            chain.submit(stream.raw, stream.raw, args.kernel_usec)?;
        }
    }
    gpu.synchronize()?;
    chains.into_iter().try_for_each(|(_, chain)| chain.end())?;
    Ok(args.chains * args.steps)
}

/// Runs `chain` in one thread for each chain; returns the number of all steps.
fn threads(args: &Order, chain: impl Fn(u32) -> Result<u32> + Sync) -> Result<u32> {
    thread::scope(|scope| {
        let chain = &chain;
        let all: Vec<_> = (0..args.chains)
            .map(|number| scope.spawn(move || chain(number)))
            .collect();
        all.into_iter().try_fold(0, |steps, thread| {
            let done = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            Ok(steps + done)
        })
    })
}

fn legacy(args: &Order, gpu: &Gpu) -> Result<u32> {
    let streams = (0..args.chains.max(1))
        .map(|_| Stream::blocking(gpu))
        .collect::<driver::Result<Vec<_>>>()?;
    let mut chain = Chain::new(gpu, 1)?;
    for (_, stream) in (0..args.steps).zip(streams.iter().cycle()) {
        chain.submit(stream.raw, CU_STREAM_LEGACY, args.kernel_usec)?;
    }
    gpu.synchronize()?;
    chain.end()?;
    Ok(args.steps)
}

fn capture(args: &Order, gpu: &Gpu) -> Result<u32> {
    let (stream, mut chain) = (Stream::new(gpu)?, Chain::new(gpu, 1)?);
    let mut kept = Vec::new();
    for _ in 0..args.steps {
        let graph = Graph::capture(gpu, &stream, || {
            chain.submit(stream.raw, stream.raw, args.kernel_usec)
        })?;
        graph.launch(&stream)?;
        kept.push(graph);
    }
    gpu.synchronize()?;
    chain.end()?;
    Ok(args.steps)
}

fn graphs(args: &Order, gpu: &Gpu) -> Result<u32> {
    let (stream, mut chain) = (Stream::new(gpu)?, Chain::new(gpu, 1)?);
    let graph = Graph::capture(gpu, &stream, || {
        (0..GRAPH_STEPS).try_for_each(|_| chain.submit(stream.raw, stream.raw, args.kernel_usec))
    })?;
    let once = chain.expected;
    chain.expected = once.wrapping_mul(args.steps.into());
    for _ in 0..args.steps {
        graph.launch(&stream)?;
    }
    gpu.synchronize()?;
    chain.end()?;
    Ok(GRAPH_STEPS * args.steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_depends_on_positions_of_words() {
        let sum = (0..WORDS).map(|index| (7 + index) * (index + 1)).sum::<u64>();
        assert_eq!(checksum(7), sum);
        assert_ne!(checksum(7), checksum(8));
        assert!(checksum(u32::MAX) > u64::from(u32::MAX), "words wrap");
    }
}
