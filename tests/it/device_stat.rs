//! Tests `devices.stat` against what the simulated GPU holds and runs.

use std::collections::BTreeMap;

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
