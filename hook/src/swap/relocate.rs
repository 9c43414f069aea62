//! One block's move, with its charge: charged where it goes before it goes, uncharged where it was after.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use gcgroup_abi::UsageDevice;

use super::block::{Block, Failed, Goal, Where};
use crate::helper;
use crate::process::Process;

/// Moves one block and its charge; whether there was anything to move. Everything is held and quiet.
pub(super) fn relocate(
    process: &Process,
    block: &Arc<Block>,
    index: usize,
    usage: &UsageDevice,
    to: Goal,
) -> Result<bool, Failed> {
    let Some(context) = process.contexts.numbered(block.context) else {
        return Err(Failed::Driver);
    };
    // Charged where it goes before it goes; what it leaves is uncharged after.
    let is_charged = match to.place() {
        Where::Host => process.swap.host.room() >= block.size && process.charge_swap(index, block.size),
        Where::Device if block.is_pinned() || block.is_absent() => {
            let levels = &process.memory.levels;
            levels.charge(process.usage(), process.control(), index, block.size);
            true
        }
        Where::Device => process.charge_bytes(index, block.size).is_ok(),
    };
    if !is_charged {
        return Err(Failed::NoRoom);
    }
    let count = || process.moved_block(block, to.place());
    let moved = helper::in_driver(|| context.with_current(|| block.move_to(process, to, count)));
    let moved = moved.flatten().unwrap_or(Err(Failed::Driver));
    if moved == Ok(true) {
        let (count, bytes) = match to.place() {
            Where::Host => (&usage.nr_swap_out, &usage.swap_out_bytes),
            Where::Device => (&usage.nr_swap_in, &usage.swap_in_bytes),
        };
        count.fetch_add(1, Relaxed);
        bytes.fetch_add(block.size, Relaxed);
    } else if moved != Err(Failed::Stuck) {
        // What is stuck is there, and nobody's any more.
        match to.place() {
            Where::Host => process.uncharge_swap(index, block.size),
            Where::Device => process.uncharge_block(index, block.size),
        }
    }
    moved
}
