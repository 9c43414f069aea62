//! `memory`: allocates by one API until it has enough or is refused, writes and verifies the memory, and
//! holds it.

use std::io::{BufRead as _, stdin};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use serde::Serialize;

use crate::block::{Allocator, Api, Block};
use crate::driver::CudaError;
use crate::gpu::Gpu;
use crate::say;
use crate::size::Size;
use crate::touch::Touched;

#[derive(Debug, Args)]
pub(crate) struct Memory {
    /// API to allocate with
    #[arg(long, value_enum, default_value_t = Api::Linear)]
    api: Api,
    /// Bytes of a block (K, M and G mean 1024, 1024^2 and 1024^3)
    #[arg(long, default_value = "1M")]
    size: Size,
    /// Total bytes to stop at; default: until refused
    #[arg(long)]
    total: Option<Size>,
    /// Bytes of each block to write and verify, at both ends; default: all, 0: none
    #[arg(long)]
    touch: Option<Size>,
    /// Number of threads that allocate concurrently
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Hold the memory this many seconds; default: until a line or the end of stdin
    #[arg(long)]
    hold: Option<f64>,
}

#[derive(Serialize)]
struct Report<'a> {
    command: &'static str,
    blocks: usize,
    bytes: usize,
    /// Name of the error that ended the allocation, if any.
    refused: Option<&'a str>,
    free: usize,
    total: usize,
}

pub(crate) fn run(args: &Memory, gpu: &Gpu) -> Result<()> {
    let allocator = Allocator::new(gpu, args.api)?;
    say::line("ready")?;
    let (blocks, refused) = if args.threads > 1 {
        race(args, &allocator)?
    } else {
        let mut blocks = Vec::new();
        let refused = fill(args, &allocator, |block| blocks.push(block))?;
        (blocks, refused)
    };

    let bytes = blocks.iter().map(|block| block.bytes).sum();
    say::line(format_args!("allocated {bytes} bytes"))?;
    if let Some(error) = &refused {
        say::line(format_args!("refused {} at {bytes} bytes", error.name()))?;
    }
    let limit = args.touch.map_or(usize::MAX, |touch| touch.0);
    let mut held = Vec::new();
    for (number, block) in (0..).zip(blocks) {
        held.push(Touched::write(&allocator, block, number, limit)?);
    }
    verify(&allocator, &mut held)?;

    say::line("holding")?;
    match args.hold {
        Some(seconds) => std::thread::sleep(Duration::from_secs_f64(seconds)),
        None => {
            let _ = stdin().lock().read_line(&mut String::new())?;
        }
    }
    verify(&allocator, &mut held)?;
    let blocks = held.len();
    for touched in held {
        allocator.free(touched.block)?;
    }
    let (free, total) = gpu.memory_info()?;
    let refused = refused.as_ref().map(CudaError::name);
    say::result(&Report {
        command: "memory",
        blocks,
        bytes,
        refused,
        free,
        total,
    })
}

/// Allocates until the total is reached or memory is refused; returns the refusal. Other errors are errors.
fn fill(args: &Memory, allocator: &Allocator<'_>, mut keep: impl FnMut(Block)) -> Result<Option<CudaError>> {
    let mut bytes = 0;
    while args.total.is_none_or(|total| bytes < total.0) {
        let size = args
            .total
            .map_or(args.size.0, |total| args.size.0.min(total.0 - bytes));
        match allocator.allocate(size) {
            Ok(block) => {
                bytes += block.bytes;
                keep(block);
            }
            Err(error) if error.is_out_of_memory() => return Ok(Some(error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Runs [`fill`] in several threads concurrently, each up to the total.
fn race(args: &Memory, allocator: &Allocator<'_>) -> Result<(Vec<Block>, Option<CudaError>)> {
    let kept = Mutex::new(Vec::new());
    let one = || -> Result<Option<CudaError>> {
        allocator.gpu.attach()?;
        fill(args, allocator, |block| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(block)
        })
    };
    let mut refused = None;
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(one)).collect();
        for thread in threads {
            let error = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            refused = refused.take().or(error);
        }
        Ok(())
    })?;
    Ok((kept.into_inner().unwrap_or_else(PoisonError::into_inner), refused))
}

fn verify(allocator: &Allocator<'_>, held: &mut [Touched]) -> Result<()> {
    for (number, touched) in held.iter_mut().enumerate() {
        touched
            .verify(allocator)
            .with_context(|| format!("block {number}"))?;
    }
    Ok(say::line(format_args!("verified {} blocks", held.len()))?)
}
