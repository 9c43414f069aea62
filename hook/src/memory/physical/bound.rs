//! Bindings of physical memory to multicast objects and sparse arrays.

use hashbrown::HashMap;

use super::Number;
use crate::memory::ledger::Entry;
use crate::memory::stream::{Order, Reached, Stream};

/// A multicast object or array to which memory is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Binder {
    /// A multicast object, by its number here.
    Multicast(Number),
    /// A sparse array or mipmapped array, by its handle.
    Array(u64),
}

/// The part of it: one level and layer, or one device, and a region of up to three dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) group: [u32; 3],
    pub(crate) start: [u64; 3],
    pub(crate) extent: [u64; 3],
}

/// One binding, with the entry by which it is shown.
#[derive(Debug)]
pub(super) struct Binding {
    parts: Vec<Region>,
    pub(super) object: Number,
    pub(super) shown: Option<Entry>,
}

impl Region {
    fn end(&self, axis: usize) -> u64 {
        self.start[axis].saturating_add(self.extent[axis])
    }

    /// Returns what is left without `other`: nothing, or up to six parts.
    fn without(self, other: &Self) -> Vec<Self> {
        let apart = |axis| self.end(axis) <= other.start[axis] || other.end(axis) <= self.start[axis];
        if self.group != other.group || (0..3).any(apart) {
            return vec![self];
        }
        let (mut rest, mut left) = (self, Vec::new());
        for axis in 0..3 {
            // The parts before and after it along the axis.
            let (from, to) = (
                rest.start[axis].max(other.start[axis]),
                rest.end(axis).min(other.end(axis)),
            );
            for (start, end) in [(rest.start[axis], from), (to, rest.end(axis))] {
                if start < end {
                    let mut part = rest;
                    (part.start[axis], part.extent[axis]) = (start, end - start);
                    left.push(part);
                }
            }
            (rest.start[axis], rest.extent[axis]) = (from, to - from);
        }
        left
    }
}

impl Binding {
    /// Removes a region; returns whether nothing is left.
    fn cut(&mut self, region: &Region) -> bool {
        let parts = std::mem::take(&mut self.parts);
        self.parts = parts.into_iter().flat_map(|part| part.without(region)).collect();
        self.parts.is_empty()
    }
}

/// All bindings. A caller that removes one drops the hold on its object.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    bound: HashMap<Binder, Vec<Binding>>,
    /// Bindings that end when a stream reaches the call that ends them.
    waiting: Vec<(Order, Binding)>,
}

impl Bindings {
    pub(super) fn add(&mut self, to: Binder, region: Region, object: Number, shown: Option<Entry>) {
        let binding = Binding {
            parts: vec![region],
            object,
            shown,
        };
        self.bound.entry(to).or_default().push(binding);
    }

    /// Removes a region of what is bound; returns the bindings of which nothing is left.
    pub(super) fn cut(&mut self, from: Binder, region: &Region) -> Vec<Binding> {
        let Some(all) = self.bound.get_mut(&from) else {
            return Vec::new();
        };
        let taken = all.extract_if(.., |binding| binding.cut(region)).collect();
        if all.is_empty() {
            self.bound.remove(&from);
        }
        taken
    }

    /// Removes a region of what is bound; bindings of which nothing is left end when a stream reaches the
    /// call.
    pub(super) fn cut_after(&mut self, order: Order, from: Binder, region: &Region) {
        let ending = self.cut(from, region);
        self.waiting
            .extend(ending.into_iter().map(|binding| (order, binding)));
    }

    /// Removes and returns the bindings that waited for what streams have reached.
    pub(super) fn passed(&mut self, reached: Reached<'_>) -> Vec<Binding> {
        let over = self.waiting.extract_if(.., |(order, _)| reached.has(order));
        over.map(|(_, binding)| binding).collect()
    }

    /// Returns the streams that bindings wait for, one for each binding.
    pub(super) fn waits_for(&self) -> Vec<Stream> {
        self.waiting.iter().map(|(order, _)| order.stream).collect()
    }

    /// Has bindings that wait for a stream wait for another one; returns whether there are any.
    pub(super) fn replace(&mut self, stream: Stream, by: Stream) -> bool {
        let waiting = self
            .waiting
            .iter_mut()
            .filter(|(order, _)| order.stream == stream);
        waiting.map(|(order, _)| order.stream = by).count() != 0
    }

    /// Removes and returns all bindings of a binder.
    pub(super) fn remove(&mut self, from: Binder) -> Vec<Binding> {
        if self.bound.is_empty() {
            return Vec::new();
        }
        self.bound.remove(&from).unwrap_or_default()
    }

    /// Returns every shown entry.
    pub(super) fn shown(&mut self) -> impl Iterator<Item = &mut Entry> {
        let bound = self.bound.values_mut().flatten();
        let waiting = self.waiting.iter_mut().map(|(_, binding)| binding);
        bound.chain(waiting).filter_map(|binding| binding.shown.as_mut())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.bound.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_without_another_is_cut_into_parts() {
        let cube = |start: [u64; 3], extent: [u64; 3]| Region {
            group: [0; 3],
            start,
            extent,
        };
        let volume =
            |parts: &[Region]| -> u64 { parts.iter().map(|part| part.extent.iter().product::<u64>()).sum() };
        let whole = cube([10; 3], [10; 3]);
        assert_eq!(whole.without(&cube([0; 3], [30; 3])), []);
        assert_eq!(whole.without(&cube([20, 10, 10], [1; 3])), [whole], "beside it");
        let mut other = cube([0; 3], [30; 3]);
        other.group = [1, 0, 0];
        assert_eq!(whole.without(&other), [whole], "another level");
        let holed = whole.without(&cube([12; 3], [5; 3]));
        assert_eq!((holed.len(), volume(&holed)), (6, 1000 - 125));
        let corner = whole.without(&cube([15; 3], [30; 3]));
        assert_eq!((corner.len(), volume(&corner)), (3, 1000 - 125));
        for (at, part) in holed.iter().enumerate() {
            for other in &holed[at + 1..] {
                assert_eq!(part.without(other), [*part], "parts do not overlap");
            }
        }
    }
}
