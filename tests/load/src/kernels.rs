//! Kernels that take a given time: by the clock, or by an amount of work measured on an idle device.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::driver;
use crate::gpu::{Event, Gpu, Stream};
use crate::range::Range;
use crate::say;

/// Determines a kernel's duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The device's clock: ends on time even if others had the device meanwhile
    Spin,
    /// Arithmetic: takes longer while others have the device. Calibrated at the start
    Work,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Determines a kernel's duration
    #[arg(long, value_enum, default_value_t = Kind::Spin)]
    pub kernel: Kind,
    /// Steps of work per microsecond on this device, if it is in use and cannot be calibrated
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Number of streams, used in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub streams: u16,
}

/// Submits kernels of a given duration.
#[derive(Debug)]
pub(crate) struct Kernels<'g> {
    pub gpu: &'g Gpu,
    pub kind: Kind,
    pub streams: Vec<Stream<'g>>,
    /// Steps of work per microsecond.
    rate: f64,
}

impl<'g> Kernels<'g> {
    /// Creates the streams, and calibrates work; if other processes use the device, the best of many trials
    /// is taken.
    ///
    /// # Errors
    /// The driver's, or the reader of stdout is gone.
    pub(crate) fn new(args: &Arguments, gpu: &'g Gpu) -> Result<Self> {
        let streams = (0..args.streams)
            .map(|_| Stream::new(gpu))
            .collect::<Result<Vec<_>, _>>()?;
        let mut kernels = Self {
            gpu,
            kind: args.kernel,
            streams,
            rate: 0.0,
        };
        if args.kernel == Kind::Work {
            kernels.rate = match args.rate {
                Some(rate) => rate.into(),
                None => kernels.measure()?,
            };
            say::line(format_args!("work {:.1} steps a usec", kernels.rate))?;
        }
        Ok(kernels)
    }

    /// Submits one kernel of `usec` microseconds.
    pub(crate) fn launch(&self, stream: &Stream<'_>, usec: u64) -> driver::Result<()> {
        match self.kind {
            Kind::Spin => self.gpu.spin(stream.raw, usec),
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count of steps"
            )]
            Kind::Work => self
                .gpu
                .work(stream.raw, (usec as f64 * self.rate).round() as u64),
        }
    }

    /// Returns the stream for the submission `number`.
    pub(crate) fn stream(&self, number: usize) -> &Stream<'g> {
        &self.streams[number % self.streams.len()]
    }

    /// Waits for all work submitted to the streams.
    pub(crate) fn synchronize(&self) -> driver::Result<()> {
        self.streams.iter().try_for_each(Stream::synchronize)
    }

    /// Measures steps per microsecond, first roughly, then by kernels of a fraction of a millisecond.
    fn measure(&self) -> Result<f64> {
        const ROUGH: u64 = 20_000;
        let ends = [Event::timed(self.gpu)?, Event::timed(self.gpu)?];
        let stream = self.stream(0);
        // Minimum of many trials, so that other work on the device does not count; queued behind another
        // kernel, so that launch latency does not count either.
        let least = |steps| -> Result<f64> {
            let mut least = f64::INFINITY;
            for _ in 0..30 {
                self.gpu.work(stream.raw, 3 * ROUGH)?;
                ends[0].record(stream)?;
                self.gpu.work(stream.raw, steps)?;
                ends[1].record(stream)?;
                ends[1].synchronize()?;
                least = least.min(ends[1].usec_since(&ends[0])?);
            }
            Ok(least.max(1e-3))
        };
        let rough = ROUGH as f64 / least(ROUGH)?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of steps"
        )]
        let steps = (rough * 400.0) as u64;
        Ok(steps as f64 / least(steps)?)
    }
}

/// Returns `count` kernel lengths, microseconds, that add up to `total` and differ by at most one
/// microsecond.
pub(crate) fn shares(total: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |index| (index + 1) * total / count - index * total / count)
}

/// Returns up to five values that cover a range, including both ends.
pub(crate) fn spread(range: Range) -> Vec<u64> {
    const VALUES: u64 = 5;
    let mut values: Vec<u64> = (0..VALUES)
        .map(|index| range.min + (range.max - range.min) * index / (VALUES - 1))
        .collect();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (total, count) in [(20_000, 150), (20_000, 128), (7, 3), (80_000, 80)] {
            let all: Vec<u64> = shares(total, count).collect();
            assert_eq!(all.iter().sum::<u64>(), total);
            let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
            assert!(most - least <= 1, "{all:?}");
        }
    }

    #[test]
    fn spread_has_both_ends() {
        assert_eq!(spread(Range { min: 100, max: 200 }), [100, 125, 150, 175, 200]);
        assert_eq!(spread(Range { min: 8, max: 8 }), [8]);
        assert_eq!(spread(Range { min: 1, max: 2 }), [1, 2]);
    }
}
