//! Device allocations that can be moved to host memory and back under a fixed address.
//!
//! In a process that opted in, each large allocation is physical memory mapped at a reserved address (CUDA
//! Driver API, "Virtual Memory Management"), so that other physical memory can replace it. To the program it
//! behaves like memory of `cuMemAlloc`.
//!
//! * `allocation`: one such allocation; `block`: a part of it, which moves by itself; `physical`: the driver
//!   objects behind it; `location`: where host memory can be made; `probe`: what the driver can do; `peers`:
//!   other devices that may use the memory.
//! * `account`: charges; `counts`: move statistics; `grant`: host memory granted by the groups above; `host`:
//!   how much host memory may be taken.
//! * `mover`: runs in the helper thread and moves what `task` selects, in the order of `policy`. For each
//!   `device`, the needed memory is prepared first (`move_memory`), from the swap pool (`pool`) or new. Then
//!   all submissions are held and the blocks are moved in one `run`, or one by one (`relocate`). `turn`: the
//!   bound that the daemon sets where processes take turns. `notice`: what the program is told before.
#![doc = include_str!("swap/swap.md")]

mod account;
pub mod allocation;
mod block;
mod counts;
mod device;
mod grant;
mod host;
mod location;
mod move_memory;
pub mod mover;
mod notice;
mod peers;
mod physical;
mod piece;
mod policy;
mod pool;
mod probe;
mod relocate;
mod run;
mod settings;
mod task;
mod turn;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::compute::Compute;
use crate::driver::thread;
use crate::memory::Memory;
use crate::program::Program;
use crate::shared::device::LocalDevice;
use crate::shared::session::Session;
use crate::shared::stall::Stalled;
use allocation::Allocation;
use block::{Block, Where};
use counts::Counts;
use gcgroup_abi::{Control, MAX_DEVICES, Pressure, Usage};
use grant::Requests;
use host::Host;
use location::Locations;
use peers::Peers;
use physical::Access;
use pool::SwapPool;

/// Smallest allocation that is made movable, bytes: one page of device memory.
pub(crate) const LEAST: u64 = 2 << 20;

/// Largest part of an allocation that moves by itself, bytes.
const LARGEST: u64 = 256 << 20;

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
    /// Live allocations by base address.
    allocations: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    /// Number of the next block.
    next: AtomicU64,
    /// Bytes reserved on the host for moves under way, by slot. Locked while host memory is charged against
    /// the two `memory.swap.max` limits, of the device and of the process.
    reserved: Mutex<[u64; MAX_DEVICES]>,
    host: Host,
    locations: Locations,
    peers: Peers,
    /// Whether memory of each device is made for GPUDirect RDMA, once known.
    rdma: [OnceLock<bool>; MAX_DEVICES],
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
            allocations: RwLock::default(),
            next: AtomicU64::new(1),
            reserved: Mutex::new([0; MAX_DEVICES]),
            host: Host::new(),
            locations: Locations::new(),
            peers: Peers::new(),
            rdma: [const { OnceLock::new() }; MAX_DEVICES],
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

    /// Returns the live allocation that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        if !self.is_on() {
            return None;
        }
        let allocations = self.allocations.read();
        let (_, allocation) = allocations.range(..=address).next_back()?;
        allocation.contains(address).then(|| Arc::clone(allocation))
    }

    /// Returns all live blocks in the order of their creation.
    fn all(&self) -> Vec<Arc<Block>> {
        let allocations = self.allocations.read();
        let blocks = allocations.values().flat_map(|allocation| allocation.blocks());
        let mut all: Vec<_> = blocks.filter(|block| !block.is_ended()).cloned().collect();
        drop(allocations);
        all.sort_unstable_by_key(|block| block.number);
        all
    }

    /// Returns whether blocks can no longer be moved to the host while the program runs.
    fn is_host_no_use(&self) -> bool {
        self.is_host_refused() || self.is_stuck.load(Relaxed)
    }

    fn count_absent(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => self.absent.fetch_add(1, Relaxed),
            (true, false) => self.absent.fetch_sub(1, Relaxed),
            _ => return,
        };
    }

    /// Brings an allocation back to the device and keeps it there. Waits for the move for at most 10 s.
    pub(crate) fn pin(&self, address: u64) {
        let Some(allocation) = self.find(address) else {
            return;
        };
        let returning: Vec<_> = allocation.blocks().filter(|block| block.pin(self)).collect();
        if returning.is_empty() {
            return;
        }
        self.session.line.wake();
        thread::hold();
        self.session.want_gpu();
        let _stalled = Stalled::new(self.usage(), Pressure::Memory);
        let began = Instant::now();
        while returning.iter().any(|block| block.place() == Where::Host) && began.elapsed() < PATIENCE {
            std::thread::sleep(NAP);
        }
        for block in returning {
            // The block is settled before it is exported; memory that cannot be released stays with it.
            let _ = block.settle(self);
        }
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

    fn enter(&self, allocation: Arc<Allocation>) {
        let base = allocation.base;
        self.allocations.write().insert(base, Arc::clone(&allocation));
        // The device may have been renumbered since the blocks were charged.
        allocation.blocks().for_each(|block| block.follow(self));
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

    /// Returns the first of `count` numbers for blocks.
    fn take_numbers(&self, count: u64) -> u64 {
        self.next.fetch_add(count, Relaxed)
    }

    fn take(&self, base: u64) -> Option<Arc<Allocation>> {
        self.allocations.write().remove(&base)
    }

    /// Returns the devices that may use the memory of a device.
    fn access(&self, local: LocalDevice) -> Access {
        Access {
            device: local.device(),
            peers: self.peers.of(local),
        }
    }
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
