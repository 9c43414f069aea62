//! Memory that can be moved to the host and back under a fixed address.
//!
//! In a process that was started for it, large allocations are made of physical memory mapped at reserved
//! addresses (CUDA Driver API, "Virtual Memory Management"), so that other physical memory can take its
//! place. To the program they are what `cuMemAlloc` gives. `block` is one of them, `physical` what the driver
//! is asked for, `account` what is charged, `counts` what has moved, `grant` how much of it the groups above
//! let the process have, `host` how much of the host may be taken. `mover` sees to it in the helper thread
//! that what `task` finds, in the order of `policy`, is moved: on each `device` what that needs is `made`
//! first, of the `supply` if there is some, or if some was made `ahead`; then, while everything is held, the
//! blocks are moved in one `run`, or what has no address by itself (`relocate`). `query` answers for what has
//! moved.
//!
#![doc = include_str!("swap.md")]

mod account;
mod ahead;
pub mod block;
mod counts;
mod device;
mod grant;
mod host;
mod made;
pub mod mover;
mod physical;
mod policy;
pub mod query;
mod relocate;
mod run;
mod supply;
mod task;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::cuda::{CUdeviceptr, CUerror, CUresult, CUstream};
use crate::driver;
use crate::interpose::Next;
use crate::memory::Place;
use crate::place::answer;
use crate::process::{self, Process};
use crate::thread;
use block::{Block, Goal, Where, location};
use counts::Counts;
use grant::Requests;
use host::Host;
use physical::Memory;
use supply::{NotMade, Supply};

/// What is smaller than a page of device memory is not worth moving.
pub(crate) const LEAST: u64 = 2 << 20;

/// How long a call waits for memory to come back, and between looks.
const PATIENCE: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_micros(200);

/// Everything that can be moved.
#[derive(Debug)]
pub(crate) struct Swap {
    /// Whether the process was started for it.
    is_on: AtomicBool,
    /// By address.
    blocks: RwLock<BTreeMap<u64, Arc<Block>>>,
    next: AtomicU64,
    /// Taken to charge against two limits of what may be swapped out.
    both: Mutex<()>,
    host: Host,
    supply: Supply,
    requests: Requests,
    counts: Counts,
    /// Blocks that have moved, until what they left is let go.
    unsettled: Mutex<Vec<Arc<Block>>>,
    /// Blocks with nothing at their addresses.
    absent: AtomicUsize,
    /// Counts the moves out.
    departures: AtomicU64,
    /// Whether the driver has refused to map the host's memory.
    is_host_refused: AtomicBool,
    /// Whether a move left behind what the driver would not take back: no more of that.
    is_stuck: AtomicBool,
}

impl Swap {
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            is_on: AtomicBool::new(is_on),
            blocks: RwLock::default(),
            next: AtomicU64::new(1),
            both: Mutex::new(()),
            host: Host::new(),
            supply: Supply::default(),
            requests: Requests::new(),
            counts: Counts::new(),
            unsettled: Mutex::default(),
            absent: AtomicUsize::new(0),
            departures: AtomicU64::new(1),
            is_host_refused: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// The block that an address lies in.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Block>> {
        if !self.is_on() {
            return None;
        }
        let blocks = self.blocks.read();
        let (_, block) = blocks.range(..=address).next_back()?;
        block.contains(address).then(|| Arc::clone(block))
    }

    /// Every block, in the order they were made.
    fn all(&self) -> Vec<Arc<Block>> {
        let mut all: Vec<_> = self.blocks.read().values().cloned().collect();
        all.sort_unstable_by_key(|block| block.number);
        all
    }

    /// Whether nothing more is moved to the host while the program runs.
    fn is_host_no_use(&self) -> bool {
        self.is_host_refused.load(Relaxed) || self.is_stuck.load(Relaxed)
    }

    fn count_absent(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => self.absent.fetch_add(1, Relaxed),
            (true, false) => self.absent.fetch_sub(1, Relaxed),
            _ => return,
        };
    }

    /// Whether some block has nothing at its addresses, so that nothing may be let through.
    fn is_any_absent(&self) -> bool {
        self.absent.load(Relaxed) != 0
    }

    fn enter(&self, process: &Process, block: Arc<Block>) {
        self.blocks.write().insert(block.base, Arc::clone(&block));
        // The device may have been renumbered since it was charged.
        block.follow(process);
    }

    /// Brings every charge to the slot that its device has now. In the helper, whose moves are seen to after.
    pub(crate) fn renumber(&self, process: &Process) {
        for block in self.all() {
            block.follow(process);
        }
        self.supply.renumber(process);
        process.renumber_swap_counts();
    }

    fn take(&self, base: u64) -> Option<Arc<Block>> {
        self.blocks.write().remove(&base)
    }
}

/// `cuMemAlloc` of that many bytes: an answer, or nothing if it is to be made as ever.
#[inline]
pub(crate) fn alloc(
    process: &Process,
    place: Place,
    address: *mut CUdeviceptr,
    bytes: u64,
) -> Option<CUresult> {
    if !process.swap.is_on() || bytes < LEAST || address.is_null() {
        return None;
    }
    alloc_block(process, place, address, bytes)
}

