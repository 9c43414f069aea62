//! Tests that the memory limit is exact to the byte for every allocation function, also when threads and
//! processes race.

use support::{Config, Mount};

use crate::driver::{Dir, DriverShell};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";

/// Every kind of memory that is charged, with the driver's allocation granularity in bytes.
const CHARGED: &[(&str, u64)] = &[
    ("linear", 1),
    ("managed", 1),
    ("async", 32 * MIB),
    ("pool", 32 * MIB),
    ("vmm", 2 * MIB),
    ("array", 64 << 10),
];

#[test]
fn block_up_to_limit_fits_and_one_unit_more_is_refused() {
    let mount = Mount::new();
    for &(kind, unit) in CHARGED {
        let limit = 128 * MIB;
        let mut shell = DriverShell::start(&mount);
        let dir = Dir::of(&mount, shell.pid());
        dir.write("memory.limit", limit);
        assert_eq!(
            shell.ask(&format!("alloc {kind} {}", limit + unit)),
            OUT_OF_MEMORY,
            "{kind}: allocation over the limit"
        );
        assert_eq!(
            dir.number("memory.current"),
            0,
            "{kind}: charge left by a refused allocation"
        );
        assert_eq!(
            shell.ask(&format!("alloc {kind} {}", limit - unit)),
            "ok 0",
            "{kind}: allocation of all but one unit"
        );
        assert_eq!(dir.number("memory.current"), limit - unit, "{kind}");
        assert_eq!(
            shell.ask(&format!("alloc {kind} {unit}")),
            "ok 1",
            "{kind}: allocation of the last unit"
        );
        assert_eq!(dir.number("memory.current"), limit, "{kind}");
        assert_eq!(
            shell.ask(&format!("alloc {kind} {unit}")),
            OUT_OF_MEMORY,
            "{kind}: allocation at the limit"
        );
        assert_eq!(
            dir.number("memory.peak"),
            limit,
            "{kind}: the peak exceeds the limit"
        );
        assert!(dir.key("memory.events", "oom") >= 2, "{kind}");
        assert_eq!(shell.ask("free 0"), "ok", "{kind}");
        assert_eq!(shell.ask("free 1"), "ok", "{kind}");
        shell.quit();
    }
}

#[test]
fn every_free_function_uncharges_memory() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    for (id, kind) in ["linear", "managed", "vmm", "array"].into_iter().enumerate() {
        assert_eq!(
            shell.ask(&format!("alloc {kind} {}", 4 * MIB)),
            format!("ok {id}"),
            "{kind}"
        );
        assert!(dir.number("memory.current") >= 4 * MIB, "{kind}");
        assert_eq!(
            dir.key("memory.stat", kind),
            dir.number("memory.current"),
            "{kind}"
        );
        assert_eq!(shell.ask(&format!("free {id}")), "ok", "{kind}");
        assert_eq!(dir.number("memory.current"), 0, "{kind}");
    }
    assert_eq!(dir.key("memory.stat", "nr_alloc"), 4);
    assert_eq!(dir.key("memory.stat", "nr_free"), 4);
}

#[test]
fn pitched_memory_charge_includes_padding() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let answer = shell.ask("pitched 1000 100");
    let pitch: u64 = answer
        .rsplit(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .expect("a pitch");
    assert!(pitch > 1000, "{answer}");
    assert_eq!(dir.number("memory.current"), pitch * 100);
    // The padding is charged: this limit has room for the requested bytes, but not for the padded rows.
    dir.write("memory.limit", pitch * 200 - 1);
    assert_eq!(shell.ask("pitched 1000 100"), OUT_OF_MEMORY);
    assert_eq!(
        dir.number("memory.current"),
        pitch * 100,
        "the refused allocation was not undone"
    );
    dir.write("memory.limit", pitch * 200);
    assert!(shell.ask("pitched 1000 100").starts_with("ok 1"));
}

#[test]
fn host_allocation_is_shown_and_not_charged() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", MIB);
    assert_eq!(shell.ask(&format!("alloc host {}", 4 * MIB)), "ok 0");
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.key("memory.stat", "host"), 4 * MIB);
    assert_eq!(shell.ask("free 0"), "ok");
    assert_eq!(dir.key("memory.stat", "host"), 0);
}

#[test]
fn refused_allocation_does_not_call_the_driver() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let bare = |shell: &mut DriverShell| {
        let text = shell.ask("meminfo");
        text.split(' ')
            .next()
            .and_then(|text| text.parse::<u64>().ok())
            .expect("free bytes")
    };
    let before = bare(&mut shell);
    dir.write("memory.limit", MIB);
    assert_eq!(shell.ask(&format!("alloc linear {}", 2 * MIB)), OUT_OF_MEMORY);
    dir.write("memory.limit", "max");
    assert_eq!(bare(&mut shell), before);
}

#[test]
fn freeing_unknown_pointer_returns_drivers_answer() {
    let mount = Mount::new();
    let mut governed = DriverShell::start(&mount);
    let mut bare = DriverShell::start_bare(&mount);
    for pointer in ["1", "deadbeef000", "ffffffffffffffff", "0"] {
        let command = format!("freeptr {pointer}");
        assert_eq!(governed.ask(&command), bare.ask(&command), "{pointer}");
    }
    assert_eq!(Dir::of(&mount, governed.pid()).number("memory.current"), 0);
}

