//! `throughput`: a batch job. Submits kernels back to back, with several queued, and counts completed ones.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::clock;
use crate::gpu::{Event, Gpu};
use crate::graph::Graph;
use crate::kernels::{self, Kernels};
use crate::range::Range;
use crate::say;
use crate::stats::Random;

#[derive(Debug, Args)]
pub(crate) struct Throughput {
    #[command(flatten)]
    kernels: kernels::Arguments,
    /// Microseconds that each kernel runs: N, or MIN-MAX to choose from
    #[arg(long, default_value = "1000")]
    kernel_usec: Range,
    /// Duration, seconds
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    /// Maximum number of queued kernels (or graphs)
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    depth: u16,
    /// Submit graphs of this many kernels each
    #[arg(long, default_value_t = 0)]
    graph: u16,
    /// Seconds between progress lines: `kernels ENDED busy USEC at NS` (of CLOCK_MONOTONIC)
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
    /// Random seed: the same seed gives the same kernels
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    kernels: u64,
    kernel_usec: String,
    seconds: f64,
    kernels_per_second: f64,
    /// GPU time of these kernels, from their lengths.
    busy_usec: u64,
    /// The longest time without a completed kernel.
    max_stall_usec: f64,
}

/// A submission: a kernel, or a graph of several.
struct Piece<'g> {
    lengths: Vec<u64>,
    graph: Option<Graph<'g>>,
}

/// A slot of the queue.
struct Queued<'g> {
    ended: Event<'g>,
    kernels: u64,
    usec: u64,
}

pub(crate) fn run(args: &Throughput, gpu: &Gpu) -> Result<()> {
    let kernels = Kernels::new(&args.kernels, gpu)?;
    let pieces = pieces(args, &kernels)?;
    let mut queue = (0..args.depth)
        .map(|_| {
            Event::new(gpu).map(|ended| Queued {
                ended,
                kernels: 0,
                usec: 0,
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    kernels.launch(kernels.stream(0), args.kernel_usec.min)?;
    kernels.synchronize()?;
    say::line("ready")?;

    let start = Instant::now();
    let until = start + Duration::from_secs_f64(args.duration);
    let interval = Duration::from_secs_f64(args.interval);
    let mut random = Random::new(args.seed);
    let (mut done, mut busy, mut ended, mut stall) = (0_u64, 0_u64, start, Duration::ZERO);
    let mut next_line = start + interval;
    for number in 0.. {
        let index = number % queue.len();
        let slot = &mut queue[index];
        // Waits for the submission `depth` back; returns at once in the first round.
        slot.ended.synchronize()?;
        done += std::mem::take(&mut slot.kernels);
        busy += std::mem::take(&mut slot.usec);
        let now = Instant::now();
        stall = stall.max(now - ended);
        ended = now;
        if now >= until {
            break;
        }
        if now >= next_line {
            say::line(format_args!(
                "kernels {done} busy {busy} at {}",
                clock::monotonic()
            ))?;
            next_line = now + interval;
        }
        let stream = kernels.stream(number);
        let piece = &pieces[random.below(pieces.len())];
        match &piece.graph {
            Some(graph) => graph.launch(stream)?,
            None => piece
                .lengths
                .iter()
                .try_for_each(|usec| kernels.launch(stream, *usec))?,
        }
        slot.ended.record(stream)?;
        slot.kernels = piece.lengths.len() as u64;
        slot.usec = piece.lengths.iter().sum();
    }
    kernels.synchronize()?;
    done += queue.iter().map(|slot| slot.kernels).sum::<u64>();
    busy += queue.iter().map(|slot| slot.usec).sum::<u64>();
    let seconds = start.elapsed().as_secs_f64();
    say::result(&Report {
        command: "throughput",
        kernels: done,
        kernel_usec: args.kernel_usec.to_string(),
        seconds,
        kernels_per_second: done as f64 / seconds,
        busy_usec: busy,
        max_stall_usec: stall.as_secs_f64() * 1e6,
    })
}

/// Returns the submissions to choose from: kernels of several lengths, or one graph with all of these in
/// turn.
fn pieces<'g>(args: &Throughput, kernels: &Kernels<'g>) -> Result<Vec<Piece<'g>>> {
    let lengths = kernels::spread(args.kernel_usec);
    if args.graph == 0 {
        let alone = |usec| Piece {
            lengths: vec![usec],
            graph: None,
        };
        return Ok(lengths.into_iter().map(alone).collect());
    }
    let lengths: Vec<u64> = lengths.into_iter().cycle().take(args.graph.into()).collect();
    let stream = kernels.stream(0);
    let graph = Graph::capture(kernels.gpu, stream, || {
        lengths.iter().try_for_each(|usec| kernels.launch(stream, *usec))
    })?;
    Ok(vec![Piece {
        lengths,
        graph: Some(graph),
    }])
}
