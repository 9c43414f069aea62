//! Waits, in steps that do not block, until a device or all devices have completed this process's work.
//!
//! Must be started when no thread can submit any more: all threads have passed a memory barrier since the
//! gate was closed.

use std::sync::Arc;

use super::context::{Context, Mark, Passed, ask_all};
use super::elsewhere::Inside;
use super::hold::Scope;
use crate::driver::cuda::CUerror;
use crate::helper;
use crate::process::Process;

#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// Threads that are still inside a submission, on any device; `None` until captures have ended.
    inside: Option<Vec<Inside>>,
    /// Pending markers; `None` until no thread is inside.
    marks: Option<Vec<Mark>>,
}

impl Quiet {
    /// Advances the wait. Returns whether all work has completed.
    pub(crate) fn step(&mut self, process: &Process, scope: Scope) -> bool {
        if self.marks.is_none() && self.are_outside(process, scope) {
            self.marks = set_marks(process, scope);
        }
        let Some(marks) = &mut self.marks else {
            return false;
        };
        let passed = helper::in_driver(|| ask_all(marks));
        if passed == Some(Passed::Lost) {
            // Lost markers are set again.
            self.marks.take().into_iter().flatten().for_each(Mark::abandon);
        }
        passed == Some(Passed::Yes)
    }

    fn are_outside(&mut self, process: &Process, scope: Scope) -> bool {
        // The order matters: a thread that passed the gate because it captures is inside until it has
        // submitted.
        if process.contexts.captures.is_any() {
            self.inside = None;
            return false;
        }
        let inside = self.inside.get_or_insert_with(|| process.slots.inside(process));
        process.slots.retain_inside(process, inside);
        inside.is_empty() && !process.slots.is_any_inside(process, scope)
    }

    /// Releases all markers.
    pub(crate) fn abandon(self) {
        self.marks.into_iter().flatten().for_each(Mark::abandon);
    }
}

/// Returns the driver's error that prevents a needed marker from being set or polled.
pub(super) fn fault(process: &Process, scope: Scope) -> Option<CUerror> {
    contexts(process, scope)
        .iter()
        .find_map(|context| context.fault())
}

/// Returns the contexts in which work for the scope may have been submitted.
fn contexts(process: &Process, scope: Scope) -> Vec<Arc<Context>> {
    let is_meant = |local| scope.has(process.devices.index(local));
    process
        .contexts
        .on(|local| is_meant(local) || process.reach.is_feeder(local, is_meant))
}

/// Sets markers for the scope; `None` if that is not possible now.
fn set_marks(process: &Process, scope: Scope) -> Option<Vec<Mark>> {
    let contexts = contexts(process, scope);
    let mut marks = Vec::new();
    let set = helper::in_driver(|| {
        contexts
            .iter()
            .map(|context| context.mark(&mut marks))
            .fold(Passed::Yes, |all, one| if all == Passed::Yes { one } else { all })
    });
    if set == Some(Passed::Yes) {
        return Some(marks);
    }
    marks.into_iter().for_each(Mark::abandon);
    None
}
