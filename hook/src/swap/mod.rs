//! Device allocations that can be moved to host memory and back under a fixed address.
//!
//! In a process that opted in, each large allocation is physical memory mapped at a reserved address (CUDA
//! Driver API, "Virtual Memory Management"), so that other physical memory can replace it. To the program it
//! behaves like memory of `cuMemAlloc`.
//!
//! * `block`: one such allocation; `physical`: the driver objects behind it.
//! * `account`: charges; `counts`: move statistics; `grant`: host memory granted by the groups above; `host`:
//!   how much host memory may be taken.
//! * `mover`: runs in the helper thread and moves what `task` selects, in the order of `policy`. For each
//!   `device`, the needed memory is prepared first (`move_memory`), from the swap pool (`pool`) or from
//!   memory made in advance (`prefill`). Then all submissions are held and the blocks are moved in one `run`,
//!   or one by one (`relocate`). `turn`: the bound that the daemon sets where processes take turns.
#![doc = include_str!("swap.md")]

mod account;
pub mod block;
mod counts;
mod device;
mod grant;
mod host;
mod move_memory;
pub mod mover;
mod physical;
mod piece;
mod policy;
mod pool;
mod prefill;
mod relocate;
mod run;
mod settings;
mod task;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::compute::Compute;
use crate::driver;
use crate::driver::cuda::{CUdeviceptr, CUerror, CUresult, CUstream};
use crate::driver::out_pointer::answer;
use crate::driver::thread;
use crate::memory::Memory;
use crate::program::Program;
use crate::shared::session::Session;
use crate::shared::stall::Stalled;
use crate::shared::target::Target;
use block::{Block, Goal, Where, location};
use counts::Counts;
use gcgroup_abi::{Control, Pressure, Usage};
use grant::Requests;
use host::Host;
use pool::{NotMade, SwapPool};

/// Smallest allocation that is made movable, bytes: one page of device memory.
pub(crate) const LEAST: u64 = 2 << 20;

/// How long a call waits for memory to return to the device, and the interval between its checks.
const PATIENCE: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_micros(200);

/// The movable allocations of the process and the state of their moves.
#[derive(Debug)]
pub(crate) struct Swap {
    pub(crate) session: &'static Session,
    program: &'static Program,
    memory: &'static Memory,
    compute: &'static Compute,
    /// Whether the process opted in.
    is_on: AtomicBool,
    /// Live blocks by base address.
    blocks: RwLock<BTreeMap<u64, Arc<Block>>>,
    next: AtomicU64,
    /// Held while charging against the two `memory.swap.max` limits, of the device and of the process.
    both: Mutex<()>,
    host: Host,
    pool: SwapPool,
    requests: Requests,
    counts: Counts,
    /// Blocks that have moved and whose old memory is not yet released.
    unsettled: Mutex<Vec<Arc<Block>>>,
    /// Set while submissions are held for a move and drained; a mover that was lost leaves it to the next.
    moving: Mutex<Option<Stalled<'static>>>,
    /// Number of blocks with nothing mapped at their addresses.
    absent: AtomicUsize,
    /// Number of the next move to host memory.
    departures: AtomicU64,
    /// Whether the driver has refused to map host memory.
    is_host_refused: AtomicBool,
    /// Whether a move left something mapped that the driver would not unmap. No more blocks are moved to the
    /// host then.
    is_stuck: AtomicBool,
}

impl Swap {
    /// Makes the engine; it does nothing if the process did not opt in.
    pub(crate) fn new(memory: &'static Memory, compute: &'static Compute) -> Self {
        let is_on = memory.usage().can_swap.load(Relaxed) != 0;
        Self {
            session: memory.session,
            program: memory.program,
            memory,
            compute,
            is_on: AtomicBool::new(is_on),
            blocks: RwLock::default(),
            next: AtomicU64::new(1),
            both: Mutex::new(()),
            host: Host::new(),
            pool: SwapPool::default(),
            requests: Requests::new(),
            counts: Counts::new(),
            unsettled: Mutex::default(),
            moving: Mutex::default(),
            absent: AtomicUsize::new(0),
            departures: AtomicU64::new(1),
            is_host_refused: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
        }
    }

