//! Preparation of moves, one block at a time, while nothing is held.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gcgroup_abi::UsageDevice;

use super::super::block::{Block, Failed, Goal, Way};
use super::super::move_memory::make;
use super::super::pool::NotMade;
use super::super::task::Task;
use super::{Device, Phase};
use crate::compute::elsewhere;
use crate::driver::exit::in_driver;
use crate::helper::Step;
use crate::swap::Swap;

/// Interval between attempts while a move waits for other processes or for the daemon.
const A_MOMENT: Duration = Duration::from_millis(1);

impl Device {
    /// Prepares one block; when all are prepared, holds submissions.
    pub(super) fn prepare(&mut self, swap: &Swap, index: usize, usage: &UsageDevice, mut task: Task) -> Step {
        let Some(block) = task.blocks.pop() else {
            return self.close(swap, index, usage, task);
        };
        let mut wake = Duration::ZERO;
        match prepare_block(swap, index, &mut task, &block) {
            Err(NotMade::NotYet) if !task.waits.is_late() => {
                task.waits.begin();
                task.blocks.push(block);
                wake = A_MOMENT;
            }
            made => {
                task.waits.end();
                match made {
                    Ok(()) => {}
                    Err(NotMade::Failed(Failed::Refused))
                        if task.is_frozen && elsewhere::is_all_frozen(swap.compute) =>
                    {
                        swap.is_host_refused.store(true, Relaxed);
                        task.to = Goal::Aside;
                        task.blocks.push(block);
                    }
                    Err(NotMade::NotGranted | NotMade::NotYet) => self.leave_out(&mut task, &block),
                    Err(NotMade::Failed(failed)) => task.give_up(failed),
                }
            }
        }
        self.phase = Phase::Preparing(task);
        Step::after(wake)
    }

    /// Drops a block that the groups above do not grant, and all that are as large. Smaller ones may fit.
    fn leave_out(&mut self, task: &mut Task, block: &Block) {
        self.not_granted = Some(block.size);
        task.blocks.retain(|other| other.size < block.size);
    }
}

fn prepare_block(swap: &Swap, index: usize, task: &mut Task, block: &Arc<Block>) -> Result<(), NotMade> {
    match block.way(task.to) {
        Way::None => {}
        Way::Alone => {
            if task.to == Goal::Aside {
                in_driver(|| swap.reserve_host(index, block.size)).unwrap_or(Err(Failed::Driver.into()))?;
                task.reserved += block.size;
            }
            task.alone.push_back(Arc::clone(block));
        }
        Way::Exchange => {
            let ready = make(swap, index, block, task.to, task.waits.is_late())?;
            task.ready.push(ready);
        }
    }
    Ok(())
}
