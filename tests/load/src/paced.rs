//! `paced`: a program that launches, waits, computes on the CPU, and launches again.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::gpu::{Event, Gpu, Stream};
use crate::graph::Graph;
use crate::kernels::{self, Kernels};
use crate::say;
use crate::stats::{quantile, sorted};

/// Pauses up to this length are spent computing: sleeps would end late.
const COMPUTED: Duration = Duration::from_micros(400);

/// How a step waits for its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    Synchronize,
    /// `cuEventSynchronize`.
    Event,
    /// `cuEventQuery` until it succeeds.
    Poll,
    /// A copy of 64 bytes to pageable host memory.
    Copy,
    /// A host function that sets a flag.
    Host,
}

#[derive(Debug, Args)]
pub(crate) struct Paced {
    #[command(flatten)]
    kernels: kernels::Arguments,
    /// Microseconds that each kernel runs
    #[arg(long, default_value_t = 10)]
    kernel_usec: u64,
    /// Microseconds from the end of a wait to the next launch
    #[arg(long, default_value_t = 100)]
    pause_usec: u64,
    /// How each step waits
    #[arg(long, value_enum, default_value_t = Way::Synchronize)]
    way: Way,
    /// Launch a graph of this many kernels in place of a kernel
    #[arg(long, default_value_t = 0)]
    graph: u16,
    /// Launch on the per-thread default stream
    #[arg(long)]
    per_thread: bool,
    /// Stop after this many seconds
    #[arg(long, default_value_t = 2.0)]
    duration: f64,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    steps: usize,
    kernels: usize,
    /// GPU time of all steps if the kernels of a step on several streams run at once.
    busy_usec: u64,
    /// Time of the first launch of a step, and of a step from there to the end of its wait.
    launch_p50_usec: f64,
    step_p50_usec: f64,
    step_p99_usec: f64,
    seconds: f64,
}

pub(crate) fn run(args: &Paced, gpu: &Gpu) -> Result<()> {
    let kernels = Kernels::new(&args.kernels, gpu)?;
    let own = Stream::per_thread(gpu);
    let streams: Vec<&Stream<'_>> = match args.per_thread {
        true => vec![&own],
        false => kernels.streams.iter().collect(),
    };
    let step = Step::new(args, &kernels, &streams)?;
    // The first step includes the driver's lazy initialisation.
    step.launch(0)?;
    step.wait()?;
    // SAFETY: affects only the timers of this thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    say::line("ready")?;
    let (mut launches, mut steps) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let until = Duration::from_secs_f64(args.duration);
    while start.elapsed() < until {
        let began = Instant::now();
        step.launch(0)?;
        launches.push(began.elapsed().as_secs_f64() * 1e6);
        (1..streams.len()).try_for_each(|at| step.launch(at))?;
        step.wait()?;
        steps.push(began.elapsed().as_secs_f64() * 1e6);
        rest(Duration::from_micros(args.pause_usec));
    }
    let seconds = start.elapsed().as_secs_f64();
    let each = u64::from(args.graph.max(1));
    let (launches, took) = (sorted(launches), sorted(steps));
    say::result(&Report {
        command: "paced",
        steps: took.len(),
        kernels: took.len() * streams.len() * usize::from(args.graph.max(1)),
        busy_usec: took.len() as u64 * each * args.kernel_usec,
        launch_p50_usec: quantile(&launches, 0.5),
        step_p50_usec: quantile(&took, 0.5),
        step_p99_usec: quantile(&took, 0.99),
        seconds,
    })
}

/// Kernels or graphs of a step, and its wait.
struct Step<'a, 'g> {
    args: &'a Paced,
    kernels: &'a Kernels<'g>,
    streams: &'a [&'a Stream<'g>],
    /// One for each stream, if graphs are launched.
    graphs: Vec<Graph<'g>>,
    event: Event<'g>,
    memory: u64,
    flag: AtomicBool,
}

impl<'a, 'g> Step<'a, 'g> {
    fn new(args: &'a Paced, kernels: &'a Kernels<'g>, streams: &'a [&'a Stream<'g>]) -> Result<Self> {
        let launch =
            |stream: &Stream<'_>| (0..args.graph).try_for_each(|_| kernels.launch(stream, args.kernel_usec));
        let capture = |stream: &&'a Stream<'g>| Graph::capture(kernels.gpu, stream, || launch(stream));
        let graphs = if args.graph > 0 { streams } else { &[] };
        Ok(Self {
            args,
            kernels,
            streams,
            graphs: graphs.iter().map(capture).collect::<Result<_, _>>()?,
            event: Event::new(kernels.gpu)?,
            memory: kernels.gpu.alloc(64)?,
            flag: AtomicBool::new(false),
        })
    }

    fn launch(&self, at: usize) -> Result<()> {
        let stream = self.streams[at];
        match self.graphs.get(at) {
            Some(graph) => graph.launch(stream)?,
            None => self.kernels.launch(stream, self.args.kernel_usec)?,
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let [others @ .., last] = self.streams else {
            return Ok(());
        };
        match self.args.way {
            Way::Synchronize => self.kernels.gpu.synchronize()?,
            Way::Event => {
                self.event.record(last)?;
                self.event.synchronize()?;
            }
            Way::Poll => {
                self.event.record(last)?;
                while !self.event.has_passed()? {
                    spin_loop();
                }
            }
            Way::Copy => last.read(self.memory, &mut [0; 64])?,
            Way::Host => {
                self.flag.store(false, Relaxed);
                // SAFETY: the flag outlives the wait below.
                unsafe { last.set(&self.flag) }?;
                while !self.flag.load(Acquire) {
                    spin_loop();
                }
            }
        }
        Ok(others.iter().try_for_each(|stream| stream.synchronize())?)
    }
}

fn rest(pause: Duration) {
    let began = Instant::now();
    if pause > COMPUTED {
        std::thread::sleep(pause);
    }
    while began.elapsed() < pause {
        spin_loop();
    }
}
