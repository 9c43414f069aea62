//! Host memory made in advance (`GCGROUP_SWAP_AHEAD`) for the blocks that would move next, so that a move
//! takes no longer than its copies. It is kept in the swap pool; nothing else is displaced for it.

use std::time::{Duration, Instant};

use gcgroup_abi::{NO_LIMIT, try_charge_granted};

use super::Swap;
use super::block::{Failed, Where};
use super::policy::{Candidate, choose};
use super::pool::{NotMade, Wanted};
use crate::driver::exit::in_driver;

/// Interval between checks, because nothing reports that blocks come and go.
const LOOK: Duration = Duration::from_secs(1);
/// Interval between attempts while another process makes host memory.
const A_MOMENT: Duration = Duration::from_millis(20);
/// How long memory that other processes needed is left to them.
const LEFT: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(super) struct Prefill {
    /// Most bytes to make (`GCGROUP_SWAP_AHEAD`).
    bytes: u64,
    next: Instant,
}

impl Prefill {
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            bytes,
            next: Instant::now(),
        }
    }

    /// Stops making memory for [`LEFT`] and unmarks the pool, because other processes need it.
    pub(super) fn give_way(&mut self, swap: &Swap) {
        self.next = Instant::now() + LEFT;
        swap.pool.want(&[]);
    }

    /// Makes one missing piece if it is time to check. Returns how long until the next check. Called while
    /// nothing moves.
    pub(super) fn step(&mut self, swap: &Swap, order: Option<&str>) -> Option<Duration> {
        if self.bytes == 0 {
            return None;
        }
        let left = self.next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Some(left);
        }
        let pause = self.look(swap, order);
        self.next = Instant::now() + pause;
        Some(pause)
    }

    fn look(&mut self, swap: &Swap, order: Option<&str>) -> Duration {
        let wanted = match swap.is_host_no_use() {
            true => Vec::new(),
            false => in_driver(|| wanted(swap, order, self.bytes)).unwrap_or_default(),
        };
        let is_too_much =
            |one: &Wanted| !swap.is_host_granted(one.index) || swap.swap_room(one.index) < swap.pool_bytes();
        if swap.host.is_short() || wanted.iter().any(is_too_much) {
            let is_gone = in_driver(|| swap.let_go(true)).unwrap_or(false);
            return if is_gone { Duration::ZERO } else { LOOK };
        }
        let Some(lacking) = swap.pool.want(&wanted) else {
            return LOOK;
        };
        match in_driver(|| swap.make_ahead(lacking)) {
            Some(Ok(())) => Duration::ZERO,
            Some(Err(NotMade::NotYet)) => A_MOMENT,
            // The driver cannot map host memory at all and is not asked again.
            Some(Err(NotMade::Failed(Failed::Refused))) => {
                self.bytes = 0;
                LOOK
            }
            _ => LOOK,
        }
    }
}

/// Returns the memory that the next blocks to move out need. Called inside `in_driver`.
fn wanted(swap: &Swap, order: Option<&str>, bytes: u64) -> Vec<Wanted> {
    let mut blocks = swap.all();
    blocks.retain(|block| block.place() == Where::Device && !block.is_pinned());
    let candidates: Vec<_> = blocks
        .iter()
        .enumerate()
        .map(|(at, block)| Candidate {
            at,
            number: block.number,
            size: block.size,
            whole: block.whole,
        })
        .collect();
    let chosen = choose(order, &candidates, bytes, bytes);
    let each = chosen.into_iter().filter_map(|at| blocks.get(at));
    each.map(|block| Wanted {
        local: block.local,
        index: swap.session.devices.index(block.local),
        size: block.size,
    })
    .collect()
}

impl Swap {
    /// Makes one piece from spare host memory within the existing grant. Called inside `in_driver`.
    fn make_ahead(&self, wanted: Wanted) -> Result<(), NotMade> {
        let (index, size) = (wanted.index, wanted.size);
        let no_room = || NotMade::Failed(Failed::NoRoom);
        if self.swap_room(index) < self.pool_bytes().saturating_add(size) {
            return Err(no_room());
        }
        let usage = self.usage().devices.get(index).ok_or_else(no_room)?;
        try_charge_granted(&usage.swap_charged, &usage.swap_granted, size, NO_LIMIT)
            .map_err(|_| no_room())?;
        let made = self
            .claim_spare(size)
            .map_err(NotMade::from)
            .and_then(|_claim| Ok(self.new_host_memory(wanted.local, size)?));
        match made {
            Ok(memory) => {
                self.enter_pool(wanted.local, index, memory);
                Ok(())
            }
            Err(error) => {
                self.uncharge_host(index, size);
                Err(error)
            }
        }
    }
}
