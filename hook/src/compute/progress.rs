//! The number of completed kernels, for readers of `gcgroup.stat`.
//!
//! Only markers can tell, and they have a cost: one on the legacy stream orders the context's blocking
//! streams. So markers are set when the count is requested, and every 4 ms for 500 ms afterwards while work
//! is submitted, never for each launch. Kernels that were queued before the request are known to have
//! completed only all at once.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use gcgroup_abi::{MAX_DEVICES, Usage};

use super::Compute;
use crate::driver::exit::in_driver;
use crate::helper::Step;
use crate::program::context::{Passed, PendingMarker, ask_all, ask_each};

/// Interval between two rounds of markers, and the longest interval between two polls.
const INTERVAL: Duration = Duration::from_millis(4);
/// Delay of the first poll.
const SOON: Duration = Duration::from_micros(100);
/// How long the count is kept up to date after a request.
const LINGER: Duration = Duration::from_millis(500);
/// Most pending rounds; if more work is queued than they span, the count lags.
const MOST_ROUNDS: usize = 256;

/// One round of markers: pending markers for each device, with the number of kernels submitted before them.
#[derive(Debug, Default)]
struct Round {
    generation: u32,
    waits: Vec<(usize, u64, Vec<PendingMarker>)>,
}

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Time of the last request; `None` once it is answered and [`LINGER`] has passed.
    asked: Option<Instant>,
    generation: u32,
    /// Pending rounds, oldest first.
    rounds: VecDeque<Round>,
    /// When the last round was started.
    begun: Option<Instant>,
    pause: Duration,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            pause: SOON,
            ..Self::default()
        }
    }

    /// Advances all rounds as far as possible without waiting.
    pub(crate) fn step(&mut self, compute: &Compute) -> Step {
        let generation = compute.control().progress_generation.load(Acquire);
        let is_new = generation != self.generation;
        if is_new {
            self.generation = generation;
            self.asked = Some(Instant::now());
            self.pause = SOON;
        }
        let Some(asked) = self.asked else {
            return Step::default();
        };
        let is_answered = compute.usage().progress_generation.load(Relaxed) == generation;
        if is_answered && asked.elapsed() > LINGER {
            self.asked = None;
            self.rounds.drain(..).for_each(Round::abandon);
            return Step::default();
        }
        self.begin(compute, is_new);
        let has_news = self.look(compute);
        if self.rounds.is_empty() && has_news && self.generation == generation && !is_any_pending(compute) {
            // Idle: the next request starts a new round.
            self.asked = None;
            return Step { wake: None, has_news };
        }
        self.pause = (self.pause * 2).min(INTERVAL);
        Step {
            wake: Some(self.pause),
            has_news,
        }
    }

    /// Starts a round if there is a new request or the last round is old, and there is anything to mark.
    fn begin(&mut self, compute: &Compute, is_new: bool) {
        let is_due = is_new || self.begun.is_none_or(|begun| begun.elapsed() >= INTERVAL);
        if !is_due || self.rounds.len() >= MOST_ROUNDS {
            return;
        }
        if let Some(round) = Round::begin(compute, self.generation) {
            self.begun = Some(Instant::now());
            self.rounds.push_back(round);
        }
    }

    /// Polls the rounds. Returns whether any has completed.
    fn look(&mut self, compute: &Compute) -> bool {
        let mut has_news = false;
        while let Some(round) = self.rounds.front_mut() {
            match round.ask(compute) {
                Passed::Yes => {}
                Passed::NotYet => break,
                Passed::Lost => {
                    self.rounds.drain(..).for_each(Round::abandon);
                    self.begun = None;
                    break;
                }
            }
            let generation = round.generation;
            compute.usage().progress_generation.store(generation, Release);
            has_news = true;
            self.rounds.pop_front();
        }
        has_news
    }
}

impl Round {
    /// Sets markers on every device with pending work; `None` if that is not possible now.
    fn begin(compute: &Compute, generation: u32) -> Option<Self> {
        compute.program.slots.fold(compute.session);
        let mut round = Self {
            generation,
            waits: Vec::new(),
        };
        let set = compute
            .program
            .contexts
            .captures
            .unless_any(|| in_driver(|| round.set_markers(compute)));
        if set.flatten() == Some(true) {
            return Some(round);
        }
        round.abandon();
        None
    }

    fn set_markers(&mut self, compute: &Compute) -> bool {
        for index in 0..MAX_DEVICES {
            let Some(submitted) = pending(compute, index) else {
                continue;
            };
            let mut markers = Vec::new();
            let contexts = compute
                .program
                .contexts
                .on(|local| compute.session.devices.index(local) == index);
            let all = contexts
                .iter()
                .all(|context| context.mark(&mut markers) == Passed::Yes);
            self.waits.push((index, submitted, markers));
            if !all {
                return false;
            }
        }
        true
    }

    /// Polls every marker and publishes a device's count when its markers have passed. `Lost` if any marker
    /// is lost.
    fn ask(&mut self, compute: &Compute) -> Passed {
        let asked = in_driver(|| {
            ask_each(&mut self.waits, |(index, submitted, markers)| {
                let passed = ask_all(markers);
                if passed == Passed::Yes {
                    ended(compute.usage(), *index, *submitted);
                }
                passed
            })
        });
        asked.unwrap_or(Passed::NotYet)
    }

    fn abandon(self) {
        self.waits
            .into_iter()
            .flat_map(|(.., markers)| markers)
            .for_each(PendingMarker::abandon);
    }
}

/// Returns the number of kernels submitted to a device, if any is not known to have completed.
fn pending(compute: &Compute, index: usize) -> Option<u64> {
    let submitted = compute.usage().kernels(index);
    let ended = compute.usage().devices.get(index)?.nr_ended.load(Relaxed);
    (submitted != ended).then_some(submitted)
}

fn is_any_pending(compute: &Compute) -> bool {
    (0..MAX_DEVICES).any(|index| pending(compute, index).is_some())
}

/// Publishes that `count` kernels on a device have completed.
pub(crate) fn ended(usage: &Usage, index: usize, count: u64) {
    if let Some(usage) = usage.devices.get(index) {
        usage.nr_ended.fetch_max(count, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::block;
    use crate::shared::device::LocalDevice;
    use gcgroup_abi::{NO_LIMIT, OTHER_DEVICE, Submission};

    #[test]
    fn request_is_answered_once() {
        let compute = Compute::of_test(NO_LIMIT);
        let (control, file) = block::of_daemon();
        control.publish();
        compute.adopt(&file);
        let mut progress = Progress::new();
        assert_eq!(progress.step(compute), Step::default(), "no request");
        let slot = compute
            .program
            .slots
            .of_test(compute.session, LocalDevice::of(0).unwrap(), OTHER_DEVICE);
        slot.submit(Submission::Kernel, 3);
        control.progress_generation.store(1, Relaxed);
        let step = progress.step(compute);
        assert_eq!(
            step,
            Step {
                wake: None,
                has_news: true
            }
        );
        let usage = compute.usage();
        assert_eq!(
            usage.devices[OTHER_DEVICE].nr_ended.load(Relaxed),
            3,
            "no context is left that runs them"
        );
        assert_eq!(usage.progress_generation.load(Relaxed), 1);
        assert_eq!(progress.step(compute), Step::default());
    }
}
