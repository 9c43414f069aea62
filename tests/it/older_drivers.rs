//! Tests drivers older than the library: the functions they have are governed, and missing functions disable
//! nothing else.

use support::{Config, Mount, artifacts, c_program, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;
const DRIVERS: [&str; 4] = ["11.8", "12.2", "12.8", "13.5"];

fn each(body: impl Fn(&Mount, &str)) {
    for driver in DRIVERS {
        body(
            &Mount::with(Config::default().env("SIMGPU_DRIVER", driver)),
            driver,
        );
    }
}

#[test]
fn limit_holds_for_every_memory_kind_on_each_driver() {
    each(|mount, driver| {
        for (kind, unit) in [
            ("linear", 1),
            ("managed", 1),
            ("async", 32 * MIB),
            ("pool", 32 * MIB),
            ("vmm", 2 * MIB),
            ("array", 64 << 10),
        ] {
            let mut shell = DriverShell::spawn(mount.command(driver_shell()));
            let dir = Dir::of(mount, shell.pid());
            let limit = 64 * MIB;
            dir.write("memory.limit", limit);
            let mut alloc = |bytes| shell.ask(&format!("alloc {kind} {bytes}"));
            assert_eq!(alloc(limit + unit), "error 2", "{kind} on {driver}");
            assert_eq!(alloc(limit), "ok 0", "{kind} on {driver}");
            assert_eq!(dir.number("memory.current"), limit, "{kind} on {driver}");
            assert_eq!(alloc(unit), "error 2", "{kind} on {driver}");
            assert_eq!(dir.number("memory.peak"), limit, "{kind} on {driver}");
            assert_eq!(shell.ask("free 0"), "ok", "{kind} on {driver}");
            assert_eq!(
                shell.ask("meminfo").split(' ').nth(1),
                Some("67108864"),
                "{driver}"
            );
        }
    });
}

#[test]
fn launches_are_counted_and_frozen_on_each_driver() {
    each(|mount, driver| {
        let mut shell = DriverShell::start(mount);
        let dir = Dir::of(mount, shell.pid());
        assert_eq!(shell.ask("spin 10 20"), "ok", "{driver}");
        assert_eq!(shell.ask("sync"), "ok", "{driver}");
        assert_eq!(dir.launches(), 20, "{driver}");
        wait_until("no kernel is pending", || {
            dir.key("gcgroup.stat", "nr_pending_kernels") == 0
        });
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        shell.tell("spin 10 5");
        wait_until("the launch waits at the gate", || {
            dir.key("compute.stat", "nr_frozen") == 1
        });
        assert_eq!(dir.launches(), 20, "{driver}");
        dir.write("compute.freeze", 0);
        assert_eq!(shell.answer(), "ok", "{driver}");
        assert_eq!(dir.launches(), 25, "{driver}");
    });
}

#[test]
fn every_look_up_way_is_counted_on_each_driver() {
    let path = format!("-L{}", artifacts().simgpu().display());
    let linked = c_program("ways.c", &["-DLINKED", &path, "-lcuda", "-ldl"]);
    let unlinked = c_program("ways.c", &["-ldl"]);
    each(|mount, driver| {
        let mut ways = vec![(&linked, "linked"), (&unlinked, "dlsym"), (&unlinked, "ex")];
        if driver != "11.8" {
            // The program uses both look-up functions; the newer one came with CUDA 12.
            ways.extend([(&unlinked, "proc1"), (&unlinked, "proc2"), (&unlinked, "ptsz")]);
        }
        for (program, way) in ways {
            let mut command = mount.command(program);
            command.args([way, "7"]);
            let mut program = support::Governed::spawn(command);
            program.expect("launched 7");
            assert_eq!(Dir::of(mount, program.pid()).launches(), 7, "{way} on {driver}");
        }
    });
}

#[test]
fn missing_driver_functions_leave_the_rest_governed() {
    let mount = Mount::with(Config::default().env("SIMGPU_DRIVER", "11.8"));
    let mut calls = Calls::start(&mount);
    // Functions of different kinds that are newer than this driver; none exists.
    for call in [
        "cuCtxCreate_v4 0 0 0 0",
        "cuMemcpyBatchAsync_v2 0 0 0 0 0 0 0 0",
        "cuMemGetMemPool 0 0 0",
    ] {
        assert_eq!(calls.ask(&format!("call {call}")), "absent", "{call}");
    }
    let dir = Dir::of(&mount, calls.pid());
    dir.write("memory.limit", MIB);
    // Checks the last rows of the hook's table as well as the first.
    assert_eq!(calls.call("cuMemAlloc_v2 &a 2000000"), OUT_OF_MEMORY);
    calls.ok("cuMemAlloc_v2 &a 1000000");
    assert_eq!(dir.number("memory.current"), 1_000_000);
    for _ in 0..3 {
        calls.ok("cuMemsetD32Async $a 0 1000 0");
        calls.ok("cuMemcpyDtoDAsync_v2 $a $a 100 0");
    }
    assert_eq!(dir.key("compute.stat", "nr_copies"), 6);
}