/// Out of the way of allocations that are none.
#[cold]
#[inline(never)]
fn alloc_block(process: &Process, place: Place, address: *mut CUdeviceptr, bytes: u64) -> Option<CUresult> {
    let size = bytes.checked_next_multiple_of(LEAST)?;
    thread::hold();
    let number = process.swap.next.fetch_add(1, Relaxed);
    let made = match process.charge_block(place, size) {
        Ok(()) => {
            let make = || {
                let memory = Memory::new(location(place.local.device(), Goal::Device), size)?;
                Block::new(place, number, bytes, memory, Where::Device)
            };
            let made = process.pressing(place.index, size, make);
            made.inspect_err(|_| process.uncharge_block(place.index, size))
        }
        Err(refused) => Err(refused),
    };
    // Over the limit, or the card is full and nobody else gives way: on the host, if it may be.
    let made = match made {
        Err(CUerror::OUT_OF_MEMORY) => alloc_out(process, place, number, bytes, size),
        made => made,
    };
    match made {
        Ok(block) => {
            process.enter_block(&block, place.index);
            answer(address, CUdeviceptr(block.base));
            process.swap.enter(process, Arc::new(block));
            Some(Ok(()))
        }
        Err(CUerror::OUT_OF_MEMORY) => Some(Err(process.refuse(place.index))),
        // Something else that virtual memory needs is missing.
        Err(_) => None,
    }
}

fn alloc_out(process: &Process, place: Place, number: u64, bytes: u64, size: u64) -> Result<Block, CUerror> {
    let index = place.index;
    if process.swap_room(index) < size {
        return Err(CUerror::OUT_OF_MEMORY);
    }
    let began = Instant::now();
    let host = location(place.local.device(), Goal::Host);
    let memory = loop {
        match process.host_memory(index, host, size, began.elapsed() >= PATIENCE) {
            Ok(memory) => break memory,
            Err(NotMade::NotYet) if began.elapsed() < 2 * PATIENCE => std::thread::sleep(NAP),
            Err(_) => return Err(CUerror::OUT_OF_MEMORY),
        }
    };
    if !process.charge_swap(index, size) {
        process.keep(place.local, index, memory);
        return Err(CUerror::OUT_OF_MEMORY);
    }
    process.leave_supply(index, size);
    Block::new(place, number, bytes, memory, Where::Host).map_err(|_| {
        process.uncharge_swap(index, size);
        process.uncharge_host(index, size);
        CUerror::OUT_OF_MEMORY
    })
}

/// `cuMemFree`: an answer, if the address is a block's.
#[inline]
pub(crate) fn free(process: &Process, address: u64) -> Option<CUresult> {
    if !process.swap.is_on() {
        return None;
    }
    // What the program has queued may use it: the driver waits in cuMemFree too.
    free_after(process, address, |block| {
        let context = process.contexts.numbered(block.context);
        context.map_or(Ok(()), |context| context.synchronize())
    })
}

/// `cuMemFreeAsync`, likewise. It waits where the driver would not: nothing else tells when what is mapped
/// may go.
#[inline]
pub(crate) fn free_on(process: &Process, address: u64, stream: CUstream) -> Option<CUresult> {
    if !process.swap.is_on() {
        return None;
    }
    free_after(process, address, |_| driver::cuStreamSynchronize(stream))
}

#[cold]
fn free_after(process: &Process, address: u64, wait: impl Fn(&Block) -> CUresult) -> Option<CUresult> {
    let block = process.swap.take(address)?;
    let waited = wait(&block);
    let freed = waited.and_then(|()| forget(process, &block));
    if freed.is_err() {
        process.swap.enter(process, block);
    }
    Some(freed)
}

/// A context is gone, and with it what was allocated in it.
pub(crate) fn context_gone(process: &Process, context: u32) {
    if !process.swap.is_on() {
        return;
    }
    let gone: Vec<_> = process
        .swap
        .all()
        .into_iter()
        .filter(|block| block.context == context)
        .collect();
    for block in gone {
        if process.swap.take(block.base).is_some() {
            // What cannot be unmapped now, the driver has the addresses of until the program ends.
            let _ = forget(process, &block);
        }
    }
}

fn forget(process: &Process, block: &Block) -> CUresult {
    let last = block.end(process)?;
    process.leave_block(block, last);
    Ok(())
}

/// A call that gives memory away in a way that moving it would break: it stays on the device from here on.
pub(crate) fn pin(address: CUdeviceptr, next: Next<'_>) -> CUresult {
    if let Some((process, block)) =
        process::get().and_then(|process| Some((process, process.swap.find(address.0)?)))
        && block.pin(process)
    {
        process.line.wake();
        thread::hold();
        let began = Instant::now();
        while block.place() == Where::Host && began.elapsed() < PATIENCE {
            std::thread::sleep(NAP);
        }
        // It is counted where it is before it is given away; what cannot be let go stays with the block.
        let _ = block.settle(process);
    }
    next()
}

/// A call that uses memory and is not a submission: not while that memory moves.
pub(crate) fn touch(next: Next<'_>) -> CUresult {
    let Some(process) = process::get().filter(|process| process.swap.is_on()) else {
        return next();
    };
    let index = process.slots.bind(process).map(|bound| bound.index());
    let _touch = index.and_then(|index| process.touch(index));
    next()
}
