//! `swap`: uses memory whose every word is known, so that a wrong one is found even if the memory is moved.
//!
//! Blocks of all sizes are allocated and freed on several streams, filled by kernels, copied to each other,
//! and verified by kernels and by copies. A graph that was captured at the start is launched repeatedly.

use std::io::{Read as _, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use serde::Serialize;

use crate::content::Content;
use crate::driver::CUdeviceptr;
use crate::gpu::{Event, Gpu, Stream};
use crate::graph::Graph;
use crate::say;
use crate::size::Size;
use crate::stats::Random;

#[derive(Debug, Args)]
pub(crate) struct Swap {
    /// Maximum number of blocks
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..))]
    blocks: u16,
    /// Maximum bytes of a block, at least 2M
    #[arg(long, default_value = "64M")]
    bytes: Size,
    /// Stop after this many steps; default: 1000 if no other option ends it
    #[arg(long)]
    rounds: Option<u64>,
    /// Stop after this many seconds
    #[arg(long)]
    duration: Option<f64>,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop at a byte or the end of stdin; then free everything and wait for the end of stdin
    #[arg(long)]
    hold: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    command: &'static str,
    rounds: u64,
    allocated: u64,
    refused: u64,
    copied: u64,
    /// Number of blocks of which every word was verified, by kernels or by copies.
    verified: u64,
    graphs: u64,
    seconds: f64,
}

/// Minimum size that is moved; see the CUDA Driver API on allocation granularity.
const LARGE: usize = 2 << 20;
const STREAMS: usize = 4;
/// Number of steps after which all streams are synchronised.
const QUEUED: u64 = 8;

struct Block<'s> {
    address: CUdeviceptr,
    words: u64,
    content: Content,
    /// Stream of all work on the block.
    stream: &'s Stream<'s>,
}

struct Work<'s> {
    gpu: &'s Gpu,
    streams: &'s [Stream<'s>],
    event: Event<'s>,
    random: Random,
    blocks: Vec<Block<'s>>,
    /// A 64-bit word for checksums.
    sum: CUdeviceptr,
    host: Vec<u8>,
    most: usize,
    report: Report,
}

pub(crate) fn run(args: &Swap, gpu: &Gpu) -> Result<()> {
    ensure!(args.bytes.0 >= LARGE, "--bytes must be at least 2M");
    let streams = (0..STREAMS)
        .map(|_| Stream::new(gpu))
        .collect::<Result<Vec<_>, _>>()?;
    let mut work = Work {
        gpu,
        streams: &streams,
        event: Event::new(gpu)?,
        random: Random::new(args.seed),
        blocks: Vec::new(),
        sum: allocate(gpu, 8)?,
        host: Vec::new(),
        most: args.bytes.0,
        report: Report {
            command: "swap",
            ..Report::default()
        },
    };
    let replay = Replay::new(gpu, &streams[0])?;
    say::line("ready")?;
    let input = args.hold.then(Input::listen);
    let start = Instant::now();
    let duration = args.duration.map(Duration::from_secs_f64);
    let is_bounded = args.duration.is_some() || args.hold;
    let rounds = args.rounds.or((!is_bounded).then_some(1000));
    let is_over = |done| {
        rounds.is_some_and(|most| done >= most)
            || duration.is_some_and(|most| start.elapsed() >= most)
            || input.as_ref().is_some_and(Input::is_there)
    };
    while !is_over(work.report.rounds) {
        work.step(args.blocks.into(), &replay)?;
        // Limits the queue to what ends soon on any device.
        if work.report.rounds.is_multiple_of(QUEUED) {
            gpu.synchronize()?;
        }
        work.report.rounds += 1;
    }
    while !work.blocks.is_empty() {
        work.verify_by_kernel(0)?;
        work.free(0)?;
    }
    replay.end(work.report.graphs)?;
    free(gpu, work.sum)?;
    work.report.seconds = start.elapsed().as_secs_f64();
    say::result(&work.report)?;
    input.map_or(Ok(()), Input::end)
}

