//! Work for the device: let through, counted, held back.
//!
//! The handlers of submissions are in `calls`, among them `fast`, the path while the gate is open. `gate` is
//! what a submission does at a gate that is not open; `call` and `named` say what it concerns, `elsewhere` on
//! which devices that is. `meter` measures for how long there was work, `sample` what it cost, `graph_exec`
//! knows how many kernels a graph has; `drain`, `progress`, `watch` and `measure` wait for work in the helper
//! thread.
//!
#![doc = include_str!("compute/freezing.md")]

pub mod call;
pub mod drain;
pub mod elsewhere;
pub mod gate;
pub mod graph_exec;
pub mod hold;
pub(crate) mod measure;
pub mod meter;
pub mod named;
pub mod progress;
pub mod quiet;
pub(crate) mod sample;
pub mod wait;
pub mod watch;

use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};

use gcgroup_abi::{Control, Gate, MAX_DEVICES, Usage};

use crate::driver::exit::in_driver;
use crate::program::Program;
use crate::shared::session::Session;
use crate::sys;
use graph_exec::ExecGraphs;
use hold::{Holds, Scope};
use meter::Meter;
use sample::{Progress, Sampler, Seen};

/// States of gates, by device.
pub(crate) type Gates = [Gate; MAX_DEVICES];

/// The process's submissions and what they depend on.
#[derive(Debug)]
pub(crate) struct Compute {
    pub(crate) session: &'static Session,
    pub(crate) program: &'static Program,
    pub(crate) exec_graphs: ExecGraphs,
    pub(crate) holds: Holds,
    /// Indexed by device.
    meters: [Meter; MAX_DEVICES],
    samplers: [Sampler; MAX_DEVICES],
}

impl Compute {
    pub(crate) fn new(program: &'static Program) -> Self {
        Self {
            session: program.session,
            program,
            exec_graphs: ExecGraphs::default(),
            holds: Holds::new(),
            meters: [const { Meter::new() }; MAX_DEVICES],
            samplers: std::array::from_fn(|_| Sampler::new()),
        }
    }

    #[inline]
    pub(crate) fn usage(&self) -> &Usage {
        self.session.usage()
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        self.session.control()
    }

    /// Returns the states of the gates. A round of the helper reads them once: where a gate has changed,
    /// either `watch` or `measure` ends and the other begins.
    pub(crate) fn gates(&self) -> Gates {
        let devices = self.control().devices.each_ref();
        devices.map(|device| Gate::from_word(device.gate.load(Acquire)))
    }

    /// Evaluates samples of the device with that index, and publishes the GPU time of its submissions.
    /// `passed`: nanoseconds since the last look. Called in the helper.
    fn account(&self, index: usize, progress: Progress, passed: u64) {
        let (Some(sampler), Some((usage, control))) = (self.samplers.get(index), self.session.device(index))
        else {
            return;
        };
        let nr_others = control.nr_others.load(Relaxed);
        let excess = in_driver(|| sampler.settle(nr_others)).unwrap_or(0);
        sampler.decide(sys::now());
        let (sampling, charged, nsec) = sampler.nr_pending();
        let all = self.program.slots.entered(self.session, index);
        let more = sampler.advance(&Seen {
            sampling,
            entered: std::array::from_fn(|what| all[what].wrapping_sub(charged[what])),
            charged: (charged, nsec),
            passed,
            progress,
            is_shared: nr_others != 0,
        });
        usage
            .submitted_nsec
            .fetch_add(more.cast_unsigned().wrapping_sub(excess), Relaxed);
    }

    /// Corrects the published GPU time of a device when all of its submissions of unknown cost have ended.
    fn settle_unknown(&self, index: usize) {
        if let (Some(sampler), Some(usage)) = (self.samplers.get(index), self.usage().devices.get(index)) {
            usage.submitted_nsec.fetch_sub(sampler.end_unknown(), Relaxed);
        }
    }

    /// Blocks new submissions to the devices. The caller must wait for threads already inside a submission.
    pub(crate) fn hold(&self, scope: Scope) {
        self.holds.close(scope);
        self.program.slots.watch(self.session, true);
        sys::barrier();
    }
}

#[cfg(test)]
impl Compute {
    /// Returns the compute engine of a process without a daemon, a helper or a driver; `limit` is the memory
    /// limit for all devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        Box::leak(Box::new(Self::new(Program::of_test(limit))))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &std::os::fd::OwnedFd) {
        self.program.adopt(control);
    }
}
