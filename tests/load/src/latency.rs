//! `latency`: an interactive program. Submits bursts of kernels with idle time in between and measures their
//! latency.
//!
//! Start times are fixed beforehand and do not depend on other bursts: a long burst delays those behind it,
//! and that counts. The latency of a burst is the time from its due start until its last kernel has ended.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::gpu::Gpu;
use crate::graph::Graph;
use crate::kernels::{self, Kernels};
use crate::range::Range;
use crate::say;
use crate::stats::{Random, quantile, sorted};

/// Distribution of the gaps between bursts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Distribution {
    Exponential,
    Fixed,
}

#[derive(Debug, Args)]
pub(crate) struct Latency {
    #[command(flatten)]
    kernels: kernels::Arguments,
    /// Kernels of a burst: N, or MIN-MAX to choose from
    #[arg(long, default_value = "8")]
    burst: Range,
    /// Microseconds that each kernel runs
    #[arg(long, default_value_t = 200)]
    kernel_usec: u64,
    /// Milliseconds of all kernels of a burst together, divided among them; replaces --kernel-usec
    #[arg(long, conflicts_with = "kernel_usec")]
    burst_ms: Option<u64>,
    /// Begin with a burst of this many milliseconds, of kernels of --prefill-kernel-usec; reported separately
    #[arg(long, default_value_t = 0)]
    prefill_ms: u64,
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    prefill_kernel_usec: u64,
    /// Mean idle time of the device between bursts if no other process uses it, milliseconds
    #[arg(long, default_value_t = 5.0)]
    gap_ms: f64,
    #[arg(long, value_enum, default_value_t = Distribution::Exponential)]
    gaps: Distribution,
    /// Number of bursts to measure
    #[arg(long, default_value_t = 200)]
    count: u64,
    /// Stop after this many seconds, even if bursts are left
    #[arg(long)]
    duration: Option<f64>,
    /// Random seed: the same seed gives the same bursts at the same times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Submit each burst as one graph
    #[arg(long)]
    graph: bool,
    /// Print a line for each burst
    #[arg(long)]
    trace: bool,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    bursts: usize,
    kernels_per_burst: String,
    kernel_usec: u64,
    p50_usec: f64,
    p90_usec: f64,
    p99_usec: f64,
    max_usec: f64,
    mean_usec: f64,
    /// Latency of the prefill burst.
    prefill_usec: Option<f64>,
    /// GPU time of all bursts.
    busy_usec: u64,
    seconds: f64,
}

/// A burst to choose from.
struct Burst<'g> {
    lengths: Vec<u64>,
    graph: Option<Graph<'g>>,
}

impl<'g> Burst<'g> {
    fn new(kernels: &Kernels<'g>, lengths: Vec<u64>, graph: bool) -> Result<Self> {
        let capture = || {
            let stream = kernels.stream(0);
            let submit = || lengths.iter().try_for_each(|usec| kernels.launch(stream, *usec));
            Graph::capture(kernels.gpu, stream, submit)
        };
        let graph = if graph { Some(capture()?) } else { None };
        Ok(Self { lengths, graph })
    }

    fn usec(&self) -> u64 {
        self.lengths.iter().sum()
    }

    /// Submits the burst and waits for its end.
    fn run(&self, kernels: &Kernels<'g>) -> Result<()> {
        match &self.graph {
            Some(graph) => graph.launch(kernels.stream(0))?,
            None => {
                for (number, usec) in self.lengths.iter().enumerate() {
                    kernels.launch(kernels.stream(number), *usec)?;
                }
            }
        }
        Ok(kernels.synchronize()?)
    }
}

pub(crate) fn run(args: &Latency, gpu: &Gpu) -> Result<()> {
    let kernels = Kernels::new(&args.kernels, gpu)?;
    let bursts = bursts(args, &kernels)?;
    let count = usize::try_from(args.prefill_ms * 1000 / args.prefill_kernel_usec)?;
    let prefill = Burst::new(&kernels, vec![args.prefill_kernel_usec; count], false)?;
    // The first burst includes the driver's lazy initialisation.
    let first = bursts.first().map_or(Ok(()), |burst| burst.run(&kernels));
    first?;
    wake_on_time();
    say::line("ready")?;

    let start = Instant::now();
    let until = args
        .duration
        .map(|seconds| start + Duration::from_secs_f64(seconds));
    let mut random = Random::new(args.seed);
    let gap = Duration::from_secs_f64(args.gap_ms / 1e3);
    let (mut due, mut busy, mut took, mut prefill_usec) = (start, 0, Vec::new(), None);
    if count > 0 {
        prefill_usec = Some(late(&prefill, due, &kernels)?);
        due += Duration::from_micros(prefill.usec());
        busy += prefill.usec();
    }
    for number in 0..args.count {
        due += match args.gaps {
            Distribution::Exponential => random.exponential(gap),
            Distribution::Fixed => gap,
        };
        if until.is_some_and(|until| due >= until) {
            break;
        }
        let burst = &bursts[random.below(bursts.len())];
        let usec = late(burst, due, &kernels)?;
        if args.trace {
            say::line(format_args!("burst {number} {usec:.0} usec"))?;
        }
        took.push(usec);
        due += Duration::from_micros(burst.usec());
        busy += burst.usec();
    }
    let seconds = start.elapsed().as_secs_f64();
    let took = sorted(took);
    say::result(&Report {
        command: "latency",
        bursts: took.len(),
        kernels_per_burst: args.burst.to_string(),
        kernel_usec: args.kernel_usec,
        p50_usec: quantile(&took, 0.5),
        p90_usec: quantile(&took, 0.9),
        p99_usec: quantile(&took, 0.99),
        max_usec: quantile(&took, 1.0),
        mean_usec: took.iter().sum::<f64>() / took.len().max(1) as f64,
        prefill_usec,
        busy_usec: busy,
        seconds,
    })
}

/// Returns the bursts to choose from.
fn bursts<'g>(args: &Latency, kernels: &Kernels<'g>) -> Result<Vec<Burst<'g>>> {
    kernels::spread(args.burst)
        .into_iter()
        .map(|count| {
            let lengths = match args.burst_ms {
                Some(total) => kernels::shares(total * 1000, count).collect(),
                None => vec![args.kernel_usec; usize::try_from(count)?],
            };
            Burst::new(kernels, lengths, args.graph)
        })
        .collect()
}

/// Runs a burst at its due time, or at once if that has passed; returns the latency, microseconds.
fn late(burst: &Burst<'_>, due: Instant, kernels: &Kernels<'_>) -> Result<f64> {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    burst.run(kernels)?;
    Ok(due.elapsed().as_secs_f64() * 1e6)
}

/// Makes this thread's sleeps end as exactly as the kernel can.
fn wake_on_time() {
    // SAFETY: affects only the timers of this thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}
