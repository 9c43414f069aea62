//! `churn`: threads allocate and free by every API concurrently. Then it holds the remaining blocks, so that
//! a test can compare counters, and frees them when it reads a line.

use std::io::stdin;
use std::sync::Barrier;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum as _};
use serde::Serialize;

use crate::block::{Allocator, Api, Block};
use crate::gpu::Gpu;
use crate::say;
use crate::size::Size;

#[derive(Debug, Args)]
pub(crate) struct Churn {
    /// Number of threads
    #[arg(long, default_value_t = 8)]
    threads: u64,
    /// Rounds of each thread; each is one allocation or free by every API
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    /// Maximum number of live blocks of a thread, for each API
    #[arg(long, default_value_t = 4)]
    most: usize,
    /// Maximum bytes of a block
    #[arg(long, default_value = "1M")]
    size: Size,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    threads: u64,
    calls: u64,
}

pub(crate) fn run(args: &Churn, gpu: &Gpu) -> Result<()> {
    say::line("ready")?;
    let threads = usize::try_from(args.threads)?;
    let (churned, told) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let mut calls = 0;
    std::thread::scope(|scope| -> Result<()> {
        let running: Vec<_> = (0..args.threads)
            .map(|number| {
                let (churned, told) = (&churned, &told);
                scope.spawn(move || {
                    let outcome = Thread::new(gpu, number).and_then(|mut thread| {
                        let calls = thread.churn(args);
                        Ok((thread, calls?))
                    });
                    // A thread that fails continues to the barriers, so that the others do not wait for it.
                    churned.wait();
                    told.wait();
                    let (thread, calls) = outcome?;
                    thread.free().map(|()| calls)
                })
            })
            .collect();
        churned.wait();
        say::line("churned")?;
        stdin().read_line(&mut String::new())?;
        told.wait();
        for thread in running {
            calls += thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(())
    })?;
    say::line("freed")?;
    stdin().read_line(&mut String::new())?;
    let Churn { threads, .. } = *args;
    say::result(&Report {
        command: "churn",
        threads,
        calls,
    })
}

/// Allocators and blocks of one thread, by API.
struct Thread<'g> {
    held: Vec<(Allocator<'g>, Vec<Block>)>,
    random: u64,
}

impl<'g> Thread<'g> {
    fn new(gpu: &'g Gpu, number: u64) -> Result<Self> {
        gpu.attach()?;
        let held: Result<_> = Api::value_variants()
            .iter()
            .map(|api| Ok((Allocator::new(gpu, *api)?, Vec::new())))
            .collect();
        Ok(Self {
            held: held?,
            random: number + 1,
        })
    }

    /// Allocates and frees; returns the number of calls.
    fn churn(&mut self, args: &Churn) -> Result<u64> {
        let mut calls = 0;
        for round in 1..=args.rounds {
            // Shows progress to a reader that waits for the end.
            if round.is_multiple_of(10_000) {
                say::line("churning")?;
            }
            for (allocator, blocks) in &mut self.held {
                // xorshift64, seeded differently in each thread.
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let choice = usize::try_from(self.random >> 16)?;
                calls += 1;
                if blocks.len() < args.most && choice.is_multiple_of(2) || blocks.is_empty() {
                    blocks.push(allocator.allocate(1 + choice / 2 % args.size.0)?);
                } else {
                    allocator.free(blocks.swap_remove(choice / 2 % blocks.len()))?;
                }
            }
        }
        Ok(calls)
    }

    fn free(self) -> Result<()> {
        for (allocator, blocks) in self.held {
            for block in blocks {
                allocator.free(block)?;
            }
        }
        Ok(())
    }
}
