//! Waiting, in steps that do not wait, until a device, or all of them, have nothing of this process's to do.
//!
//! To be begun when no thread can submit any more: all have passed a memory barrier since the gate was
//! closed.

use std::sync::Arc;

use super::context::{Context, Mark, Passed, ask_all};
use super::elsewhere::Inside;
use super::hold::Scope;
use crate::cuda::CUerror;
use crate::helper;
use crate::process::Process;

#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// Of those who were inside submissions, on whatever device, when nobody captured any more, who is yet.
    inside: Option<Vec<Inside>>,
    /// Marks that have not passed; `None` until no thread is inside.
    marks: Option<Vec<Mark>>,
}

impl Quiet {
    /// Whether all of it has ended.
    pub(crate) fn step(&mut self, process: &Process, scope: Scope) -> bool {
        if self.marks.is_none() && self.are_outside(process, scope) {
            self.marks = set_marks(process, scope);
        }
        let Some(marks) = &mut self.marks else {
            return false;
        };
        let passed = helper::in_driver(|| ask_all(marks));
        if passed == Some(Passed::Lost) {
            // They are set anew.
            self.marks.take().into_iter().flatten().for_each(Mark::abandon);
        }
        passed == Some(Passed::Yes)
    }

    fn are_outside(&mut self, process: &Process, scope: Scope) -> bool {
        // In this order: a thread that passed the gate because it captures is inside until it has submitted.
        if process.contexts.captures.is_any() {
            self.inside = None;
            return false;
        }
        let inside = self.inside.get_or_insert_with(|| process.slots.inside(process));
        process.slots.retain_inside(process, inside);
        inside.is_empty() && !process.slots.is_any_inside(process, scope)
    }

    /// Gives up.
    pub(crate) fn abandon(self) {
        self.marks.into_iter().flatten().for_each(Mark::abandon);
    }
}

/// Returns the driver's error that keeps a mark on what is waited for from being set or from being looked at.
pub(super) fn fault(process: &Process, scope: Scope) -> Option<CUerror> {
    contexts(process, scope)
        .iter()
        .find_map(|context| context.fault())
}

/// The contexts in which work for the scope may have been submitted.
fn contexts(process: &Process, scope: Scope) -> Vec<Arc<Context>> {
    let is_meant = |local| scope.has(process.devices.index(local));
    process
        .contexts
        .on(|local| is_meant(local) || process.reach.is_feeder(local, is_meant))
}

/// `None` if that cannot be done now.
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