impl Work<'_> {
    fn step(&mut self, most: usize, replay: &Replay<'_>) -> Result<()> {
        let count = self.blocks.len();
        if count < 2 || count < most && self.random.below(3) == 0 {
            return self.allocate();
        }
        let at = self.random.below(count);
        match self.random.below(8) {
            0 => self.free(at),
            1 => self.verify_by_kernel(at),
            2 => self.verify_by_copy(at),
            3 | 4 => self.copy(at),
            5 => {
                self.report.graphs += 1;
                replay.launch()
            }
            _ => self.refill(at),
        }
    }

    /// Allocates a block. One in four is too small to be moved by itself. Sizes are multiples of a word only.
    fn allocate(&mut self) -> Result<()> {
        let bytes = match self.random.below(4) {
            0 => 4 + self.random.below(1 << 20),
            _ => LARGE + self.random.below(self.most - LARGE + 1),
        };
        let words = bytes / 4;
        let address = match allocate(self.gpu, words * 4) {
            Ok(address) => address,
            Err(error) if error.is_out_of_memory() => {
                self.report.refused += 1;
                return if self.blocks.is_empty() {
                    Err(error.into())
                } else {
                    self.free(0)
                };
            }
            Err(error) => return Err(error.into()),
        };
        let words = words as u64;
        let stream = &self.streams[self.random.below(STREAMS)];
        let mut block = Block {
            address,
            words,
            content: Content::default(),
            stream,
        };
        let value = self.value();
        self.gpu.fill(stream.raw, address, words, value)?;
        block.content.fill(0..words, value);
        self.blocks.push(block);
        self.report.allocated += 1;
        Ok(())
    }

    fn value(&mut self) -> u32 {
        u32::try_from(self.random.below(1 << 32)).unwrap_or_default()
    }

    fn refill(&mut self, at: usize) -> Result<()> {
        let value = self.value();
        let range = self.range(self.blocks[at].words);
        let block = &mut self.blocks[at];
        let to = block.address + range.start * 4;
        self.gpu
            .fill(block.stream.raw, to, range.end - range.start, value)?;
        block.content.fill(range, value);
        Ok(())
    }

    /// Returns a random, non-empty range of words below `words`.
    fn range(&mut self, words: u64) -> std::ops::Range<u64> {
        let below = |random: &mut Random, count: u64| {
            random.below(usize::try_from(count).unwrap_or(usize::MAX)) as u64
        };
        let start = below(&mut self.random, words);
        start..start + 1 + below(&mut self.random, words - start)
    }

    /// Copies from another block, in the order of both blocks' streams.
    fn copy(&mut self, to: usize) -> Result<()> {
        let from = (to + 1 + self.random.below(self.blocks.len() - 1)) % self.blocks.len();
        let range = self.range(self.blocks[to].words.min(self.blocks[from].words));
        let (source, target) = (&self.blocks[from], &self.blocks[to]);
        let (at, bytes) = (range.start * 4, (range.end - range.start) * 4);
        self.event.record(source.stream)?;
        target.stream.wait(&self.event)?;
        target
            .stream
            .copy(target.address + at, source.address + at, usize::try_from(bytes)?)?;
        self.event.record(target.stream)?;
        source.stream.wait(&self.event)?;
        let content = source.content.clone();
        self.blocks[to].content.copy(&content, &range);
        self.report.copied += 1;
        Ok(())
    }

    fn verify_by_kernel(&mut self, at: usize) -> Result<()> {
        let block = &self.blocks[at];
        self.gpu.set(self.sum, 0, 8)?;
        self.gpu.synchronize()?;
        self.gpu
            .checksum(block.stream.raw, block.address, block.words, self.sum)?;
        block.stream.synchronize()?;
        let (found, expected) = (word(self.gpu, self.sum)?, block.content.checksum());
        ensure!(
            found == expected,
            "the sum of {} words at {:#x} is {found:#x}, not {expected:#x}",
            block.words,
            block.address
        );
        self.report.verified += 1;
        Ok(())
    }

    fn verify_by_copy(&mut self, at: usize) -> Result<()> {
        let block = &self.blocks[at];
        self.host.resize(usize::try_from(block.words * 4)?, 0);
        block.stream.synchronize()?;
        self.gpu.read(block.address, &mut self.host)?;
        if let Some((index, found, expected)) = block.content.differs(&self.host) {
            return Err(anyhow!(
                "word {index} of {} at {:#x} is {found:#x}, not {expected:#x}",
                block.words,
                block.address
            ));
        }
        self.report.verified += 1;
        Ok(())
    }

    fn free(&mut self, at: usize) -> Result<()> {
        self.verify_by_copy(at)?;
        let block = self.blocks.swap_remove(at);
        Ok(free(self.gpu, block.address)?)
    }
}