    fn usage(&self) -> &Usage {
        self.session.usage()
    }

    fn control(&self) -> &Control {
        self.session.control()
    }

    /// Makes allocations movable from now on.
    pub(crate) fn enable(&self) {
        self.usage().can_swap.store(1, Relaxed);
        self.is_on.store(true, Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Returns the live block that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Block>> {
        if !self.is_on() {
            return None;
        }
        let blocks = self.blocks.read();
        let (_, block) = blocks.range(..=address).next_back()?;
        block.contains(address).then(|| Arc::clone(block))
    }

    /// Returns all live blocks in the order of their creation.
    fn all(&self) -> Vec<Arc<Block>> {
        let mut all: Vec<_> = self.blocks.read().values().cloned().collect();
        all.sort_unstable_by_key(|block| block.number);
        all
    }

    /// Returns whether blocks can no longer be moved to the host while the program runs.
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

    /// Brings a block back to the device and keeps it there. Waits for the move for at most 10 s.
    pub(crate) fn pin(&self, address: u64) {
        let Some(block) = self.find(address).filter(|block| block.pin(self)) else {
            return;
        };
        self.session.line.wake();
        thread::hold();
        let _stalled = Stalled::new(self.usage(), Pressure::Memory);
        let began = Instant::now();
        while block.place() == Where::Host && began.elapsed() < PATIENCE {
            std::thread::sleep(NAP);
        }
        // The block is settled before it is exported; memory that cannot be released stays with the block.
        let _ = block.settle(self);
    }

    /// Counts the time of moves, in which no thread of the program can submit, as waited for memory.
    fn count_moving(&self, is_moving: bool) {
        let mut moving = self.moving.lock();
        if is_moving != moving.is_some() {
            *moving = is_moving.then(|| Stalled::new(self.session.usage(), Pressure::Memory));
        }
    }

    /// Returns whether some block has nothing mapped at its addresses. Then no submission may pass.
    fn is_any_absent(&self) -> bool {
        self.absent.load(Relaxed) != 0
    }

    fn enter(&self, block: Arc<Block>) {
        self.blocks.write().insert(block.base, Arc::clone(&block));
        // The device may have been renumbered since the block was charged.
        block.follow(self);
    }

    /// Moves every charge to the current slot of its device. Called in the helper, which steps the moves
    /// afterwards.
    pub(crate) fn renumber(&self) {
        for block in self.all() {
            block.follow(self);
        }
        self.pool.renumber(self);
        self.renumber_swap_counts();
    }

    fn take(&self, base: u64) -> Option<Arc<Block>> {
        self.blocks.write().remove(&base)
    }
}

/// Handles `cuMemAlloc`: returns its result, or `None` if the ordinary path should serve it.
#[inline]
pub(crate) fn alloc(swap: &Swap, target: Target, address: *mut CUdeviceptr, bytes: u64) -> Option<CUresult> {
    if !swap.is_on() || bytes < LEAST || address.is_null() {
        return None;
    }
    alloc_block(swap, target, address, bytes)
}

/// Kept out of line, so that ordinary allocations stay short.
#[cold]
#[inline(never)]
fn alloc_block(swap: &Swap, target: Target, address: *mut CUdeviceptr, bytes: u64) -> Option<CUresult> {
    let size = bytes.checked_next_multiple_of(LEAST)?;
    thread::hold();
    let number = swap.next.fetch_add(1, Relaxed);
    let made = match swap.charge_block(target, size) {
        Ok(()) => {
            let make = || {
                let memory = physical::Memory::new(location(target.local.device(), Goal::Device), size)?;
                Block::new(target, number, bytes, memory, Where::Device)
            };
            let made = swap.memory.pressing(target.index, size, make);
            made.inspect_err(|_| swap.uncharge_block(target.index, size))
        }
        Err(refused) => Err(refused),
    };
    // Over the limit, or the device is full and no other process makes room: allocate in host memory, if
    // allowed.
    let made = match made {
        Err(CUerror::OUT_OF_MEMORY) => alloc_out(swap, target, number, bytes, size),
        made => made,
    };
    match made {
        Ok(block) => {
            swap.enter_block(&block, target.index);
            answer(address, CUdeviceptr(block.base));
            swap.enter(Arc::new(block));
            Some(Ok(()))
        }
        Err(CUerror::OUT_OF_MEMORY) => Some(Err(swap.refuse(target.index))),
        // Something else that virtual memory needs is missing.
        Err(_) => None,
    }
}

fn alloc_out(swap: &Swap, target: Target, number: u64, bytes: u64, size: u64) -> Result<Block, CUerror> {
    let index = target.index;
    if swap.swap_room(index) < size {
        return Err(CUerror::OUT_OF_MEMORY);
    }
    let _stalled = Stalled::new(swap.usage(), Pressure::Memory);
    let began = Instant::now();
    let host = location(target.local.device(), Goal::Host);
    let memory = loop {
        match swap.host_memory(index, host, size, began.elapsed() >= PATIENCE) {
            Ok(memory) => break memory,
            Err(NotMade::NotYet) if began.elapsed() < 2 * PATIENCE => std::thread::sleep(NAP),
            Err(_) => return Err(CUerror::OUT_OF_MEMORY),
        }
    };
    if !swap.charge_swap(index, size) {
        swap.keep(target.local, index, memory);
        return Err(CUerror::OUT_OF_MEMORY);
    }
    swap.leave_pool(index, size);
    let made = Block::new(target, number, bytes, memory, Where::Host).map_err(|_| {
        swap.uncharge_swap(index, size);
        swap.uncharge_host(index, size);
        CUerror::OUT_OF_MEMORY
    });
    // The device is full: processes may have to take turns.
    swap.session.ring();
    made
}

/// Handles `cuMemFree`: returns its result if `address` is the base of a block.
#[inline]
pub(crate) fn free(swap: &Swap, address: u64) -> Option<CUresult> {
    if !swap.is_on() {
        return None;
    }
    // Queued work may use the memory; the driver waits in cuMemFree too.
    free_after(swap, address, |block| {
        let context = swap.program.contexts.numbered(block.context);
        context.map_or(Ok(()), |context| context.synchronize())
    })
}

/// Handles `cuMemFreeAsync`: returns its result if `address` is the base of a block. Unlike the driver it
/// waits for the stream, because nothing else tells when the mapping may be removed.
#[inline]
pub(crate) fn free_on(swap: &Swap, address: u64, stream: CUstream) -> Option<CUresult> {
    if !swap.is_on() {
        return None;
    }
    free_after(swap, address, |_| driver::cuStreamSynchronize(stream))
}

#[cold]
fn free_after(swap: &Swap, address: u64, wait: impl Fn(&Block) -> CUresult) -> Option<CUresult> {
    let block = swap.take(address)?;
    let waited = wait(&block);
    let freed = waited.and_then(|()| forget(swap, &block));
    if freed.is_err() {
        swap.enter(block);
    }
    Some(freed)
}

/// Frees the blocks that were allocated in `context`, which has been destroyed.
pub(crate) fn context_gone(swap: &Swap, context: u32) {
    if !swap.is_on() {
        return;
    }
    let gone: Vec<_> = swap
        .all()
        .into_iter()
        .filter(|block| block.context == context)
        .collect();
    for block in gone {
        if swap.take(block.base).is_some() {
            // Where unmapping fails, the driver keeps the addresses until the program exits.
            let _ = forget(swap, &block);
        }
    }
}

fn forget(swap: &Swap, block: &Block) -> CUresult {
    let last = block.end(swap)?;
    swap.leave_block(block, last);
    Ok(())
}

#[cfg(test)]
impl Swap {
    /// Returns the engine of a process that did not opt in, without a daemon, a helper or a driver; `limit`
    /// is the memory limit for all devices together, bytes.
    pub(crate) fn of_test(limit: u64) -> &'static Self {
        let memory = Memory::of_test(limit);
        let compute = Box::leak(Box::new(Compute::new(memory.program)));
        Box::leak(Box::new(Self::new(memory, compute)))
    }

    /// Adopts `control` as the answer of a daemon.
    pub(crate) fn adopt(&self, control: &std::os::fd::OwnedFd) {
        self.memory.adopt(control);
        self.renumber();
    }
}