#[test]
fn limit_below_usage_keeps_blocks_and_refuses_new_ones() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask(&format!("alloc linear {}", 64 * MIB)), "ok 0");
    dir.write("memory.limit", 16 * MIB);
    assert_eq!(dir.number("memory.limit"), 16 * MIB);
    assert_eq!(
        dir.number("memory.current"),
        64 * MIB,
        "a lowered limit freed memory"
    );
    assert_eq!(dir.key("memory.events", "over_limit"), 1);
    assert_eq!(shell.ask("alloc linear 1"), OUT_OF_MEMORY);
    assert_eq!(dir.key("memory.events", "max"), 1);
    assert_eq!(dir.key("memory.events", "oom"), 1);
    assert_eq!(shell.ask("free 0"), "ok");
    assert_eq!(shell.ask(&format!("alloc linear {}", 16 * MIB)), "ok 1");
}

#[test]
fn program_sees_limit_as_its_memory() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let card = shell.ask("totalmem");
    dir.write("memory.limit", 100 * MIB);
    assert_eq!(shell.ask("meminfo"), format!("{} {}", 100 * MIB, 100 * MIB));
    assert_eq!(shell.ask("totalmem"), format!("{}", 100 * MIB));
    assert_eq!(shell.ask(&format!("alloc linear {}", 30 * MIB)), "ok 0");
    assert_eq!(shell.ask("meminfo"), format!("{} {}", 70 * MIB, 100 * MIB));
    dir.write("memory.limit", 10 * MIB);
    assert_eq!(
        shell.ask("meminfo"),
        format!("0 {}", 10 * MIB),
        "the free memory under a lowered limit is not 0"
    );
    dir.write("memory.limit", "1000T");
    assert_eq!(
        shell.ask("totalmem"),
        card,
        "a limit above the device's memory is shown as the total"
    );
    dir.write("memory.limit", "max");
    assert_eq!(shell.ask("totalmem"), card);
}

#[test]
fn tighter_of_process_and_device_limit_applies() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    dir.write("memory.limit", 100 * MIB);
    dir.gpu(0).write("memory.limit", 60 * MIB);
    assert_eq!(
        shell.ask(&format!("alloc linear {}", 61 * MIB)),
        OUT_OF_MEMORY,
        "allocation over the device's limit"
    );
    assert_eq!(shell.ask(&format!("alloc linear {}", 60 * MIB)), "ok 0");
    assert_eq!(shell.ask("gpu 1"), "ok");
    assert_eq!(
        shell.ask(&format!("alloc linear {}", 41 * MIB)),
        OUT_OF_MEMORY,
        "allocation over the process's limit"
    );
    assert_eq!(shell.ask(&format!("alloc linear {}", 40 * MIB)), "ok 1");
    assert_eq!(dir.gpu(0).number("memory.current"), 60 * MIB);
    assert_eq!(dir.gpu(1).number("memory.current"), 40 * MIB);
    assert_eq!(dir.number("memory.current"), 100 * MIB);
}

#[test]
fn racing_threads_fill_limit_exactly() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    let (block, room) = (MIB, 500);
    dir.write("memory.limit", block * room + 1);
    assert_eq!(shell.ask(&format!("race 16 {block}")), format!("raced {room}"));
    assert_eq!(dir.number("memory.current"), block * room);
    assert_eq!(dir.number("memory.peak"), block * room);
}

#[test]
fn racing_processes_never_exceed_gpu_memory() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_MEMORY", "1G")
            .env("SIMGPU_CONTEXT_MEMORY", 0),
    );
    let mut shells: Vec<_> = (0..6).map(|_| DriverShell::start(&mount)).collect();
    for shell in &mut shells {
        shell.tell(&format!("race 4 {MIB}"));
    }
    let blocks: u64 = shells
        .iter_mut()
        .map(|shell| {
            shell
                .answer()
                .rsplit(' ')
                .next()
                .and_then(|text| text.parse::<u64>().ok())
                .expect("a count")
        })
        .sum();
    assert_eq!(blocks, 1024);
    let charged: u64 = shells
        .iter()
        .map(|shell| Dir::of(&mount, shell.pid()).number("memory.current"))
        .sum();
    assert_eq!(charged, 1 << 30);
}

#[test]
fn any_write_resets_peak() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    shell.ask(&format!("alloc linear {}", 8 * MIB));
    shell.ask("free 0");
    assert_eq!(dir.number("memory.peak"), 8 * MIB);
    shell.ask(&format!("alloc linear {}", 2 * MIB));
    dir.write("memory.peak", "reset");
    assert_eq!(dir.number("memory.peak"), 2 * MIB);
    shell.ask("free 1");
    assert_eq!(dir.number("memory.peak"), 2 * MIB);
    shell.ask(&format!("alloc linear {}", 3 * MIB));
    assert_eq!(dir.number("memory.peak"), 3 * MIB);
}