/// A graph of three nodes: fills one block, copies it to another, and adds the other's checksum to a sum.
struct Replay<'s> {
    gpu: &'s Gpu,
    stream: &'s Stream<'s>,
    graph: Graph<'s>,
    blocks: [CUdeviceptr; 2],
    sum: CUdeviceptr,
    once: u64,
}

impl<'s> Replay<'s> {
    fn new(gpu: &'s Gpu, stream: &'s Stream<'s>) -> Result<Self> {
        const VALUE: u32 = 0x1234_5678;
        let words = LARGE as u64 / 4;
        let (blocks, sum) = ([allocate(gpu, LARGE)?, allocate(gpu, LARGE)?], allocate(gpu, 8)?);
        gpu.set(sum, 0, 8)?;
        gpu.synchronize()?;
        let graph = Graph::capture(gpu, stream, || {
            gpu.fill(stream.raw, blocks[0], words, VALUE)?;
            stream.copy(blocks[1], blocks[0], LARGE)?;
            gpu.checksum(stream.raw, blocks[1], words, sum)
        })?;
        let mut content = Content::default();
        content.fill(0..words, VALUE);
        Ok(Self {
            gpu,
            stream,
            graph,
            blocks,
            sum,
            once: content.checksum(),
        })
    }

    fn launch(&self) -> Result<()> {
        Ok(self.graph.launch(self.stream)?)
    }

    fn end(self, launched: u64) -> Result<()> {
        self.stream.synchronize()?;
        let (found, expected) = (word(self.gpu, self.sum)?, self.once.wrapping_mul(launched));
        ensure!(
            found == expected,
            "the sum of {launched} graphs is {found:#x}, not {expected:#x}"
        );
        for address in self.blocks.into_iter().chain([self.sum]) {
            free(self.gpu, address)?;
        }
        Ok(())
    }
}

fn allocate(gpu: &Gpu, bytes: usize) -> crate::driver::Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: the out-pointer outlives the call.
    unsafe { gpu.driver.cuMemAlloc_v2(&mut address, bytes) }?;
    Ok(address)
}

fn free(gpu: &Gpu, address: CUdeviceptr) -> crate::driver::Result<()> {
    // SAFETY: allocated by `allocate`, and not used by the caller after this.
    unsafe { gpu.driver.cuMemFree_v2(address) }
}

fn word(gpu: &Gpu, address: CUdeviceptr) -> Result<u64> {
    let mut bytes = [0; 8];
    gpu.read(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Reads stdin in a thread.
struct Input {
    has_come: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Input {
    fn listen() -> Self {
        let has_come = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&has_come);
        let thread = std::thread::spawn(move || {
            let _ = stdin().read(&mut [0]);
            tell.store(true, Relaxed);
            let _ = stdin().read_to_end(&mut Vec::new());
        });
        Self { has_come, thread }
    }

    fn is_there(&self) -> bool {
        self.has_come.load(Relaxed)
    }

    fn end(self) -> Result<()> {
        self.thread.join().map_err(|_| anyhow!("a thread panicked"))
    }
}
