//! Exchanges the memory of a block with memory that has been prepared, and releases the old memory.

use super::{Block, Body, Failed, Goal, Placed, Where};
use crate::swap::Swap;
use crate::swap::physical::{Memory, Range};
use crate::swap::piece::Piece;

/// Old memory of a move.
#[derive(Debug)]
pub(super) struct Left {
    memory: Memory,
    aside: Range,
}

impl Block {
    /// Returns whether the block may now be exchanged with memory prepared for the device in slot `index`.
    pub(in crate::swap) fn may_go(&self, placed: &Placed, index: usize, to: Goal) -> bool {
        let is_free = to == Goal::Device || !self.is_pinned();
        let is_whole = matches!(placed.body, Body::Mapped(_)) && !placed.is_unsettled();
        is_free && is_whole && placed.place != to.place() && placed.index == index
    }

    /// Maps `piece`, which has the same bytes, in place of the old memory, which is kept until the block is
    /// settled. The caller ensures that nothing uses the memory meanwhile. An error leaves the old memory
    /// mapped, or intact and unmapped ([`Body::Loose`]).
    pub(in crate::swap) fn exchange(
        &self,
        swap: &Swap,
        placed: &mut Placed,
        piece: Piece,
        to: Goal,
    ) -> Result<(), (Failed, Piece)> {
        let access = swap.access(self.local);
        if self.range.unmap().is_err() {
            return Err((Failed::Driver, piece));
        }
        let mapped = self.range.map_for(&piece.memory, access);
        let Body::Mapped(old) = self.put(swap, placed, Body::Gone) else {
            return Err((Failed::Driver, piece));
        };
        if let Err(error) = mapped {
            // The old memory was mapped there just before, and nothing else has been since.
            let old = match self.range.map_for(&old, access) {
                Ok(()) => Body::Mapped(old),
                Err(_) => Body::Loose(old),
            };
            self.put(swap, placed, old);
            return Err((Failed::of(error, to), piece));
        }
        let Piece { memory, aside, .. } = piece;
        self.put(swap, placed, Body::Mapped(memory));
        placed.left = Some(Left { memory: old, aside });
        self.arrive(swap, placed, to);
        Ok(())
    }

    /// Releases the old memory of the last move and counts the move.
    pub(in crate::swap) fn settle(&self, swap: &Swap) -> Result<(), Failed> {
        self.settle_locked(swap, &mut self.placed.lock())
    }

    /// Releases the old memory before uncharging it.
    pub(super) fn settle_locked(&self, swap: &Swap, placed: &mut Placed) -> Result<(), Failed> {
        let Some(Left { memory, aside }) = placed.left.take() else {
            return Ok(());
        };
        let unmapped = aside.unmap();
        if unmapped.is_err() {
            placed.stray = Some(aside);
        }
        match placed.place {
            Where::Host => {
                drop(memory);
                swap.leave_pool(placed.index, self.size);
            }
            Where::Device => {
                swap.enter_pool(self.local, placed.index, memory);
                swap.end_moving_in(Goal::Device, self.size);
            }
        }
        swap.moved_block(self, placed.index, placed.place);
        unmapped.map_err(|_| Failed::Stuck)
    }
}
