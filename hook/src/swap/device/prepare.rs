//! What a device's moves need is made, a block at a time, while nothing is held.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gcgroup_abi::UsageDevice;

use super::super::block::{Block, Failed, Goal, Way};
use super::super::made::make;
use super::super::supply::NotMade;
use super::super::task::Task;
use super::{Device, Phase};
use crate::compute::{Step, elsewhere};
use crate::helper;
use crate::process::Process;

/// Between looks while another process makes host memory, and for how long that is waited for.
const A_MOMENT: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_secs(30);

impl Device {
    /// Makes what one block needs; when all have that, holds everything.
    pub(super) fn prepare(
        &mut self,
        process: &Process,
        index: usize,
        usage: &UsageDevice,
        mut task: Task,
    ) -> Step {
        let Some(block) = task.blocks.pop() else {
            return self.close(process, index, usage, task);
        };
        let mut wake = Duration::ZERO;
        match block.way(task.to) {
            Way::None => {}
            Way::Alone if task.to != Goal::Aside => task.alone.push_back(block),
            Way::Alone => match helper::in_driver(|| process.reserve_host(index, block.size))
                .unwrap_or(Err(Failed::Driver.into()))
            {
                Ok(()) => {
                    task.reserved += block.size;
                    task.alone.push_back(block);
                }
                Err(NotMade::NotYet) => {
                    task.blocks.push(block);
                    wake = A_MOMENT;
                }
                Err(NotMade::NotGranted) => self.leave_out(&mut task, &block),
                Err(NotMade::Failed(failed)) => task.give_up(failed),
            },
            Way::Exchange => {
                let is_late = self.waits_since.is_some_and(|since| since.elapsed() > LATE);
                let made = make(process, index, &block, task.to, is_late);
                if !matches!(made, Err(NotMade::NotYet)) {
                    self.waits_since = None;
                }
                match made {
                    Ok(ready) => task.ready.push(ready),
                    Err(NotMade::NotYet) => {
                        self.waits_since.get_or_insert_with(Instant::now);
                        task.blocks.push(block);
                        wake = A_MOMENT;
                    }
                    Err(NotMade::Failed(Failed::Refused))
                        if task.is_frozen && elsewhere::is_all_frozen(process) =>
                    {
                        process.swap.is_host_refused.store(true, Relaxed);
                        task.to = Goal::Aside;
                        task.blocks.push(block);
                    }
                    Err(NotMade::NotGranted) => self.leave_out(&mut task, &block),
                    Err(NotMade::Failed(failed)) => task.give_up(failed),
                }
            }
        }
        self.phase = Phase::Preparing(task);
        Step {
            wake: Some(wake),
            has_news: false,
        }
    }

    /// The groups above have no room for a block on the host, and so for none as large; there may be for smaller ones.
    fn leave_out(&mut self, task: &mut Task, block: &Block) {
        self.not_granted = Some(block.size);
        task.blocks.retain(|other| other.size < block.size);
    }
}
