//! Tests `devices.stat` against what the simulated GPU holds and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;

use support::{Config, Mount, wait_until};

use crate::driver::{Dir, DriverShell};

const MIB: u64 = 1 << 20;

/// Returns the line of a device.
fn stat(mount: &Mount, device: usize) -> BTreeMap<String, String> {
    let text = mount.read("", "devices.stat");
    let line = text.lines().nth(device).expect("a line for each device");
    let (index, pairs) = line.split_once(' ').expect("pairs");
    assert_eq!(index, device.to_string());
    let pairs = pairs
        .split(' ')
        .map(|pair| pair.split_once('=').expect("KEY=VALUE"));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Reports XID errors of GPUs, at once.
fn fail_gpus(mount: &Mount, errors: &[(usize, u64)]) {
    let lines: String = errors.iter().map(|(gpu, xid)| format!("{gpu} {xid}\n")).collect();
    let file = mount.simgpu_dir().join("xid");
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .expect("xid");
    file.write_all(lines.as_bytes()).expect("xid");
}

#[test]
fn devices_stat_shows_critical_xid_errors_only() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let xid = |device| stat(&mount, device)["critical_xid"].clone();
    let shows = |device, expected: &str| {
        wait_until(&format!("GPU {device} shows {expected}"), || {
            xid(device) == expected
        });
    };
    shows(0, "0");
    shows(1, "0");
    fail_gpus(&mount, &[(0, 31), (1, 79)]);
    shows(1, "79");
    assert_eq!(xid(0), "0", "an error of a program");
    fail_gpus(&mount, &[(0, 48)]);
    shows(0, "48");
    // Errors of one GPU are reported in their order.
    fail_gpus(&mount, &[(0, 13), (0, 43), (0, 45), (0, 68), (0, 109), (0, 74)]);
    let mut seen = BTreeSet::new();
    wait_until("GPU 0 shows 74", || {
        seen.insert(xid(0));
        seen.contains("74")
    });
    let expected = ["48", "74"].map(str::to_owned);
    assert!(seen.is_subset(&expected.into()), "{seen:?}");
    assert_eq!(xid(1), "79");
}

#[test]
fn devices_stat_shows_memory_and_users_of_each_gpu() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_MEMORY", "1G"),
    );
    let mut governed = DriverShell::start(&mount);
    let mut bare = DriverShell::start_bare(&mount);
    assert_eq!(governed.ask(&format!("alloc linear {}", 96 * MIB)), "ok 0");
    assert_eq!(bare.ask(&format!("alloc linear {}", 32 * MIB)), "ok 0");
    let dir = Dir::of(&mount, governed.pid());
    wait_until("both processes are counted and the last sample is new", || {
        let (stat, truth) = (stat(&mount, 0), mount.truth());
        let used = truth.used_at_once(0).map(|bytes| bytes.to_string());
        stat["governed"] == "1" && stat["unmanaged"] == "1" && Some(&stat["memory_used"]) == used.as_ref()
    });
    let first = stat(&mount, 0);
    assert_eq!(first["memory_total"], (1024 * MIB).to_string());
    assert_eq!(
        first["memory_charged"],
        dir.gpu(0).number("memory.current").to_string()
    );
    assert_eq!(first["temperature"], "unknown", "the simulated GPU has none");
    assert!(
        first["utilization"]
            .parse::<u32>()
            .is_ok_and(|percent| percent <= 100),
        "{first:?}"
    );
    let second = stat(&mount, 1);
    assert_eq!(
        (second["governed"].as_str(), second["memory_charged"].as_str()),
        ("0", "0")
    );
}
