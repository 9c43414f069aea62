//! Moves many blocks at once: one batch is copied while the memory of the previous one is exchanged. All
//! memory is prepared before, and old memory is released after.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::Swap;
use super::block::{Block, Failed, Goal, Placed, Where};
use super::move_memory::Move;
use super::physical::{NotCopied, Stream};
use super::piece::Piece;
use crate::driver::exit::in_driver;

/// Bytes of one batch of copies.
const BATCH: u64 = 256 << 20;
/// Bytes moved before the helper does other work.
const RUN: u64 = 1 << 30;

/// Result of a run.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) moved: Vec<Arc<Block>>,
    pub(super) failed: Option<Failed>,
}

/// A block being moved. It is locked, so a thread that frees it waits.
struct Going<'a> {
    block: &'a Block,
    placed: MutexGuard<'a, Placed>,
    at: usize,
    stage: Stage,
}

enum Stage {
    /// Not to be moved, or not yet charged; holds the prepared memory.
    Ready(Piece),
    /// Charged at the destination.
    Charged(Piece),
    Moved,
    /// The prepared memory is leaked, because a copy to it may still be in progress.
    Lost,
}

/// Returns how many of the first moves make up one run: those of one context, up to [`RUN`] bytes.
pub(super) fn length(moves: &[Move]) -> usize {
    let Some(first) = moves.first() else { return 0 };
    let mut bytes = 0_u64;
    let fits = |one: &&Move| {
        bytes = bytes.saturating_add(one.block.size);
        one.block.context == first.block.context && bytes <= RUN
    };
    moves.iter().take_while(fits).count().max(1)
}

/// Moves blocks of one context. All submissions are held and drained.
pub(super) fn run(swap: &Swap, index: usize, moves: Vec<Move>, to: Goal) -> Ran {
    let Some(first) = moves.first() else {
        return Ran::default();
    };
    let context = swap.program.contexts.numbered(first.block.context);
    let (blocks, pieces): (Vec<_>, Vec<_>) = moves.into_iter().map(|one| (one.block, one.piece)).unzip();
    let mut going: Vec<Going<'_>> = blocks
        .iter()
        .zip(pieces)
        .enumerate()
        .map(|(at, (block, piece))| Going {
            block,
            placed: block.lock(),
            at,
            stage: Stage::Ready(piece),
        })
        .collect();
    let mut ran = Ran::default();
    let is_charged = going
        .iter_mut()
        .map(|one| one.charge(swap, index, to))
        .fold(true, |all, one| all & one);
    if !is_charged {
        ran.failed = Some(Failed::NoRoom);
    }
    let done = context
        .and_then(|context| in_driver(|| context.with_current(|| move_all(swap, &mut going, to))).flatten());
    if let Err(failed) = done.unwrap_or(Err(Failed::Driver)) {
        ran.failed = Some(failed);
    }
    let ends: Vec<_> = going.into_iter().map(|one| (one.at, one.stage)).collect();
    for (at, stage) in ends {
        let Some(block) = blocks.get(at) else { continue };
        let ended = match stage {
            Stage::Moved => {
                ran.moved.push(Arc::clone(block));
                Ok(())
            }
            Stage::Ready(piece) => piece.cancel(swap, index, to),
            Stage::Charged(piece) => cancel_charged(swap, index, piece, to),
            Stage::Lost => {
                match to.place() {
                    Where::Host => swap.charge_lost(index, block.size),
                    Where::Device => swap.end_moving_in(to, block.size),
                }
                Err(Failed::Stuck)
            }
        };
        if let Err(failed) = ended {
            ran.failed = Some(failed);
        }
    }
    ran
}

/// Releases prepared memory of a block that was charged but not moved. Memory that cannot be released stays
/// charged.
fn cancel_charged(swap: &Swap, index: usize, piece: Piece, to: Goal) -> Result<(), Failed> {
    let size = piece.memory.size();
    let ended = piece.cancel(swap, index, to);
    match (to.place(), &ended) {
        (Where::Device, _) => {}
        (Where::Host, Ok(())) => swap.drop_reserved(index, size),
        (Where::Host, Err(_)) => swap.charge_lost(index, size),
    }
    ended
}

