//! `obey` and `launches`: a program driven by commands, for tests and for manual experiments.

use std::collections::BTreeMap;
use std::io::{BufRead as _, stdin};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum as _};
use serde::Serialize;

use crate::bandwidth;
use crate::block::{Allocator, Api};
use crate::clock;
use crate::gpu::{Gpu, Stream};
use crate::input;
use crate::say;
use crate::size::Size;
use crate::touch::Touched;

#[derive(Debug, Args)]
pub(crate) struct Launches {
    /// Number of kernels to launch
    count: u64,
    /// Microseconds that each kernel runs
    #[arg(long, default_value_t = 0)]
    kernel_usec: u64,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    kernels: u64,
}

/// Launches the given number of kernels, waits for them, and reports it.
pub(crate) fn launches(args: &Launches, gpu: &Gpu) -> Result<()> {
    let stream = Stream::new(gpu)?;
    say::line("ready")?;
    for _ in 0..args.count {
        gpu.spin(stream.raw, args.kernel_usec)?;
    }
    stream.synchronize()?;
    say::line(format_args!("launched {}", args.count))?;
    say::result(&Report {
        command: "launches",
        kernels: args.count,
    })
}

/// Help text with the commands of `obey`.
pub(crate) const COMMANDS: &str = "Reads one command a line, answers each with one line:
  alloc API BYTES     allocated ID API BYTES | refused ERROR
  free ID|all         freed COUNT
  verify              verified COUNT
  launch N [USEC]     launched N             (submitted, not waited for)
  work USEC           worked N               (launches and waits until there is more input, and verifies between)
  stamp               stamped NS             (after one launch; CLOCK_MONOTONIC, nanoseconds)
  copy N              copied N               (N copies of four bytes, in and out by turns, waited for)
  set N               set N
  bandwidth BYTES N   bandwidth OUT IN [MADE RELEASED]
                      (seconds: N blocks copied to page-locked memory, and back; as many made at the host, and released)
  sync                synchronised
  meminfo             meminfo FREE TOTAL
  device-total        device-total BYTES
  quit                (ends, as does the end of the input)
Anything that fails otherwise: error WHAT";

/// Kernels of `work` between two verifications.
const VERIFY: u64 = 64;

struct Obedient<'g> {
    gpu: &'g Gpu,
    stream: Stream<'g>,
    allocators: BTreeMap<usize, Allocator<'g>>,
    blocks: BTreeMap<u32, (usize, Touched)>,
    next: u32,
}

pub(crate) fn obey(gpu: &Gpu) -> Result<()> {
    let mut program = Obedient {
        gpu,
        stream: Stream::new(gpu)?,
        allocators: BTreeMap::new(),
        blocks: BTreeMap::new(),
        next: 1,
    };
    say::line("ready")?;
    for line in stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["quit"] {
            break;
        }
        match program.one(&words) {
            Ok(answer) => say::line(answer)?,
            Err(error) => say::line(format_args!("error {error:#}"))?,
        }
    }
    let left: Vec<u32> = program.blocks.keys().copied().collect();
    left.into_iter().try_for_each(|id| program.free(id))
}

