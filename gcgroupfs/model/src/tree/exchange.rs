//! Resumption on another GPU: which GPU is requested, what speaks against it, and the charges that move.

use std::sync::atomic::Ordering::Relaxed;

use super::process::Process;
use super::settings::{MEMORY_LIMIT, SUSPEND};
use super::suspension::Exchange;
use super::{Device, Edit, Entity, Notice, ProcessId, State, Tree, enforce, usage};
use crate::error::{Error, Result};
use crate::text::parse_number;

/// First driver (major version) that restores on other GPUs.
const SINCE: u32 = 580;

/// Format of `gcgroup.suspend`, for error messages.
const EXPECTED: &str = "0, 1, or 0 gpu=INDEX with the index of a GPU in the file devices";

impl Edit<'_> {
    /// Writes `gcgroup.suspend`: 0 or 1, and after a 0 the GPU on which to resume, as `gpu=1`.
    ///
    /// # Errors
    /// As [`set`](Self::set), and for a GPU:
    /// * `EINVAL`, `ERANGE`: there is no such GPU.
    /// * `EOPNOTSUPP`: a process here is not suspended, or cannot be resumed on that GPU.
    pub(crate) fn suspend(&mut self, text: &str) -> Result<()> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (value, wanted) = match words.as_slice() {
            [value @ "0", gpu] => {
                let gpu = gpu.strip_prefix("gpu=").ok_or(Error::bad(EXPECTED, text))?;
                let nr_devices = self.state().devices.len();
                let most = nr_devices.saturating_sub(1) as u64;
                let gpu = parse_number(gpu, most, "the index of a GPU in the file devices")?;
                (
                    *value,
                    self.exchanges(usize::try_from(gpu).unwrap_or(usize::MAX))?,
                )
            }
            _ => (text, Vec::new()),
        };
        self.set(SUSPEND, value)?;
        let exchange_of = |id| {
            let found = wanted.iter().find(|(process, _)| *process == id);
            found.and_then(|(_, exchange)| *exchange)
        };
        let all = self.processes()?.into_iter();
        let all = all.map(|process| (process.id, exchange_of(process.id))).collect();
        self.with_state(|state, notices| state.request_exchanges(all, notices));
        Ok(())
    }

    /// Returns which GPUs change places for each process here, so that all are resumed on one GPU.
    fn exchanges(&self, gpu: usize) -> Result<Vec<(ProcessId, Option<Exchange>)>> {
        let state = self.state();
        let all = self.processes()?.into_iter();
        let is_here = |process: &Process| process.suspension.is_suspended();
        let is_group = matches!(self.directory().whose(), Entity::Group(_));
        let waiting: Vec<_> = match is_group {
            true => all
                .filter(|process| process.suspends() || is_here(process))
                .collect(),
            false => all.collect(),
        };
        if waiting.is_empty() {
            return Err(Error::NotSupported("no process is suspended"));
        }
        let exchanges = waiting.into_iter().map(|process| {
            let exchange = state.exchange_to(process, gpu).map_err(Error::NotSupported)?;
            Ok((process.id, exchange))
        });
        exchanges.collect()
    }
}

