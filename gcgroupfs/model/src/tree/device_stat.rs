//! `devices.stat`: what NVML shows of each GPU, beside what is charged there.

use std::fmt::{self, Display};

use super::claims::device_total;
use super::untrusted::UntrustedDevice;
use super::{ProcessId, Reason, State, Tree, usage};

/// Measurements of a device by NVML; `None`: it does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceSample {
    /// Bytes in use, by all processes and the driver.
    pub used: Option<u64>,
    /// Part of the last sampling period in which a kernel ran, percent.
    pub utilization: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
}

/// Line of `devices.stat`.
#[derive(Debug, Clone, Copy)]
pub struct DeviceStat {
    index: usize,
    total: u64,
    charged: u64,
    nr_governed: usize,
    nr_unmanaged: usize,
    sample: DeviceSample,
    critical_xid: Option<u64>,
}

impl Display for DeviceStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, sample, .. } = self;
        let known = |value: Option<u64>| value.map_or("unknown".to_owned(), |value| value.to_string());
        write!(
            f,
            "{index} memory_total={} memory_used={} memory_charged={} utilization={} temperature={} power_mw={} \
             governed={} unmanaged={} critical_xid={}",
            known(Some(self.total).filter(|total| *total != 0)),
            known(sample.used),
            self.charged,
            known(sample.utilization.map(Into::into)),
            known(sample.temperature.map(Into::into)),
            known(sample.power.map(Into::into)),
            self.nr_governed,
            self.nr_unmanaged,
            known(self.critical_xid),
        )
    }
}

impl State {
    /// Accounts for the energy of the GPU time that a process was charged since the last call.
    pub(super) fn account_energy(&mut self, id: ProcessId) {
        let samples = self.device_samples.iter().enumerate();
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        for (device, sample) in samples {
            let charged = usage::charged_nsec(process, device);
            process.energy.account(device, charged, sample.power.unwrap_or(0));
        }
    }
}

impl Tree {
    /// Stores what NVML shows of the devices, in the order of their indexes.
    pub fn set_device_samples(&self, samples: Vec<DeviceSample>) {
        let mut state = self.state.lock();
        state.device_samples = samples;
        for id in state.processes.keys().copied().collect::<Vec<_>>() {
            state.account_energy(id);
        }
    }

    /// Stores the last critical XID error of the GPU with a PCI address, and so of its MIG instances: 0 if
    /// there was none, `None` if it does not report errors any more. An error that it has reported stays.
    pub fn set_critical_xid(&self, pci: &str, xid: Option<u64>) {
        let mut state = self.state.lock();
        match xid {
            Some(xid) => _ = state.critical_xids.insert(pci.to_owned(), xid),
            None => state.critical_xids.retain(|of, xid| of != pci || *xid != 0),
        }
    }
}

impl State {
    pub(super) fn device_stats(&self) -> impl Iterator<Item = DeviceStat> {
        self.devices.iter().map(|device| {
            let index = device.index;
            let processes = self.processes.values();
            let uses = |usage: UntrustedDevice<'_>| usage.claims_use() || usage.nr_contexts() != 0;
            let (mut charged, mut nr_governed) = (0, 0);
            for process in processes {
                let current = usage::current(process, Some(index), &self.devices);
                charged = current.saturating_add(charged);
                let is_user = current != 0 || process.usage().device(index).is_some_and(uses);
                nr_governed += usize::from(is_user);
            }
            let unmanaged = self.audit.found.iter();
            let unmanaged = unmanaged.filter(|one| one.device == index && one.reason == Reason::NoHook);
            DeviceStat {
                index,
                total: device.total,
                charged: charged.min(device_total(index, &self.devices)),
                nr_governed,
                nr_unmanaged: unmanaged.count(),
                sample: self.device_samples.get(index).copied().unwrap_or_default(),
                critical_xid: self.critical_xids.get(&device.pci).copied(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::tree::fixture::{TOTAL, World};

    #[test]
    fn line_has_samples_charges_and_users() {
        let world = World::new(2);
        let ids = [100, 101, 102].map(|pid| world.join(pid));
        for id in &ids[..2] {
            world.usage(*id).devices[0].memory_current.store(30, Relaxed);
        }
        world.tree.set_device_samples(vec![DeviceSample {
            used: Some(70),
            utilization: Some(5),
            temperature: None,
            power: Some(70_500),
        }]);
        let text = world.show("devices.stat");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                format!(
                    "0 memory_total={TOTAL} memory_used=70 memory_charged=60 utilization=5 temperature=unknown \
                     power_mw=70500 governed=2 unmanaged=0 critical_xid=unknown"
                ),
                format!(
                    "1 memory_total={TOTAL} memory_used=unknown memory_charged=0 utilization=unknown \
                     temperature=unknown power_mw=unknown governed=0 unmanaged=0 critical_xid=unknown"
                ),
            ]
        );
    }

    #[test]
    fn reported_error_stays_when_reports_end() {
        let world = World::new(1);
        let pci = world.tree.state.lock().devices[0].pci.clone();
        let shown = || {
            let text = world.show("devices.stat");
            text.trim_end().rsplit_once('=').unwrap().1.to_owned()
        };
        for (xid, want) in [
            (Some(0), "0"),
            (None, "unknown"),
            (Some(0), "0"),
            (Some(79), "79"),
            (None, "79"),
        ] {
            world.tree.set_critical_xid(&pci, xid);
            assert_eq!(shown(), want, "{xid:?}");
        }
    }
}
