//! A snapshot for tests.

use std::time::Instant;

use super::{Device, Group, OnDevice, Process, Snapshot, Usage};

fn usage(current: u64, limit: Option<u64>) -> Usage {
    let mut usage = Usage::default();
    usage.memory.current = current;
    usage.memory.effective_limit = limit;
    usage.compute.priority = 8;
    usage.compute.stat.insert("nr_launches", 7);
    usage
}

fn process(pid: u32, uid: u32, group: Option<&str>, devices: &[(usize, u64)]) -> Process {
    let on = |&(index, current)| OnDevice {
        index,
        usage: usage(current, Some(2048)),
    };
    Process {
        pid,
        uid,
        user: uid.to_string(),
        comm: "train".into(),
        group: group.map(str::to_owned),
        host: None,
        waits: vec![],
        rates: None,
        usage: usage(devices.iter().map(|(_, current)| current).sum(), None),
        devices: devices.iter().map(on).collect(),
    }
}

fn group(path: &str, uid: u32) -> Group {
    Group {
        path: path.into(),
        uid,
        user: uid.to_string(),
        lease: None,
        rates: None,
        usage: usage(0, Some(4096)),
        devices: vec![],
    }
}

/// Groups a, a/b and c; processes 7 and 100 in a/b, 101 in none.
pub fn snapshot() -> Snapshot {
    let device = |index| Device {
        index,
        uuid: format!("GPU-{index}"),
        utilization: Some(45),
        ..Device::default()
    };
    Snapshot {
        version: 1,
        time: 0.0,
        at: Instant::now(),
        policy: "weighted".into(),
        devices: vec![device(0), device(1)],
        groups: vec![group("a", 1), group("a/b", 4_000_000), group("c", 4_000_000)],
        processes: vec![
            process(7, 4_000_000, Some("a/b"), &[(0, 1024), (1, 3072)]),
            process(100, 4_000_001, Some("a/b"), &[(1, 2048)]),
            process(101, 4_000_001, Some(""), &[]),
        ],
    }
}