impl Going<'_> {
    /// Charges the block at the destination, unless it must not move any more. Returns false if it cannot be
    /// charged.
    fn charge(&mut self, swap: &Swap, index: usize, to: Goal) -> bool {
        if !self.block.may_go(&self.placed, index, to) {
            return true;
        }
        let Stage::Ready(piece) = std::mem::replace(&mut self.stage, Stage::Lost) else {
            return true;
        };
        let size = self.block.size;
        let is_charged = to.place() == Where::Device || swap.reserve_swap(index, size);
        self.stage = match is_charged {
            true => Stage::Charged(piece),
            false => Stage::Ready(piece),
        };
        is_charged
    }

    /// Queues the copy of the block, if it is to be moved.
    fn copy(&self, stream: &Stream) -> Result<(), NotCopied> {
        match &self.stage {
            Stage::Charged(piece) => stream.copy(piece.aside.address(), self.block.base, self.block.size),
            _ => Ok(()),
        }
    }

    fn exchange(&mut self, swap: &Swap, to: Goal) -> Result<(), Failed> {
        match std::mem::replace(&mut self.stage, Stage::Lost) {
            Stage::Charged(piece) => match self.block.exchange(swap, &mut self.placed, piece, to) {
                Ok(()) => {
                    self.stage = Stage::Moved;
                    Ok(())
                }
                Err((failed, piece)) => {
                    self.stage = Stage::Charged(piece);
                    Err(failed)
                }
            },
            stage => {
                self.stage = stage;
                Ok(())
            }
        }
    }

    /// Leaks the prepared memory, because a copy to it may still be in progress.
    fn lose(&mut self) {
        if let Stage::Charged(piece) = std::mem::replace(&mut self.stage, Stage::Lost) {
            std::mem::forget(piece);
        }
    }
}

/// Divides the blocks into batches, as index ranges.
fn batches(going: &[Going<'_>]) -> Vec<Range<usize>> {
    let (mut all, mut from, mut bytes) = (Vec::new(), 0, 0_u64);
    for (at, one) in going.iter().enumerate() {
        if at > from && bytes.saturating_add(one.block.size) > BATCH {
            all.push(from..at);
            (from, bytes) = (at, 0);
        }
        bytes = bytes.saturating_add(one.block.size);
    }
    all.push(from..going.len());
    all
}

fn move_all(swap: &Swap, going: &mut [Going<'_>], to: Goal) -> Result<(), Failed> {
    if !going.iter().any(|one| matches!(one.stage, Stage::Charged(_))) {
        return Ok(());
    }
    let mut batches = batches(going).into_iter();
    let Some(mut batch) = batches.next() else {
        return Ok(());
    };
    // Two streams: one copies while the other is waited for.
    let (mut stream, mut other) = (None, None);
    begin(&mut stream, going.get_mut(batch.clone()))?;
    loop {
        let next = batches.next();
        let begun = next.clone().map(|next| begin(&mut other, going.get_mut(next)));
        let ended = end(swap, stream.as_ref(), going.get_mut(batch), to);
        match (next, begun, ended) {
            (Some(next), Some(Ok(())), Ok(())) => batch = next,
            (Some(next), Some(Ok(())), Err(failed)) => {
                let left = going.get_mut(next).unwrap_or_default();
                return Err(other
                    .as_ref()
                    .map_or(failed, |other| give_up(other, left, failed)));
            }
            (_, Some(Err(failed)), _) => return Err(failed),
            (_, _, ended) => return ended,
        }
        std::mem::swap(&mut stream, &mut other);
    }
}

/// Queues the copies of a batch on its own stream. On failure none is in progress.
fn begin(stream: &mut Option<Stream>, batch: Option<&mut [Going<'_>]>) -> Result<(), Failed> {
    let batch = batch.unwrap_or_default();
    let stream = match stream {
        Some(stream) => stream,
        none => none.insert(Stream::new()?),
    };
    match batch.iter().try_for_each(|one| one.copy(stream)) {
        Ok(()) => Ok(()),
        Err(error) => Err(give_up(stream, batch, error.into())),
    }
}

/// Waits for the copies of a batch and exchanges the memory of each block.
fn end(
    swap: &Swap,
    stream: Option<&Stream>,
    batch: Option<&mut [Going<'_>]>,
    to: Goal,
) -> Result<(), Failed> {
    let (Some(stream), Some(batch)) = (stream, batch) else {
        return Err(Failed::Driver);
    };
    if let Err(error) = stream.wait() {
        if error == NotCopied::UnderWay {
            batch.iter_mut().for_each(Going::lose);
        }
        return Err(error.into());
    }
    batch.iter_mut().try_for_each(|one| one.exchange(swap, to))
}

/// Waits for the queued copies of a batch that is not to be moved any more.
fn give_up(stream: &Stream, batch: &mut [Going<'_>], failed: Failed) -> Failed {
    match stream.wait() {
        Err(NotCopied::UnderWay) => {
            batch.iter_mut().for_each(Going::lose);
            Failed::Stuck
        }
        _ => failed,
    }
}