impl State {
    /// Returns which GPUs must change places for a suspended process to be resumed on a GPU; `None` if it is
    /// its own.
    fn exchange_to(
        &self,
        process: &Process,
        gpu: usize,
    ) -> std::result::Result<Option<Exchange>, &'static str> {
        let suspension = &process.suspension;
        let moved = suspension.moved.as_deref().unwrap_or_default();
        if !suspension.is_suspended() {
            return Err("the process is not suspended");
        }
        if suspension.is_returning {
            return Err("the process is being resumed already");
        }
        let (from, bytes) = match moved {
            [] => return Err("the process holds no GPU memory"),
            [(from, bytes)] => (*from, *bytes),
            _ => return Err("the process holds memory of several GPUs"),
        };
        if from == gpu {
            return Ok(None);
        }
        let (Some(old), Some(new)) = (self.devices.get(from), self.devices.get(gpu)) else {
            return Err("the GPU of the process is not known");
        };
        match self.cannot_move_to(process, (old, new), bytes) {
            Some(reason) => Err(reason),
            None => Ok(Some(Exchange { from, to: gpu })),
        }
    }

    /// Returns why a process with so many bytes on one GPU cannot be resumed on another, as far as that is
    /// known without the driver.
    fn cannot_move_to(
        &self,
        process: &Process,
        (old, new): (&Device, &Device),
        bytes: u64,
    ) -> Option<&'static str> {
        let uuid = Some(new.uuid_text.as_str());
        let is_listed = process
            .inherited
            .device_list()
            .is_none_or(|list| list.contains(&new.uuid_text));
        let mut groups = self.chain(process.group).into_iter();
        let is_too_much = groups.any(|id| {
            let group = self.groups.get(&id);
            group.is_some_and(|group| group.settings.of_group(MEMORY_LIMIT, uuid).number() < bytes)
        });
        if self.driver.is_some_and(|driver| driver < SINCE) {
            Some("the driver is older than 580 and resumes a process on its own GPU only")
        } else if self.devices.iter().any(Device::is_instance) {
            Some("a GPU is divided by MIG, and the driver then resumes a process on its own GPU only")
        } else if old.name != new.name {
            Some("the GPU is of another model than that of the process")
        } else if !is_listed {
            Some("gcgroup.devices of a group of the process does not list the GPU")
        } else if process.settings.get(MEMORY_LIMIT, uuid).number() < bytes {
            Some("memory.limit of the process on the GPU is too small")
        } else if is_too_much {
            Some("memory.limit of a group on the GPU is too small")
        } else if new.total != 0 && new.total < bytes {
            Some("the GPU has not enough memory")
        } else {
            None
        }
    }

    /// Stores which GPUs change places when processes are resumed, except for those that are being resumed.
    fn request_exchanges(&mut self, wanted: Vec<(ProcessId, Option<Exchange>)>, notices: &mut Vec<Notice>) {
        for (id, exchange) in wanted {
            let process = self.processes.get_mut(&id);
            let Some(process) = process.filter(|process| !process.suspension.is_returning) else {
                continue;
            };
            if std::mem::replace(&mut process.suspension.exchange, exchange) != exchange {
                notices.push(Notice::SettingsChanged(id));
            }
        }
    }

    /// Moves what the daemon counts itself for a process whose library now counts on another GPU.
    pub(super) fn exchange_devices(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let suspension = &process.suspension;
        let Some(exchange) = suspension.exchange.filter(|_| suspension.is_suspended()) else {
            return;
        };
        let Exchange { from, to } = exchange;
        let overheads = [from, to].map(|slot| usage::overhead(process, slot, &self.devices));
        for (slot, bytes) in [to, from].into_iter().zip(overheads) {
            enforce::store_overhead(process, slot, bytes);
        }
        let estimated = [from, to].map(|slot| {
            let kept = process.devices.get(slot);
            kept.is_some_and(|kept| kept.is_overhead_estimated)
        });
        for (slot, is_estimated) in [to, from].into_iter().zip(estimated) {
            if let Some(kept) = process.kept_mut(Some(slot)) {
                kept.is_overhead_estimated = is_estimated;
            }
        }
        self.grants.exchange(id, exchange);
        self.swap_grants.exchange(id, exchange);
    }
}

impl Tree {
    /// Notes that a process is restored on another GPU, on which the library does not count it yet.
    pub fn set_restored(&self, id: ProcessId) {
        if let Some(process) = self.state.lock().processes.get_mut(&id) {
            process.suspension.is_restored = process.suspension.is_suspended();
        }
    }

    /// Ends the order to make no driver calls, and returns whether the library has asked the driver since
    /// then which GPUs the process has. A process that registers again gets the order anew, so call this
    /// until it is `true`.
    pub fn identify(&self, id: ProcessId) -> bool {
        let mut has_identified = true;
        self.update(|state, notices| {
            let Some(process) = state.processes.get(&id) else {
                return;
            };
            if process.control().suspend_generation.load(Relaxed) != 0 {
                enforce::hold_helper(process, false);
                notices.push(Notice::Ring(id));
            }
            has_identified = process.usage().suspend_generation() == 0;
        });
        has_identified
    }
}
