//! `throughput`: a batch job. Kernels back to back, a few of them queued; how many get done?

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::gpu::{Event, Gpu, Stream};
use crate::say;

#[derive(Debug, Args)]
pub struct Throughput {
    /// Microseconds that each kernel runs
    #[arg(long, default_value_t = 1000)]
    kernel_usec: u64,
    /// Seconds to go on for
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    /// Kernels queued at most
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    depth: u16,
    /// Seconds between progress lines
    #[arg(long, default_value_t = 1.0)]
    interval: f64,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    kernels: u64,
    kernel_usec: u64,
    seconds: f64,
    kernels_per_second: f64,
    /// The longest time without a kernel's end.
    max_stall_usec: f64,
}

pub fn run(args: &Throughput, gpu: &Gpu) -> Result<()> {
    let stream = Stream::new(gpu)?;
    let marks = (0..args.depth)
        .map(|_| Event::new(gpu))
        .collect::<Result<Vec<_>, _>>()?;
    gpu.spin(stream.raw, args.kernel_usec)?;
    stream.synchronize()?;
    say::line("ready")?;

    let start = Instant::now();
    let until = start + Duration::from_secs_f64(args.duration);
    let interval = Duration::from_secs_f64(args.interval);
    let (mut kernels, mut ended, mut stall) = (0_u64, start, Duration::ZERO);
    let mut next_line = start + interval;
    for mark in marks.iter().cycle() {
        // The mark of the kernel that many places back; nothing to wait for in the first round.
        mark.synchronize()?;
        let now = Instant::now();
        stall = stall.max(now - ended);
        ended = now;
        if now >= until {
            break;
        }
        if now >= next_line {
            say::line(format_args!("kernels {kernels}"))?;
            next_line = now + interval;
        }
        gpu.spin(stream.raw, args.kernel_usec)?;
        mark.record(&stream)?;
        kernels += 1;
    }
    stream.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    say::result(&Report {
        command: "throughput",
        kernels,
        kernel_usec: args.kernel_usec,
        seconds,
        kernels_per_second: kernels as f64 / seconds,
        max_stall_usec: stall.as_secs_f64() * 1e6,
    })
}
