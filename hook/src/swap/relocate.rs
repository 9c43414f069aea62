//! A block's move by itself, with its charge: charged where it goes before it goes, uncharged where it was after. The groups
//! above have granted before what it needs of the host.

use std::sync::Arc;

use super::block::{Block, Failed, Goal, Where};
use crate::helper;
use crate::process::Process;

/// Moves one block and its charge; whether there was anything to move. Everything is held and quiet.
pub(super) fn relocate(
    process: &Process,
    block: &Arc<Block>,
    index: usize,
    to: Goal,
) -> Result<bool, Failed> {
    let Some(context) = process.contexts.numbered(block.context) else {
        return Err(Failed::Driver);
    };
    // Others are not waited for: the process may be held.
    let claim = match to.place() {
        Where::Host => Some(process.swap.host.claim(block.size, true)),
        Where::Device => None,
    };
    // Charged where it goes before it goes; what it leaves is uncharged after.
    let is_charged = match to.place() {
        Where::Host => matches!(claim, Some(Ok(_))) && process.charge_swap(index, block.size),
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
    drop(claim);
    let moved = moved.flatten().unwrap_or(Err(Failed::Driver));
    if !matches!(moved, Ok(true) | Err(Failed::Stuck)) {
        // What is stuck is there, and nobody's any more.
        match to.place() {
            Where::Host => process.uncharge_swap(index, block.size),
            Where::Device => process.uncharge_block(index, block.size),
        }
    } else if moved == Ok(true) && to.place() == Where::Device {
        process.uncharge_host(index, block.size);
    }
    moved
}
