//! Measurements of contexts, for the processes that request them.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::{Governed, Look, Samples};
use crate::overhead::Source;
use gcgroupfs_model::tree::{Ledger, Measured, Tree};

impl Samples {
    /// Measures contexts of the processes that request it. Returns whether any request is left.
    pub(in crate::overhead) fn measure_contexts(&mut self, tree: &Tree, source: &impl Source) -> bool {
        let mut awaited = tree.awaited_sizes();
        let mut nr_left = awaited.len();
        awaited.sort_by_key(|(device, _)| *device);
        for all in awaited.chunk_by(|(one, _), (other, _)| one == other) {
            let [(device, _), ..] = all else { continue };
            let look = Look {
                tree,
                device: *device,
            };
            let ledger = |(_, (_, _, blocks)): &(usize, Governed)| Ledger::of(blocks.usage(), *device);
            let before: Vec<_> = all.iter().map(ledger).collect();
            let held = self.unowned.look(tree, source, *device);
            for ((_, process), before) in all.iter().zip(before) {
                let bytes = held.as_ref().and_then(|held| *held.get(&process.1)?);
                let held = (bytes.unwrap_or(0), true);
                nr_left -= usize::from(self.answer_request(look, process, before, held));
            }
        }
        nr_left > 0
    }

    /// Answers a process's request to measure its contexts by the `held` bytes, and whether the driver told
    /// them. Returns whether it has: not while an allocation is under way, which may be there or not, and not
    /// before the driver lists the process.
    pub(super) fn answer_request(
        &mut self,
        Look { tree, device }: Look<'_>,
        (id, _, blocks): &Governed,
        before: Option<Ledger>,
        (held, is_exact): (u64, bool),
    ) -> bool {
        let after = Ledger::of(blocks.usage(), device);
        let (Some(ledger), Some(control)) = (before, blocks.control().devices.get(device)) else {
            return false;
        };
        let request = ledger.request();
        if control.context_answer.load(Relaxed) == request {
            return false;
        }
        let Some(share) = self.unowned.share(*id, blocks.as_ref(), device) else {
            return false;
        };
        // What no process owns is charged as overhead: contexts and freed memory are measured without it.
        let before = control.memory_overhead.load(Relaxed);
        let beside = before.saturating_sub(self.unowned.charged(*id, device));
        let (beside, held) = (beside.saturating_add(share), held.saturating_add(share));
        let charged = beside.saturating_add(ledger.contexts());
        // An estimate is no earlier result: managed memory on the device would pass for a context.
        let known = beside.saturating_add(ledger.measured_contexts());
        let missing = i128::from(ledger.overhead(held, known)) - i128::from(charged);
        let is_whole = ledger.is_settled() && ledger.is_complete() && Some(ledger) == after;
        let has_contexts = blocks.usage().nr_contexts(device) != 0;
        let is_sure = is_whole && (held > 0 || missing == 0 || !has_contexts);
        let missing = i64::try_from(missing).ok();
        let Some(missing) = missing.filter(|_| is_sure) else {
            return false;
        };
        // An equal part of what all processes hold may fall: what is missing is charged beside the ledger.
        let missing = if is_exact { missing } else { missing.min(0) };
        if beside != before {
            tree.set_overhead(*id, device, beside);
            self.last.insert((*id, device), beside);
            self.unowned.charge(*id, device, share);
        }
        let measured = Measured {
            request,
            missing,
            is_exact,
        };
        tree.answer_context(*id, device, measured);
        self.answered.insert((*id, device), Instant::now());
        true
    }
}
