//! Memory for a move, made before submissions are held: mapped at other addresses, so that the bytes can be
//! copied to it.

use std::sync::Arc;

use super::Swap;
use super::block::{Block, Failed, Goal, Where};
use super::physical::{Access, Memory, Range};
use super::piece::Piece;
use super::pool::NotMade;
use crate::driver::exit::in_driver;
use crate::shared::device::LocalDevice;

/// A block and the memory prepared for it. Device memory is charged already; host memory is counted in the
/// swap pool.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) block: Arc<Block>,
    pub(super) piece: Piece,
}

/// Makes the memory that a block's move needs, in the helper. `is_late` means that other processes have been
/// waited for long enough.
pub(super) fn make(
    swap: &Swap,
    index: usize,
    block: &Arc<Block>,
    to: Goal,
    is_late: bool,
) -> Result<Move, NotMade> {
    let context = swap
        .program
        .contexts
        .numbered(block.context)
        .ok_or(Failed::Driver)?;
    let access = Access::by(block.local.device());
    let made = in_driver(|| match to.place() {
        Where::Host => swap.host_memory(block.local, index, block.size, is_late),
        Where::Device => device_memory(swap, index, block),
    });
    let memory = made.unwrap_or(Err(Failed::Driver.into()))?;
    let mapped = in_driver(|| context.with_current(|| map_aside(&memory, access, to)));
    match mapped.flatten().unwrap_or(Err(Failed::Driver)) {
        Ok(aside) => {
            let (block, local) = (Arc::clone(block), block.local);
            let piece = Piece { memory, aside, local };
            swap.count_moving_in(to, block.size);
            Ok(Move { block, piece })
        }
        // Memory that cannot be unmapped stays charged and belongs to no block.
        Err(Failed::Stuck) => Err(Failed::Stuck.into()),
        Err(failed) => {
            put_back(swap, (block.local, index), memory, to);
            Err(failed.into())
        }
    }
}

fn device_memory(swap: &Swap, index: usize, block: &Block) -> Result<Memory, NotMade> {
    if block.is_pinned() {
        swap.memory.page_counter.charge(index, block.size);
    } else {
        let charged = swap.memory.charge_bytes(index, block.size);
        charged.map_err(|_| Failed::NoRoom)?;
    }
    swap.new_device_memory(block.local, block.size).map_err(|error| {
        swap.uncharge_block(index, block.size);
        Failed::of(error, Goal::Device).into()
    })
}

fn map_aside(memory: &Memory, access: Access, to: Goal) -> Result<Range, Failed> {
    let aside = Range::new(memory.size()).map_err(|_| Failed::Driver)?;
    let mapped = aside.map(memory).and_then(|()| aside.allow(memory, access));
    if let Err(error) = mapped {
        aside.unmap().map_err(|_| Failed::Stuck)?;
        return Err(Failed::of(error, to));
    }
    Ok(aside)
}

fn put_back(swap: &Swap, (local, index): (LocalDevice, usize), memory: Memory, to: Goal) {
    match to.place() {
        Where::Host => swap.keep(local, index, memory),
        Where::Device => {
            let size = memory.size();
            drop(memory);
            swap.uncharge_block(index, size);
        }
    }
}

impl Piece {
    /// Releases unused prepared memory, in the helper.
    pub(super) fn cancel(self, swap: &Swap, index: usize, to: Goal) -> Result<(), Failed> {
        let mut left = Some(self);
        let unmapped = in_driver(|| {
            let Some(Self { memory, aside, local }) = left.take() else {
                return Ok(());
            };
            swap.end_moving_in(to, memory.size());
            if aside.unmap().is_err() {
                return Err(Failed::Stuck);
            }
            drop(aside);
            put_back(swap, (local, index), memory, to);
            Ok(())
        });
        // `in_driver` did not run because the program exits: no driver object is touched any more.
        std::mem::forget(left);
        unmapped.unwrap_or(Err(Failed::Driver))
    }
}
