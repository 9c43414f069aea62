//! Moves a single block with its charge: charged at the destination before the move, uncharged at the source
//! after it. Host memory has been granted by the groups before.

use std::sync::Arc;

use super::Swap;
use super::block::{Block, Body, Failed, Goal, Where};
use super::physical::{Copied, Memory, NotCopied, copy};
use crate::driver::exit::in_driver;

/// Moves one block and its charge. Returns whether there was anything to move. Submissions are held and
/// drained.
pub(super) fn relocate(swap: &Swap, block: &Arc<Block>, index: usize, to: Goal) -> Result<bool, Failed> {
    let Some(context) = swap.program.contexts.numbered(block.context) else {
        return Err(Failed::Driver);
    };
    // Other processes are not waited for, since this process may be held.
    let claim = match to.place() {
        Where::Host => Some(swap.claim_host(block.size, true)),
        Where::Device => None,
    };
    // Charged at the destination first; the source is uncharged afterwards.
    let is_charged = match to.place() {
        Where::Host => matches!(claim, Some(Ok(_))) && swap.reserve_swap(index, block.size),
        Where::Device if block.is_pinned() || block.is_absent() => {
            swap.memory.page_counter.charge(index, block.size);
            true
        }
        Where::Device => swap.memory.charge_bytes(index, block.size).is_ok(),
    };
    if !is_charged {
        return Err(Failed::NoRoom);
    }
    let count = || swap.moved_block(block, index, to.place());
    let moved = in_driver(|| context.with_current(|| block.move_to(swap, index, to, count)));
    drop(claim);
    let moved = moved.flatten().unwrap_or(Err(Failed::Driver));
    if !matches!(moved, Ok(true) | Err(Failed::Stuck)) {
        // Memory that cannot be released stays charged and belongs to no block.
        match to.place() {
            Where::Host => swap.drop_reserved(index, block.size),
            Where::Device => swap.uncharge_block(index, block.size),
        }
    } else if moved == Ok(true) && to.place() == Where::Device {
        swap.uncharge_host(index, block.size);
    }
    moved
}

impl Block {
    /// Moves the bytes of the block, in the current context, to or from memory that is not mapped. Nothing
    /// may use the memory meanwhile.
    ///
    /// At each step the bytes are complete in the old or in the new memory: the old memory is released last.
    /// Returns false if there was nothing to move: the block is freed, is there already or must stay, or it
    /// was intact and has been mapped again. `count` is called when the block has arrived, before other
    /// threads can see that.
    fn move_to(&self, swap: &Swap, index: usize, to: Goal, count: impl FnOnce()) -> Result<bool, Failed> {
        let mut placed = self.lock();
        let placed = &mut *placed;
        let access = swap.access(self.local);
        if let Body::Loose(memory) = &placed.body {
            let mapped = self.range.map_for(memory, access);
            mapped.map_err(|_| Failed::Driver)?;
            if let Body::Loose(memory) = self.put(swap, placed, Body::Gone) {
                self.put(swap, placed, Body::Mapped(memory));
            }
        }
        let is_there = placed.place == to.place() || placed.index != index;
        if is_there || to != Goal::Device && self.is_pinned() {
            return Ok(false);
        }
        let new = match (&placed.body, to) {
            (Body::Mapped(_), Goal::Aside) => Body::Aside(self.copy_aside()?),
            (Body::Aside(copied), _) => Body::Mapped(self.copy_back(swap, copied)?),
            (Body::Mapped(_) | Body::Loose(_) | Body::Gone, _) => return Ok(false),
        };
        drop(self.put(swap, placed, new));
        self.arrive(swap, placed, to);
        count();
        Ok(true)
    }

    fn copy_aside(&self) -> Result<Copied, Failed> {
        let copied = Copied::new(self.size).map_err(|_| Failed::NoRoom)?;
        if let Err(error) = copy(copied.address(), self.base, self.size) {
            if error == NotCopied::UnderWay {
                std::mem::forget(copied);
            }
            return Err(error.into());
        }
        self.range.unmap().map_err(|_| Failed::Driver)?;
        Ok(copied)
    }

    fn copy_back(&self, swap: &Swap, copied: &Copied) -> Result<Memory, Failed> {
        let failed = |error| Failed::of(error, Goal::Device);
        let new = swap.new_device_memory(self.local, self.size).map_err(failed)?;
        self.range
            .map_for(&new, swap.access(self.local))
            .map_err(failed)?;
        if let Err(error) = copy(self.base, copied.address(), self.size) {
            if error == NotCopied::Ended {
                let _ = self.range.unmap();
            }
            return Err(error.into());
        }
        Ok(new)
    }
}