impl Obedient<'_> {
    fn one(&mut self, words: &[&str]) -> Result<String> {
        Ok(match *words {
            ["alloc", api, bytes] => self.alloc(api, bytes)?,
            ["free", "all"] => {
                let ids: Vec<u32> = self.blocks.keys().copied().collect();
                let count = ids.len();
                ids.into_iter().try_for_each(|id| self.free(id))?;
                format!("freed {count}")
            }
            ["free", id] => {
                self.free(number(id)?)?;
                "freed 1".to_owned()
            }
            ["verify"] => self.verify()?,
            ["work", usec] => {
                let mut count: u64 = 0;
                while !input::is_there()? {
                    self.launch(1, number(usec)?)?;
                    self.stream.synchronize()?;
                    count += 1;
                    if count.is_multiple_of(VERIFY) {
                        self.verify()?;
                    }
                }
                format!("worked {count}")
            }
            ["launch", count] => self.launch(number(count)?, 0)?,
            ["launch", count, usec] => self.launch(number(count)?, number(usec)?)?,
            ["stamp"] => {
                self.gpu.spin(self.stream.raw, 0)?;
                format!("stamped {}", clock::monotonic())
            }
            ["copy", count] => {
                let (pointer, mut word) = (self.pointer()?, [0; 4]);
                for turn in 0..number::<u64>(count)? {
                    if turn % 2 == 0 {
                        self.gpu.read(pointer, &mut word)?;
                    } else {
                        self.gpu.write(pointer, &word)?;
                    }
                }
                format!("copied {count}")
            }
            ["set", count] => {
                // Sets the last bytes of the block, which hold the checksum and not the pattern.
                let pointer = self.pointer()?;
                let (_, touched) = self.blocks.values().next().context("no block")?;
                let last = pointer
                    + (touched.block.bytes as u64 & !7)
                        .checked_sub(4)
                        .context("block too small")?;
                for _ in 0..number::<u64>(count)? {
                    self.gpu.set(last, 0, 4)?;
                }
                format!("set {count}")
            }
            ["bandwidth", bytes, count] => {
                let bytes: Size = bytes.parse().map_err(anyhow::Error::msg)?;
                let took = bandwidth::measure(self.gpu, bytes.0, number(count)?)?;
                let made = took.made.map_or_else(String::new, |[made, released]| {
                    format!(" {made:.6} {released:.6}")
                });
                format!("bandwidth {:.6} {:.6}{made}", took.out, took.into)
            }
            ["sync"] => {
                self.gpu.synchronize()?;
                "synchronised".to_owned()
            }
            ["meminfo"] => {
                let (free, total) = self.gpu.memory_info()?;
                format!("meminfo {free} {total}")
            }
            ["device-total"] => format!("device-total {}", self.gpu.total_memory()?),
            _ => bail!("unknown command {:?}", words.join(" ")),
        })
    }

    fn verify(&mut self) -> Result<String> {
        for (api, touched) in self.blocks.values_mut() {
            touched.verify(self.allocators.get(api).context("no allocator")?)?;
        }
        Ok(format!("verified {}", self.blocks.len()))
    }

    fn alloc(&mut self, name: &str, bytes: &str) -> Result<String> {
        let api = Api::from_str(name, false).map_err(anyhow::Error::msg)?;
        let bytes: Size = bytes.parse().map_err(anyhow::Error::msg)?;
        let key = api as usize;
        if !self.allocators.contains_key(&key) {
            self.allocators.insert(key, Allocator::new(self.gpu, api)?);
        }
        let allocator = self.allocators.get(&key).context("no allocator")?;
        let block = match allocator.allocate(bytes.0) {
            Ok(block) => block,
            Err(error) if error.is_out_of_memory() => return Ok(format!("refused {}", error.name())),
            Err(error) => return Err(error.into()),
        };
        let (id, got) = (self.next, block.bytes);
        self.next += 1;
        let touched = Touched::write(allocator, block, id, 64 << 10)?;
        self.blocks.insert(id, (key, touched));
        Ok(format!("allocated {id} {name} {got}"))
    }

    fn free(&mut self, id: u32) -> Result<()> {
        let (api, touched) = self
            .blocks
            .remove(&id)
            .with_context(|| format!("no block {id}"))?;
        Ok(self
            .allocators
            .get(&api)
            .context("no allocator")?
            .free(touched.block)?)
    }

    fn launch(&self, count: u64, usec: u64) -> Result<String> {
        for _ in 0..count {
            self.gpu.spin(self.stream.raw, usec)?;
        }
        Ok(format!("launched {count}"))
    }

    /// Returns the address of the first block that copies can reach.
    fn pointer(&self) -> Result<u64> {
        self.blocks
            .values()
            .find_map(|(_, touched)| touched.block.pointer())
            .context("no block to copy")
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse()
        .ok()
        .with_context(|| format!("{text:?} is not a number"))
}
