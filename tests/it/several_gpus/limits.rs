//! Tests limits of devices and of the whole process together, and what the program sees of them.

use support::{Config, Mount};

use super::{Devices, INVALID_CONTEXT, MIB, OUT_OF_MEMORY, charged, gpus, program};
use crate::driver::Dir;
use crate::nvml::Nvml;

#[test]
fn tightest_of_device_and_process_limits_is_exact() {
    let mount = gpus(3);
    let mut devices = Devices::on(&mount, 3);
    let dir = Dir::of(&mount, devices.0.pid());
    let base = charged(&dir, 3);
    let all: u64 = base.iter().sum();
    dir.write("memory.limit", all + 20 * MIB);
    for (index, own) in (0..).zip([8, 16, 100]) {
        dir.gpu(index)
            .write("memory.limit", base[index as usize] + own * MIB);
    }
    devices.ok("current 0");
    devices.refused(&format!("alloc {}", 8 * MIB + 1));
    let first = devices.ok(&format!("alloc {}", 8 * MIB));
    devices.refused("alloc 1");
    assert_eq!(devices.ask("meminfo"), [0, 0, base[0] + 8 * MIB]);

    // The device's limit leaves 16 MiB, that of the whole process 12 MiB.
    devices.ok("current 1");
    assert_eq!(devices.ask("meminfo")[1], 12 * MIB);
    devices.refused(&format!("alloc {}", 12 * MIB + 1));
    let second = devices.ok(&format!("alloc {}", 12 * MIB));
    assert_eq!(
        devices.ask("meminfo"),
        [0, 0, (base[1] + 16 * MIB).min(all + 20 * MIB)]
    );
    devices.ok("current 2");
    devices.refused("alloc 1");
    assert_eq!(devices.ask("meminfo")[1], 0);
    assert_eq!(dir.number("memory.current"), all + 20 * MIB);

    devices.ok(&format!("free {first}"));
    devices.ok(&format!("alloc {}", 8 * MIB));
    devices.refused("alloc 1");
    devices.ok(&format!("free {second}"));
    assert_eq!(devices.ask("meminfo")[1], 12 * MIB);
    let refusals = |dir: &Dir<'_>| dir.key("memory.events", "oom");
    assert_eq!(refusals(&dir.gpu(0)), 2);
    assert_eq!(refusals(&dir.gpu(1)) + refusals(&dir.gpu(2)), 0);
    assert_eq!(
        refusals(&dir),
        5,
        "the process does not count its devices' refusals"
    );
    assert_eq!(dir.number("memory.peak"), all + 20 * MIB);
}

#[test]
fn threads_on_several_devices_fill_process_limit_exactly() {
    let mount = gpus(4);
    let mut devices = Devices::on(&mount, 4);
    let dir = Dir::of(&mount, devices.0.pid());
    let base = charged(&dir, 4);
    let all: u64 = base.iter().sum();
    dir.write("memory.limit", all + 200 * 4096 + 4095);
    for (index, base) in (0..).zip(&base[..3]) {
        dir.gpu(index).write("memory.limit", base + 60 * 4096);
    }
    let got = devices.ask("race 4096");
    assert_eq!(got.iter().sum::<u64>(), 200, "{got:?}");
    assert!(got[..3].iter().all(|blocks| *blocks <= 60), "{got:?}");
    let want: Vec<u64> = base
        .iter()
        .zip(&got)
        .map(|(base, blocks)| base + blocks * 4096)
        .collect();
    assert_eq!(charged(&dir, 4), want);
}

