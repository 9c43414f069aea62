//! Parsing of control files. A file that a daemon of another version lacks or writes otherwise gives default
//! values.

use super::files::value;
use super::{Compute, DEVICE_STAT, Device, DeviceMemory, Events, Files, Lease, Memory, Quota, Swap, Usage};
use crate::Client;

impl Usage {
    /// Parses a directory's files. The effective limit is the own one.
    pub fn of(files: Files) -> Self {
        let number = |name: &str| files.number(name).unwrap_or(0);
        let mut quota = files.text("compute.max").unwrap_or_default().split(' ');
        let mut quota = || quota.next().and_then(|word| word.parse().ok());
        Self {
            memory: Memory {
                current: number("memory.current"),
                peak: number("memory.peak"),
                limit: files.number("memory.limit"),
                high: files.number("memory.high"),
                effective_limit: files.number("memory.limit"),
                swap: Swap {
                    current: number("memory.swap.current"),
                    max: files.number("memory.swap.max"),
                },
                events: files.keys("memory.events"),
                pressure: files.pressure("memory.pressure"),
            },
            compute: Compute {
                priority: number("compute.priority"),
                freeze: number("compute.freeze") == 1,
                max: Quota {
                    quota_usec: quota(),
                    period_usec: quota().unwrap_or(0),
                },
                stat: files.keys("compute.stat"),
                pressure: files.pressure("compute.pressure"),
            },
            suspend: files.text("gcgroup.suspend").map(|text| text == "1"),
            events: Events::of(files.text("gcgroup.events").unwrap_or_default()),
            files,
        }
    }
}

impl Events {
    fn of(text: &str) -> Self {
        let mut events = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let (is, number) = (value == "1", || value.parse().ok());
            match key {
                "populated" => events.populated = is,
                "frozen" => events.frozen = is,
                "suspended" => events.suspended = is,
                "away" => events.away = is,
                "suspend_step" => events.suspend_step = Some(value.to_owned()),
                "suspend_error" => events.suspend_error = Some(value.to_owned()),
                "nr_suspended" => events.nr_suspended = number(),
                "hook" => events.hook = Some(value.to_owned()),
                "draining" => events.draining = number(),
                "drain_error" => events.drain_error = number(),
                _ => {}
            }
        }
        events
    }
}

/// Reads the GPUs, with what the daemon knows of each at this moment.
///
/// # Errors
/// No daemon answers, or it refuses.
pub fn read_devices(client: &mut Client) -> anyhow::Result<Vec<Device>> {
    Ok(devices(&client.get("devices")??, &client.get(DEVICE_STAT)??))
}

impl Lease {
    /// Parses a group's lease; `None` without one.
    pub fn of(files: &Files) -> Option<Self> {
        Some(Self {
            seconds: files.number("gcgroup.lease")?,
            action: files.text("gcgroup.lease.action").unwrap_or_default().to_owned(),
            expired: files.value("gcgroup.events", "lease_expired") == Some("1"),
        })
    }
}

