//! `roam`: one of many programs that start, use the device in all ways in turn, and exit. When it reads a
//! line it stops and holds its memory, so that a test can compare counters.

use std::io::stdin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum as _};
use serde::Serialize;

use crate::block::{Allocator, Api, Block};
use crate::gpu::{Gpu, Stream};
use crate::say;
use crate::size::Size;

#[derive(Debug, Args)]
pub(crate) struct Roam {
    /// Random seed, which alone determines the calls
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Exit after this many rounds, with or without memory freed; 0: continue until a line is read
    #[arg(long, default_value_t = 0)]
    rounds: u64,
    /// Maximum pause between two rounds, milliseconds
    #[arg(long, default_value_t = 50)]
    pause_ms: u64,
    /// Maximum number of live blocks, for each API
    #[arg(long, default_value_t = 3)]
    most: usize,
    /// Maximum bytes of a block
    #[arg(long, default_value = "1M")]
    size: Size,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    rounds: u64,
    refused: u64,
}

pub(crate) fn run(args: &Roam, gpu: &Gpu) -> Result<()> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let mut program = Program {
        gpu,
        stream: Stream::new(gpu)?,
        held: Vec::new(),
        random: args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1),
        refused: 0,
    };
    for api in Api::value_variants() {
        program.held.push((Allocator::new(gpu, *api)?, Vec::new()));
    }
    say::line("ready")?;
    let listener = thread::spawn(|| {
        let heard = stdin().read_line(&mut String::new());
        TOLD.store(true, Relaxed);
        heard
    });
    let mut rounds = 0;
    while !TOLD.load(Relaxed) && (args.rounds == 0 || rounds < args.rounds) {
        program.round(args)?;
        rounds += 1;
        let pause = program.below(args.pause_ms + 1);
        thread::sleep(Duration::from_millis(pause));
    }
    gpu.synchronize()?;
    let refused = program.refused;
    if TOLD.load(Relaxed) {
        let Ok(heard) = listener.join() else {
            bail!("the listener panicked")
        };
        // Zero bytes are the end of stdin.
        if heard? > 0 {
            say::line("held")?;
            stdin().read_line(&mut String::new())?;
        }
        program.free()?;
    } else if program.below(2) == 0 {
        program.free()?;
    }
    say::result(&Report {
        command: "roam",
        rounds,
        refused,
    })
}

struct Program<'g> {
    gpu: &'g Gpu,
    stream: Stream<'g>,
    held: Vec<(Allocator<'g>, Vec<Block>)>,
    random: u64,
    refused: u64,
}

impl Program<'_> {
    /// Returns a random number below `end`, which must not be 0.
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64, seeded differently in each program.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % end
    }

    /// Does one random operation.
    fn round(&mut self, args: &Roam) -> Result<()> {
        match self.below(4) {
            0 => {
                for _ in 0..=self.below(8) {
                    let usec = self.below(200);
                    self.gpu.spin(self.stream.raw, usec)?;
                }
            }
            1 => self.copy()?,
            _ => self.allocate_or_free(args)?,
        }
        Ok(())
    }

    fn allocate_or_free(&mut self, args: &Roam) -> Result<()> {
        let api = usize::try_from(self.below(self.held.len() as u64))?;
        let bytes = 1 + usize::try_from(self.below(args.size.0 as u64))?;
        let (allocates, choice) = (self.below(2) == 0, usize::try_from(self.below(1 << 16))?);
        let Some((allocator, blocks)) = self.held.get_mut(api) else {
            return Ok(());
        };
        if blocks.is_empty() || allocates && blocks.len() < args.most {
            match allocator.allocate(bytes) {
                Ok(block) => blocks.push(block),
                // Refused by a limit, for example.
                Err(error) if error.is_out_of_memory() => self.refused += 1,
                Err(error) => return Err(error.into()),
            }
        } else {
            allocator.free(blocks.swap_remove(choice % blocks.len()))?;
        }
        Ok(())
    }

    /// Writes and reads the first word of the first block that can be reached.
    fn copy(&self) -> Result<()> {
        let blocks = self.held.iter().flat_map(|(_, blocks)| blocks);
        let Some((pointer, _)) = blocks
            .filter_map(|block| Some((block.pointer()?, block.bytes)))
            .find(|(_, bytes)| *bytes >= 4)
        else {
            return Ok(());
        };
        self.gpu.write(pointer, &[1, 2, 3, 4])?;
        let mut word = [0; 4];
        self.gpu.read(pointer, &mut word)?;
        if word != [1, 2, 3, 4] {
            bail!("{word:?} instead of what was written");
        }
        Ok(())
    }

    fn free(&mut self) -> Result<()> {
        for (allocator, blocks) in &mut self.held {
            for block in blocks.drain(..) {
                allocator.free(block)?;
            }
        }
        Ok(())
    }
}
