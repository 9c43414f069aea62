//! Markers of a context: how and on which streams they are set, and how their passing is detected.

use std::sync::Arc;

use super::{Context, Inner};
use crate::driver;
use crate::driver::cuda::{CUerror, CUgreenCtx, CUstream};
use crate::driver::streams::{LEGACY, PER_THREAD, is_capturing, stream};
use crate::program::marker::{Look, Marker, Markers, is_over};

/// A marker in a context's work. It passes when all work submitted before has ended.
#[derive(Debug, Clone)]
pub(crate) struct PendingMarker {
    context: Arc<Context>,
    marker: Marker,
    /// Set if its stream was destroyed after it was set: then several rounds may wait for it.
    is_orphan: bool,
    asked: u32,
    /// Consecutive polls at which the driver gave no answer.
    failed: u32,
}

/// Work that a stream leaves behind when it is destroyed.
#[derive(Debug, Clone)]
pub(crate) enum Left {
    Nothing,
    /// Work, with a marker behind it.
    Marker(PendingMarker),
    /// Possibly work, but no marker could be set.
    Unknown,
}

/// Interval, in polls, at which it is checked whether the context can still run anything.
const DOUBT: u32 = 16;
/// Consecutive failed polls after which a marker counts as lost.
const MOST_FAILED: u32 = 16;

/// Result of polling or setting markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    Yes,
    NotYet,
    /// The driver keeps failing to answer. The next marker is of the other kind.
    Lost,
}

/// Polls each marker and keeps those that have not passed. `Yes` if none is left, `Lost` if any is lost.
pub(crate) fn ask_all(pending: &mut Vec<PendingMarker>) -> Passed {
    ask_each(pending, PendingMarker::ask)
}

/// Polls each item of a list by `ask` and keeps those that have not passed. `Yes` if none is left, `Lost` if
/// any is lost.
pub(crate) fn ask_each<T>(list: &mut Vec<T>, mut ask: impl FnMut(&mut T) -> Passed) -> Passed {
    let mut is_lost = false;
    list.retain_mut(|item| {
        let passed = ask(item);
        is_lost |= passed == Passed::Lost;
        passed != Passed::Yes
    });
    match list.is_empty() {
        _ if is_lost => Passed::Lost,
        true => Passed::Yes,
        false => Passed::NotYet,
    }
}

/// Returns whether a stream that cannot be marked (for example of a green context) has no work left.
fn is_idle(number: usize) -> bool {
    number == LEGACY || driver::cuStreamQuery(stream(number)) != Err(CUerror::NOT_READY)
}

impl Context {
    /// Leaves a marker behind on a stream that is to be destroyed, unless it is known to be idle.
    pub(super) fn leave_marker(self: &Arc<Self>, inner: &mut Inner, leaving: CUstream) -> Left {
        if driver::cuStreamQuery(leaving).is_ok() {
            return Left::Nothing;
        }
        let Ok(marker) = self.markers.set(leaving) else {
            return Left::Unknown;
        };
        match &self.base {
            Some((base, _)) => base.inner.lock().orphans.push(marker),
            None => inner.orphans.push(marker),
        }
        Left::Marker(PendingMarker::new(self, marker, true))
    }

    /// Leaves a marker behind on a part that is about to be destroyed: its work may run on.
    pub(crate) fn leave_markers(self: &Arc<Self>) -> Left {
        let Some((base, _)) = &self.base else {
            return Left::Nothing;
        };
        let mut left = Left::Unknown;
        self.visit(|inner| {
            let captures = |entry: &(usize, bool)| is_capturing(stream(entry.0)) != Some(false);
            if inner.streams.iter().any(captures) {
                return Passed::NotYet;
            }
            let orphans = &mut base.inner.lock().orphans;
            // Removed here too, so that they do not accumulate if none polls them.
            orphans.retain(|orphan| {
                let has_passed = self.markers.has_passed(*orphan);
                if has_passed {
                    self.markers.give_back(*orphan);
                }
                !has_passed
            });
            let marker = self.green().map(|green| self.markers.record_green(green));
            if let Some(Ok(marker)) = marker {
                orphans.push(marker);
                left = Left::Marker(PendingMarker::new(self, marker, true));
            }
            Passed::Yes
        });
        left
    }