/// Parses `devices` and `devices.stat`. The names are the driver's.
pub fn devices(list: &str, stats: &str) -> Vec<Device> {
    let devices = list.lines().filter_map(|line| {
        let mut words = line.splitn(5, ' ');
        let (index, uuid, pci) = (words.next()?, words.next()?, words.next()?);
        let (total, name) = (words.next()?, words.next()?);
        let pairs = value(stats, index).unwrap_or_default();
        let mut files = Files::default();
        files.insert(DEVICE_STAT, &pairs.replace(' ', "\n").replace('=', " "));
        let stat = |key: &str| files.key(DEVICE_STAT, key);
        Some(Device {
            index: index.parse().ok()?,
            uuid: uuid.to_owned(),
            pci: pci.to_owned(),
            name: name.to_owned(),
            memory: DeviceMemory {
                total: stat("memory_total").or_else(|| total.parse().ok()),
                used: stat("memory_used"),
                charged: stat("memory_charged"),
            },
            utilization: stat("utilization"),
            temperature: stat("temperature"),
            power_mw: stat("power_mw"),
            governed: stat("governed"),
            unmanaged: stat("unmanaged"),
            files,
        })
    });
    devices.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Suspension;

    fn files<const N: usize>(pairs: [(&str, &str); N]) -> Files {
        let mut files = Files::default();
        for (name, text) in pairs {
            files.insert(name, text);
        }
        files
    }

    #[test]
    fn usage_has_numbers_of_each_file() {
        let pairs = [
            ("memory.current", "5\n"),
            ("memory.limit", "max\n"),
            ("memory.high", "4\n"),
            ("memory.swap.max", "7\n"),
            ("memory.events", "oom 3\ngroup_max 4\n"),
            ("compute.freeze", "1\n"),
            ("compute.max", "max 100000\n"),
            ("compute.stat", "nr_launches 6\nnr_copies 1\n"),
            (
                "compute.pressure",
                "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n\
                 full avg10=0.00 avg60=0.25 avg300=0.00 total=8\n",
            ),
            ("gcgroup.suspend", "1\n"),
            (
                "gcgroup.events",
                "populated 1\nfrozen 0\nsuspended 0\nhook ok\nsuspend_step drain\ndrain_error 700\n",
            ),
        ];
        let usage = Usage::of(files(pairs));
        assert_eq!((usage.memory.current, usage.memory.limit), (5, None));
        assert_eq!(usage.memory.high, Some(4));
        assert_eq!((usage.memory.swap.max, usage.refusals()), (Some(7), 7));
        assert!(usage.compute.freeze && usage.memory.pressure.is_none());
        assert_eq!(
            (usage.compute.max.quota_usec, usage.compute.max.period_usec),
            (None, 100_000)
        );
        assert_eq!(usage.submissions(), 7);
        assert_eq!(
            (usage.suspend, usage.suspension(false)),
            (Some(true), Suspension::Requested)
        );
        let pressure = usage.compute.pressure.unwrap();
        assert!((pressure.some.avg10, pressure.full.avg60) == (1.5, 0.25));
        assert_eq!((pressure.some.total_usec, pressure.full.total_usec), (9, 8));
        assert!(usage.events.populated && !usage.events.frozen);
        assert_eq!(usage.events.hook.as_deref(), Some("ok"));
        assert_eq!(usage.events.suspend_step.as_deref(), Some("drain"));
        assert_eq!(
            (usage.events.draining, usage.events.drain_error),
            (None, Some(700))
        );
    }

    #[test]
    fn suspension_follows_the_events_and_the_requests() {
        let of = |suspend: &str, events: &str, is_above| {
            let files = files([("gcgroup.suspend", suspend), ("gcgroup.events", events)]);
            Usage::of(files).suspension(is_above)
        };
        assert_eq!(of("0", "suspended 0\n", false), Suspension::None);
        assert_eq!(of("0", "suspended 0\n", true), Suspension::Requested);
        assert_eq!(of("1", "suspended 1\n", false), Suspension::Complete);
        for (step, suspension) in [
            ("checkpoint", Suspension::Requested),
            ("unlock", Suspension::None),
        ] {
            let events = format!("suspended 0\nsuspend_step {step}\n");
            assert_eq!(of("0", &events, false), suspension, "{step}");
        }
        let failed = "suspended 0\nsuspend_error lock\n";
        assert_eq!(of("1", failed, true), Suspension::Failed);
        assert_eq!(
            of("0", "suspended 1\nsuspend_step room\n", false),
            Suspension::Complete,
            "until its memory is back"
        );
        assert_eq!(Usage::of(Files::default()).suspend, None, "on one GPU");
    }

    #[test]
    fn devices_have_samples_and_names_with_blanks() {
        let list = "0 GPU-a 0000:01:00.0 100 Big GPU\n1 GPU-b - 200 Other\n";
        let stats = "0 memory_total=100 memory_used=70 memory_charged=60 utilization=5 temperature=unknown \
                     power_mw=1500 governed=2 unmanaged=0\n";
        let devices = devices(list, stats);
        assert_eq!(devices.len(), 2);
        let first = &devices[0];
        assert_eq!((first.name.as_str(), first.memory.used), ("Big GPU", Some(70)));
        assert_eq!((first.utilization, first.temperature), (Some(5), None));
        assert_eq!(
            (devices[1].memory.total, devices[1].memory.used),
            (Some(200), None)
        );
    }
}
