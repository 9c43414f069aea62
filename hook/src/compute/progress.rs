//! How many kernels have ended, for whoever reads `gcgroup.stat`.
//!
//! Only marks can tell, and marks cost: one on the legacy stream lines the context's blocking streams up. So they are set
//! when somebody asks, and for a while after as long as something is pending, never for each launch.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{MAX_DEVICES, Submission};

use super::Step;
use super::contexts::{Mark, Passed};
use crate::cuda::CUresult;
use crate::helper;
use crate::interpose::{self, Next};
use crate::process::{self, Process};

/// Between two rounds of marks, and the longest between two looks at them.
const INTERVAL: Duration = Duration::from_millis(10);
/// How soon marks are looked at first.
const SOON: Duration = Duration::from_micros(100);
/// How long after somebody asked the count is kept up.
const LINGER: Duration = Duration::from_millis(500);

/// Marks that are waited for: per device, with how many kernels had been submitted before.
#[derive(Debug, Default)]
struct Round {
    generation: u32,
    waits: Vec<(usize, u64, Vec<Mark>)>,
}

#[derive(Debug)]
pub(crate) struct Progress {
    /// What was last asked and when; `None` once it is answered and nothing is pending.
    asked: Option<Instant>,
    generation: u32,
    round: Option<Round>,
    pause: Duration,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            asked: None,
            generation: 0,
            round: None,
            pause: SOON,
        }
    }

    /// Goes on as far as it gets without waiting.
    pub(crate) fn step(&mut self, process: &Process) -> Step {
        let generation = process.control().progress_generation.load(Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.asked = Some(Instant::now());
            self.pause = SOON;
        }
        let Some(asked) = self.asked else {
            return Step::default();
        };
        let is_answered = process.usage().progress_generation.load(Relaxed) == generation;
        if is_answered && asked.elapsed() > LINGER {
            self.asked = None;
            self.round.take().into_iter().for_each(Round::abandon);
            return Step::default();
        }
        let round = self.round.take().or_else(|| Round::begin(process, generation));
        let Some(mut round) = round else {
            return Step {
                wake: Some(INTERVAL),
                has_news: false,
            };
        };
        if !round.is_over(process) {
            self.round = Some(round);
            self.pause = (self.pause * 2).min(INTERVAL);
            return Step {
                wake: Some(self.pause),
                has_news: false,
            };
        }
        process
            .usage()
            .progress_generation
            .store(round.generation, Release);
        let is_idle = round.generation == generation && !is_any_pending(process);
        if is_idle {
            self.asked = None;
        }
        Step {
            wake: (!is_idle).then_some(INTERVAL),
            has_news: true,
        }
    }
}

impl Round {
    /// Marks every device on which something is pending; `None` if that cannot be done now.
    fn begin(process: &Process, generation: u32) -> Option<Self> {
        process.slots.fold(process);
        let mut round = Self {
            generation,
            waits: Vec::new(),
        };
        let set = process
            .contexts
            .captures
            .unless_any(|| helper::in_driver(|| round.set_marks(process)));
        if set.flatten() == Some(true) {
            return Some(round);
        }
        round.abandon();
        None
    }

    fn set_marks(&mut self, process: &Process) -> bool {
        for index in 0..MAX_DEVICES {
            let Some(submitted) = pending(process, index) else {
                continue;
            };
            let mut marks = Vec::new();
            let contexts = process.contexts.on(|local| process.devices.index(local) == index);
            let all = contexts
                .iter()
                .all(|context| context.mark(&mut marks) == Passed::Yes);
            self.waits.push((index, submitted, marks));
            if !all {
                return false;
            }
        }
        true
    }

    /// Whether every mark has passed; each device that has is told of at once.
    fn is_over(&mut self, process: &Process) -> bool {
        helper::in_driver(|| {
            self.waits.retain_mut(|(index, submitted, marks)| {
                marks.retain_mut(|mark| mark.ask() == Passed::NotYet);
                if marks.is_empty() {
                    ended(process, *index, *submitted);
                }
                !marks.is_empty()
            });
        });
        self.waits.is_empty()
    }

    fn abandon(self) {
        self.waits
            .into_iter()
            .flat_map(|(.., marks)| marks)
            .for_each(Mark::abandon);
    }
}

/// How many kernels were submitted there, if any is not known to have ended.
fn pending(process: &Process, index: usize) -> Option<u64> {
    let submitted = process.usage().submitted(index, Submission::Kernel);
    let ended = process.usage().devices.get(index)?.nr_ended.load(Relaxed);
    (submitted != ended).then_some(submitted)
}

fn is_any_pending(process: &Process) -> bool {
    (0..MAX_DEVICES).any(|index| pending(process, index).is_some())
}

fn ended(process: &Process, index: usize, count: u64) {
    if let Some(usage) = process.usage().devices.get(index) {
        usage.nr_ended.fetch_max(count, Relaxed);
    }
}

/// `cuCtxSynchronize`: if the process has no other context on the device, what was submitted has ended.
pub(crate) fn synchronize(next: Next<'_>) -> CUresult {
    let Some(process) = process::get() else {
        return next();
    };
    let before = process.slots.current(process).map(|bound| {
        process.slots.fold(process);
        (
            bound.index(),
            process.usage().submitted(bound.index(), Submission::Kernel),
        )
    });
    interpose::uncanceled(next)?;
    if let Some((index, submitted)) = before
        && process
            .contexts
            .on(|local| process.devices.index(local) == index)
            .len()
            == 1
    {
        ended(process, index, submitted);
    }
    process.memory.pools.settle_all(process);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block;
    use crate::device::LocalDevice;
    use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE};

    #[test]
    fn who_asks_is_answered_once_and_then_left_alone() {
        let process = Process::of_test(NO_LIMIT);
        let (control, file) = block::of_daemon();
        control.publish();
        process.adopt(&file);
        let mut progress = Progress::new();
        assert_eq!(progress.step(process), Step::default(), "nobody asked");
        let slot = process
            .slots
            .of_test(process, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        slot.submit(Submission::Kernel, 3);
        control.progress_generation.store(1, Relaxed);
        let step = progress.step(process);
        assert_eq!(
            step,
            Step {
                wake: None,
                has_news: true
            }
        );
        let usage = process.usage();
        assert_eq!(
            usage.devices[OTHER_DEVICE].nr_ended.load(Relaxed),
            3,
            "no context is left that runs them"
        );
        assert_eq!(usage.progress_generation.load(Relaxed), 1);
        assert_eq!(progress.step(process), Step::default());
    }
}