    /// Adds markers for all work submitted until now to `pending`; `NotYet` if not all could be set.
    ///
    /// Needs no marker on the default stream if the driver is of CUDA 12.5 or newer: blocking streams would
    /// wait for that marker, which waits for them, and if one of them waits for another, neither would ever
    /// proceed.
    pub(crate) fn mark(self: &Arc<Self>, pending: &mut Vec<PendingMarker>) -> Passed {
        self.visit(|inner| {
            let own = inner.streams.iter().filter(|entry| entry.1).map(|entry| entry.0);
            self.mark_all(inner, std::iter::once(LEGACY).chain(own), pending)
        })
    }

    /// Marks the whole context, or these streams if the driver cannot do that.
    fn mark_all(
        self: &Arc<Self>,
        inner: &Inner,
        streams: impl Iterator<Item = usize>,
        pending: &mut Vec<PendingMarker>,
    ) -> Passed {
        if let Some(green) = self.green() {
            return self.mark_green(green, pending);
        }
        if let Ok(marker) = self.markers.record_context(self.handle()) {
            pending.push(PendingMarker::new(self, marker, false));
            self.mark_orphans(&inner.orphans, pending);
            return Passed::Yes;
        }
        self.mark_each(inner, streams, pending)
    }

    /// Adds markers for everything in flight that no stream waits for; `None` if the driver has set none.
    pub(crate) fn mark_whole(self: &Arc<Self>, pending: &mut Vec<PendingMarker>) -> Option<Passed> {
        let mut is_set = true;
        let marked = self.visit(|inner| {
            if let Some(green) = self.green() {
                return self.mark_green(green, pending);
            }
            let Ok(marker) = self.markers.record_context(self.handle()) else {
                is_set = false;
                return Passed::NotYet;
            };
            pending.push(PendingMarker::new(self, marker, false));
            self.mark_orphans(&inner.orphans, pending);
            Passed::Yes
        });
        is_set.then_some(marked)
    }

    /// Adds markers for the work on those of `streams` that still exist, and on all destroyed ones. Marks the
    /// whole context for a default stream, as [`Self::mark`] does.
    pub(crate) fn mark_streams(
        self: &Arc<Self>,
        streams: &[usize],
        pending: &mut Vec<PendingMarker>,
    ) -> Passed {
        self.visit(|inner| {
            self.markers.prepare();
            let known: Vec<usize> = streams
                .iter()
                .map(|stream| if *stream == PER_THREAD { LEGACY } else { *stream })
                .filter(|stream| inner.has(*stream))
                .collect();
            match known.contains(&LEGACY) {
                true => self.mark_all(inner, known.into_iter(), pending),
                false => self.mark_each(inner, known.into_iter(), pending),
            }
        })
    }

    fn mark_each(
        self: &Arc<Self>,
        inner: &Inner,
        streams: impl Iterator<Item = usize>,
        pending: &mut Vec<PendingMarker>,
    ) -> Passed {
        let mut all = Passed::Yes;
        for number in streams {
            match self.set_marker(number) {
                Ok(marker) => pending.push(PendingMarker::new(self, marker, false)),
                Err(error) if is_over(error) && is_idle(number) => {}
                Err(error) => {
                    self.markers.note_fault(error);
                    self.markers.lose_events(false);
                    all = Passed::NotYet;
                }
            }
        }
        match &self.base {
            Some((base, _)) => self.mark_orphans(&base.inner.lock().orphans, pending),
            None => self.mark_orphans(&inner.orphans, pending),
        }
        all
    }

    /// Marks a stream by a word if the words are prepared or an event cannot be set, else by an event.
    fn set_marker(&self, number: usize) -> Result<Marker, CUerror> {
        let set = self.markers.set(stream(number));
        set.or_else(|error| {
            if is_over(error) {
                return Err(error);
            }
            self.markers.prepare();
            self.markers.set(stream(number))
        })
    }