/// Tests that the charge on each device matches the driver's own count, wherever memory is allocated, freed
/// and destroyed from.
#[test]
fn device_charges_match_driver_through_thousand_calls() {
    const GPUS: u32 = 3;
    let mount = gpus(GPUS);
    let mut devices = Devices::start(&mount);
    let mut truth = Nvml::bare(&mount);
    let pid = devices.0.pid();
    let dir = Dir::of(&mount, pid);
    // A context and a stream in it on each device, and a pool.
    let (mut contexts, mut streams) = (Vec::new(), Vec::new());
    for device in 0..u64::from(GPUS) {
        contexts.push(devices.ok(&format!("create {device}")));
        streams.push(devices.ok("stream 1"));
        devices.ok(&format!("pool {device}"));
        dir.gpu(u32::try_from(device).expect("the device number fits"))
            .write("memory.limit", 300 * MIB);
    }
    dir.write("memory.limit", 600 * MIB);

    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % bound as u64).expect("the remainder fits")
    };
    let mut held: Vec<u64> = Vec::new();
    let (mut refused, mut allocated) = (0, 0);
    for call in 1..=1000 {
        let (here, there) = (below(GPUS as usize), below(GPUS as usize));
        devices.ok(&format!("current {}", contexts[here]));
        let bytes = (below(24) as u64 + 1) * MIB - below(2) as u64 * 100;
        let command = match below(12) {
            0 => format!("alloc {bytes}"),
            1 => format!("managed {bytes}"),
            2 => format!("array {}", bytes.min(100_000)),
            3 => format!("vmm {there} {}", bytes.next_multiple_of(2 * MIB)),
            4 => format!("async {bytes} {}", streams[there]),
            5 => format!("from {there} {bytes} {}", streams[there]),
            6 => format!("async {bytes} null"),
            7 if below(20) == 0 => {
                // Everything the context owned goes with it; the rest is freed, or its handles are invalid.
                let gone = contexts[there];
                devices.ok(&format!("destroy {gone}"));
                contexts[there] = devices.ok(&format!("create {there}"));
                streams[there] = devices.ok("stream 1");
                continue;
            }
            _ if held.is_empty() => continue,
            _ => {
                let one = held.swap_remove(below(held.len()));
                devices.ask(&format!("free {one}"));
                continue;
            }
        };
        match devices.ask(&command)[..] {
            [0, memory] => {
                held.push(memory);
                allocated += 1;
            }
            [OUT_OF_MEMORY, _] => refused += 1,
            // A stream that was destroyed with its context.
            ref other => assert!(
                other[0] == 400 || other[0] == INVALID_CONTEXT,
                "{command}: {other:?}"
            ),
        }
        if call % 50 == 0 {
            for device in 0..GPUS {
                devices.ok(&format!("current {}", contexts[device as usize]));
                devices.ok("sync");
            }
            for device in 0..GPUS {
                let charged = dir.gpu(device).number("memory.current");
                let holds = truth.computing(device).get(&pid).copied().unwrap_or(0);
                assert_eq!(charged, holds, "device {device}, call {call}");
                assert!(charged <= 300 * MIB, "device {device}, call {call}: {charged}");
            }
            let all = dir.number("memory.current");
            assert!(all <= 600 * MIB, "call {call}: {all}");
        }
    }
    assert!(
        allocated > 200 && refused > 10,
        "{allocated} allocated, {refused} refused"
    );
}

#[test]
fn queries_report_each_device_and_at_most_its_memory() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_DEVICES", 2)
            .env("SIMGPU_MEMORY", "1G"),
    );
    let mut devices = Devices::on(&mount, 2);
    let dir = Dir::of(&mount, devices.0.pid());
    let current = charged(&dir, 2);
    dir.gpu(1).write("memory.limit", 256 * MIB);
    assert_eq!(devices.ok("total 0"), 1024 * MIB);
    assert_eq!(devices.ok("total 1"), 256 * MIB);
    assert_eq!(devices.ask("meminfo"), [0, 256 * MIB - current[1], 256 * MIB]);
    devices.ok("current 0");
    assert_eq!(devices.ask("meminfo")[2], 1024 * MIB);
    dir.gpu(0).write("memory.limit", "1T");
    assert_eq!(devices.ok("total 0"), 1024 * MIB);
    assert_eq!(devices.ask("meminfo")[2], 1024 * MIB);

    devices.ok(&format!("alloc {}", 100 * MIB));
    dir.gpu(0).write("memory.limit", 50 * MIB);
    assert_eq!(
        devices.ask("meminfo"),
        [0, 0, 50 * MIB],
        "the free memory under a lowered limit is not 0"
    );
    assert_eq!(devices.ok("total 0"), 50 * MIB);
    dir.gpu(0).write("memory.limit", 0);
    assert_eq!(devices.ask("meminfo"), [0, 0, 0]);
    assert_eq!(devices.ask("total 0"), [0, 0]);
    dir.gpu(0).write("memory.limit", "max");

    let mut bare = Devices::spawn(mount.bare_command(program()));
    bare.ok("init");
    bare.contexts(2);
    assert_eq!(
        devices.ask("nulls 0"),
        bare.ask("nulls 0"),
        "the answers to null pointers differ from the driver's"
    );

    // Queries of pools and graphs return the driver's answer, also under a limit.
    let pool = devices.ok("pool 1");
    devices.ok("current 1");
    let taken = devices.ok(&format!("from {pool} {} null", 8 * MIB));
    let (reserved, used) = (
        devices.ok(&format!("attribute {pool} 5")),
        devices.ok(&format!("attribute {pool} 7")),
    );
    assert!(used >= 8 * MIB && used <= reserved && reserved <= 256 * MIB);
    assert_eq!(dir.gpu(1).key("memory.stat", "pool"), reserved);
    devices.refused(&format!("from {pool} {} null", 256 * MIB));
    assert_eq!(
        devices.ok(&format!("attribute {pool} 7")),
        used,
        "a refused allocation changed the pool"
    );
    devices.ok(&format!("free {taken}"));
    devices.ok("sync");
    for attribute in 0..4 {
        assert_eq!(devices.ok(&format!("graphmem 1 {attribute}")), 0);
    }
}
