//! Waits, in steps that do not block, until a device or all devices have completed this process's work.
//!
//! Must be started when no thread can submit any more: all threads have passed a memory barrier since the
//! gate was closed.

use std::sync::Arc;

use super::Compute;
use super::hold::Scope;
use crate::driver::cuda::CUerror;
use crate::driver::exit::in_driver;
use crate::program::context::{Context, Passed, PendingMarker, ask_all};
use crate::program::entry_snapshot::EntrySnapshot;

#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// Threads that are still inside a submission, on any device; `None` until captures have ended.
    inside: Option<Vec<EntrySnapshot>>,
    /// Pending markers; `None` until no thread is inside.
    markers: Option<Vec<PendingMarker>>,
}

impl Quiet {
    /// Advances the wait. Returns whether all work has completed.
    pub(crate) fn step(&mut self, compute: &Compute, scope: Scope) -> bool {
        if self.markers.is_none() && self.are_outside(compute, scope) {
            self.markers = set_markers(compute, scope);
        }
        let Some(markers) = &mut self.markers else {
            return false;
        };
        let passed = in_driver(|| ask_all(markers));
        if passed == Some(Passed::Lost) {
            // Lost markers are set again.
            self.markers
                .take()
                .into_iter()
                .flatten()
                .for_each(PendingMarker::abandon);
        }
        passed == Some(Passed::Yes)
    }

    fn are_outside(&mut self, compute: &Compute, scope: Scope) -> bool {
        // The order matters: a thread that passed the gate because it captures is inside until it has
        // submitted.
        if compute.program.contexts.captures.is_any() {
            self.inside = None;
            return false;
        }
        let inside = self
            .inside
            .get_or_insert_with(|| compute.program.slots.inside(compute.session));
        compute.program.slots.retain_inside(compute.session, inside);
        inside.is_empty()
            && !compute
                .program
                .slots
                .is_any_inside(compute.session, |index| scope.has(index))
    }

    /// Releases all markers.
    pub(crate) fn abandon(self) {
        self.markers
            .into_iter()
            .flatten()
            .for_each(PendingMarker::abandon);
    }
}

/// Returns the driver's error that prevents a needed marker from being set or polled.
pub(super) fn fault(compute: &Compute, scope: Scope) -> Option<CUerror> {
    contexts(compute, scope)
        .iter()
        .find_map(|context| context.fault())
}

/// Returns the contexts in which work for the scope may have been submitted.
fn contexts(compute: &Compute, scope: Scope) -> Vec<Arc<Context>> {
    let is_meant = |local| scope.has(compute.session.devices.index(local));
    let contexts = &compute.program.contexts;
    contexts.on(|local| is_meant(local) || compute.exec_graphs.may_be_anywhere())
}

/// Sets markers for the scope; `None` if that is not possible now.
fn set_markers(compute: &Compute, scope: Scope) -> Option<Vec<PendingMarker>> {
    let contexts = contexts(compute, scope);
    let mut markers = Vec::new();
    let set = in_driver(|| {
        contexts
            .iter()
            .map(|context| context.mark(&mut markers))
            .fold(Passed::Yes, |all, one| if all == Passed::Yes { one } else { all })
    });
    if set == Some(Passed::Yes) {
        return Some(markers);
    }
    markers.into_iter().for_each(PendingMarker::abandon);
    None
}
