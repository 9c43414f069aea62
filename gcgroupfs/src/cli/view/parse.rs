//! Parsing of control files. A file that a daemon of another version lacks or writes otherwise gives default
//! values.

use std::collections::BTreeMap;

use super::{Compute, Device, Events, Lease, Memory, Pressure, Quota, Stall, Swap, Usage};

/// Control files of a process or a group, and of one on a GPU.
pub(super) const FILES: &[&str] = &[
    "memory.current",
    "memory.peak",
    "memory.limit",
    "memory.high",
    "memory.swap.current",
    "memory.swap.max",
    "memory.events",
    "memory.pressure",
    "compute.priority",
    "compute.freeze",
    "compute.max",
    "compute.stat",
    "compute.pressure",
    "gcgroup.events",
    "gcgroup.suspend",
    "gcgroup.lease",
    "gcgroup.lease.action",
];

/// Texts of control files, by name.
pub(super) type Files = BTreeMap<String, String>;

/// Parses a directory's files. The effective limit is the own one.
pub(super) fn usage(files: &Files) -> Usage {
    let text = |name: &str| files.get(name).map_or("", |text| text.trim());
    let number = |name: &str| text(name).parse().unwrap_or(0);
    let bound = |name: &str| text(name).parse().ok();
    let pairs = |name: &str| flat_keyed(text(name));
    let pressure = |name: &str| files.contains_key(name).then(|| pressure(text(name)));
    let quota: Vec<Option<u64>> = text("compute.max")
        .split(' ')
        .map(|word| word.parse().ok())
        .collect();
    let events = text("gcgroup.events");
    let event = |key: &str| {
        events
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
    };
    Usage {
        memory: Memory {
            current: number("memory.current"),
            peak: number("memory.peak"),
            limit: bound("memory.limit"),
            high: bound("memory.high"),
            effective_limit: bound("memory.limit"),
            swap: Swap {
                current: number("memory.swap.current"),
                max: bound("memory.swap.max"),
            },
            events: pairs("memory.events"),
            pressure: pressure("memory.pressure"),
        },
        compute: Compute {
            priority: number("compute.priority"),
            freeze: number("compute.freeze") == 1,
            max: Quota {
                quota_usec: quota.first().copied().flatten(),
                period_usec: quota.get(1).copied().flatten().unwrap_or(0),
            },
            stat: pairs("compute.stat"),
            pressure: pressure("compute.pressure"),
        },
        suspend: files
            .contains_key("gcgroup.suspend")
            .then(|| number("gcgroup.suspend") == 1),
        events: Events {
            populated: event("populated") == Some("1"),
            frozen: event("frozen") == Some("1"),
            suspended: event("suspended") == Some("1"),
            suspend_step: event("suspend_step").map(str::to_owned),
            suspend_error: event("suspend_error").map(str::to_owned),
            nr_suspended: event("nr_suspended").and_then(|number| number.parse().ok()),
            hook: event("hook").map(str::to_owned),
            draining: event("draining").and_then(|pid| pid.parse().ok()),
            drain_error: event("drain_error").and_then(|error| error.parse().ok()),
        },
    }
}

/// Parses a group's lease; `None` without one.
pub(super) fn lease(files: &Files) -> Option<Lease> {
    let text = |name: &str| files.get(name).map_or("", |text| text.trim());
    Some(Lease {
        seconds: text("gcgroup.lease").parse().ok()?,
        action: text("gcgroup.lease.action").to_owned(),
        expired: text("gcgroup.events")
            .lines()
            .any(|line| line == "lease_expired 1"),
    })
}

/// Parses `KEY NUMBER` lines.
fn flat_keyed(text: &str) -> BTreeMap<String, u64> {
    let pairs = text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.parse().ok()?))
    });
    pairs.collect()
}

/// Parses the format of the kernel's PSI.
fn pressure(text: &str) -> Pressure {
    let stall = |what: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(what));
        let value = |key: &str| {
            let mut words = line.unwrap_or_default().split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let average = |key: &str| value(key).and_then(|text| text.parse().ok()).unwrap_or(0.0);
        Stall {
            avg10: average("avg10"),
            avg60: average("avg60"),
            avg300: average("avg300"),
            total_usec: value("total").and_then(|text| text.parse().ok()).unwrap_or(0),
        }
    };
    Pressure {
        some: stall("some "),
        full: stall("full "),
    }
}

/// Parses `devices` and `devices.stat`. The names are the driver's.
pub(super) fn devices(list: &str, stats: &str) -> Vec<Device> {
    let devices = list.lines().filter_map(|line| {
        let mut words = line.splitn(5, ' ');
        let (index, uuid, pci) = (words.next()?, words.next()?, words.next()?);
        let (total, name) = (words.next()?, words.next()?);
        let mut device = Device {
            index: index.parse().ok()?,
            uuid: uuid.to_owned(),
            pci: pci.to_owned(),
            name: name.to_owned(),
            ..Device::default()
        };
        let stat = stats
            .lines()
            .find_map(|line| line.strip_prefix(index)?.strip_prefix(' '));
        let value = |key: &str| {
            let mut words = stat.unwrap_or_default().split(' ');
            let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.and_then(|text| text.parse().ok())
        };
        device.memory.total = value("memory_total").or_else(|| total.parse().ok());
        device.memory.used = value("memory_used");
        device.memory.charged = value("memory_charged");
        device.utilization = value("utilization");
        device.temperature = value("temperature");
        device.power_mw = value("power_mw");
        device.governed = value("governed");
        device.unmanaged = value("unmanaged");
        Some(device)
    });
    devices.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::view::Suspension;

    #[test]
    fn files_of_the_snapshot_exist() {
        for file in FILES {
            let mut rows = gcgroupfs_model::files::all();
            assert!(rows.any(|row| row.name == *file), "{file}");
        }
    }

    #[test]
    fn usage_has_numbers_of_each_file() {
        let files = [
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
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let usage = usage(&files.into());
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
            let files = [("gcgroup.suspend", suspend), ("gcgroup.events", events)];
            let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
            usage(&files.into()).suspension(is_above)
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
        assert_eq!(usage(&Files::new()).suspend, None, "on one GPU");
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
