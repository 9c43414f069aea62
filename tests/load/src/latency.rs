//! `latency`: an interactive program. Bursts of kernels, idle in between; how long does each burst take?

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::gpu::{Gpu, Stream};
use crate::say;
use crate::stats::{Gaps, quantile, sorted};

#[derive(Debug, Args)]
pub struct Latency {
    /// Kernels of a burst
    #[arg(long, default_value_t = 8)]
    burst: u32,
    /// Microseconds that each kernel runs
    #[arg(long, default_value_t = 200)]
    kernel_usec: u64,
    /// Mean of the exponentially distributed gaps between bursts, milliseconds
    #[arg(long, default_value_t = 5.0)]
    gap_ms: f64,
    /// Bursts to measure
    #[arg(long, default_value_t = 200)]
    count: u64,
    /// Stop after this many seconds, whatever the count
    #[arg(long)]
    duration: Option<f64>,
    /// Of the gaps: the same seed, the same gaps
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print a line for each burst
    #[arg(long)]
    trace: bool,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    bursts: usize,
    kernels_per_burst: u32,
    kernel_usec: u64,
    p50_usec: f64,
    p99_usec: f64,
    max_usec: f64,
}

pub fn run(args: &Latency, gpu: &Gpu) -> Result<()> {
    let stream = Stream::new(gpu)?;
    // The first burst pays for what the driver puts off until then.
    burst(args, gpu, &stream)?;
    say::line("ready")?;
    let until = args
        .duration
        .map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut gaps = Gaps::new(Duration::from_secs_f64(args.gap_ms / 1e3), args.seed);
    let mut took = Vec::new();
    for number in 0..args.count {
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        std::thread::sleep(gaps.next());
        let usec = burst(args, gpu, &stream)?.as_secs_f64() * 1e6;
        if args.trace {
            say::line(format_args!("burst {number} {usec:.0} usec"))?;
        }
        took.push(usec);
    }
    let took = sorted(took);
    say::result(&Report {
        command: "latency",
        bursts: took.len(),
        kernels_per_burst: args.burst,
        kernel_usec: args.kernel_usec,
        p50_usec: quantile(&took, 0.5),
        p99_usec: quantile(&took, 0.99),
        max_usec: quantile(&took, 1.0),
    })
}

fn burst(args: &Latency, gpu: &Gpu, stream: &Stream<'_>) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..args.burst {
        gpu.spin(stream.raw, args.kernel_usec)?;
    }
    stream.synchronize()?;
    Ok(start.elapsed())
}