    /// Marks all work submitted to a part, on any of its streams.
    fn mark_green(self: &Arc<Self>, green: CUgreenCtx, pending: &mut Vec<PendingMarker>) -> Passed {
        if let Some((base, _)) = &self.base {
            self.mark_orphans(&base.inner.lock().orphans, pending);
        }
        match self.markers.record_green(green) {
            Ok(marker) => pending.push(PendingMarker::new(self, marker, false)),
            Err(error) if is_over(error) && error != CUerror::INVALID_HANDLE => {}
            Err(error) => {
                self.markers.note_fault(error);
                self.markers.lose_events(false);
                return Passed::NotYet;
            }
        }
        Passed::Yes
    }

    /// Adds the markers of destroyed streams.
    fn mark_orphans(self: &Arc<Self>, orphans: &[Marker], pending: &mut Vec<PendingMarker>) {
        pending.extend(
            orphans
                .iter()
                .map(|marker| PendingMarker::new(self, *marker, true)),
        );
    }

    /// Sets a marker on a stream of this context, which the calling thread has current; `None` if that cannot
    /// be done now. A stream that is being captured is not marked: the marker would become part of the graph.
    pub(crate) fn mark_own(self: &Arc<Self>, number: usize, is_in_use: bool) -> Option<PendingMarker> {
        // The holder of the lock may be in the driver, behind work that waits for this thread.
        let inner = self.inner.try_lock()?;
        if inner.is_gone || inner.leaving != 0 || !(is_in_use || inner.has(number)) {
            return None;
        }
        if is_capturing(stream(number)) != Some(false) {
            return None;
        }
        let marker = self.markers.set(stream(number)).ok()?;
        Some(PendingMarker::new(self, marker, false))
    }
}

impl PendingMarker {
    fn new(context: &Arc<Context>, marker: Marker, is_orphan: bool) -> Self {
        Self {
            context: Arc::clone(context.base()),
            marker,
            is_orphan,
            asked: 0,
            failed: 0,
        }
    }

    /// Polls the marker. After `Yes` it must not be used again.
    pub(crate) fn ask(&mut self) -> Passed {
        self.asked += 1;
        let is_word = matches!(self.marker, Marker::Word { .. });
        if is_word && !self.is_orphan {
            if self.context.markers.has_passed(self.marker) {
                self.context.markers.give_back(self.marker);
                return Passed::Yes;
            }
            if !self.asked.is_multiple_of(DOUBT) {
                return Passed::NotYet;
            }
        }
        let context = Arc::clone(&self.context);
        context.visit(|inner| {
            if self.is_orphan && !inner.orphans.contains(&self.marker) {
                return Passed::Yes;
            }
            let look = context.markers.look(self.marker);
            self.failed = if look == Look::Failed { self.failed + 1 } else { 0 };
            if self.failed == MOST_FAILED {
                context.markers.lose_events(true);
                return Passed::Lost;
            }
            if look != Look::Passed && !(is_word && Markers::are_dead()) {
                return Passed::NotYet;
            }
            inner.orphans.retain(|orphan| *orphan != self.marker);
            context.markers.give_back(self.marker);
            Passed::Yes
        })
    }

    /// Returns whether the marker has passed, for a thread that must not wait for a lock or for the driver.
    pub(crate) fn has_passed(&self) -> bool {
        self.context.markers.has_passed(self.marker)
    }

    /// Releases the marker without waiting for it.
    pub(crate) fn abandon(self) {
        if !self.is_orphan {
            self.context.markers.give_back(self.marker);
        }
    }
}

#[cfg(test)]
impl Context {
    pub(in crate::program) fn mark_by_hand(self: &Arc<Self>, marker: Marker) -> PendingMarker {
        PendingMarker::new(self, marker, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_over_only_for_errors_that_stop_a_context() {
        let is_over = |number: u32| is_over(CUerror(number.try_into().unwrap()));
        // Bad address, assertion, uncorrectable memory or link error, fault of another device.
        for number in [700, 710, 719, 721, 214, 220, 226, 810, 911, 709] {
            assert!(is_over(number), "{number}");
        }
        // Out of memory, not ready, captures, not supported, unknown.
        for number in [2, 600, 720, 800, 801, 900, 901, 906, 907, 999] {
            assert!(!is_over(number), "{number}");
        }
    }
}
