//! Tests the memory of contexts: measured, shown, and counted against the limit.

use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;

use gcgroup_abi::{MAX_THREADS, Thread, Usage, UsageDevice};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Mount, is_stopped, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::{Dir, DriverShell, driver_shell, governed_pids};
use crate::holes::usage_block;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 64 * MIB;

fn config() -> Config {
    Config::default()
        .env("SIMGPU_DEVICES", 2)
        .env("SIMGPU_CONTEXT_MEMORY", "64M")
}

fn mount() -> Mount {
    Mount::with(config())
}

fn context(dir: &Dir<'_>) -> u64 {
    dir.key("memory.stat", "context")
}

#[test]
fn context_memory_counts_in_current_peak_and_limit() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    wait_until("the context is measured", || context(&dir) == CONTEXT);
    assert_eq!(context(&dir.gpu(0)), CONTEXT);
    assert_eq!(
        context(&dir.gpu(1)),
        0,
        "the other device is charged for the context"
    );
    assert_eq!(dir.number("memory.current"), CONTEXT);
    assert_eq!(dir.gpu(0).number("memory.peak"), CONTEXT);
    for level in [dir.clone(), dir.gpu(0)] {
        level.write("memory.limit", CONTEXT + 10 * MIB);
        calls.ok("cuMemGetInfo_v2 &free &total");
        assert_eq!(calls.get("free"), 10 * MIB);
        assert_eq!(calls.get("total"), CONTEXT + 10 * MIB);
        assert_eq!(
            calls.call(&format!("cuMemAlloc_v2 &block {}", 10 * MIB + 1)),
            OUT_OF_MEMORY
        );
        calls.ok(&format!("cuMemAlloc_v2 &block {}", 10 * MIB));
        assert_eq!(level.number("memory.current"), CONTEXT + 10 * MIB);
        assert_eq!(level.number("memory.peak"), CONTEXT + 10 * MIB);
        calls.ok("cuMemFree_v2 $block");
        level.write("memory.limit", "max");
    }
}

#[test]
fn contexts_come_and_go_on_every_device() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok("cuCtxCreate_v2 &second 0 0");
    wait_until("both contexts of the first device are measured", || {
        context(&dir.gpu(0)) == 2 * CONTEXT
    });
    calls.ok("cuCtxCreate_v2 &third 0 1");
    wait_until("the second device's context is measured", || {
        context(&dir.gpu(1)) == CONTEXT
    });
    assert_eq!(context(&dir), 3 * CONTEXT);
    calls.ok("cuCtxDestroy_v2 $third");
    calls.ok("cuCtxDestroy_v2 $second");
    wait_until("the destroyed contexts are uncharged", || {
        context(&dir) == CONTEXT
    });
    assert_eq!(dir.number("memory.peak"), 3 * CONTEXT, "the peak has decreased");
    calls.ok("cuDevicePrimaryCtxReset_v2 0");
    wait_until("the last context is uncharged", || {
        dir.number("memory.current") == 0
    });
}

/// Nothing tells how much managed memory is on the device, so no measurement can tell that a module is not.
#[test]
fn unloaded_modules_beside_managed_memory_are_uncharged() {
    const MODULE: u64 = 20 * MIB;
    let mount = Mount::with(config().env("SIMGPU_CODE_SIZE", 0));
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    wait_until("the context is measured", || context(&dir) == CONTEXT);
    dir.write("memory.limit", CONTEXT + 300 * MIB);
    calls.ok(&format!("cuMemAllocManaged &block {} 1", 200 * MIB));
    let ptx = format!(".version 7.8\n.target sm_75\n.visible .global .align 4 .b8 table[{MODULE}];\n");
    let bytes: String = ptx.bytes().map(|byte| format!("{byte:02x}")).collect();
    calls.fill("code", &bytes);
    for _ in 0..8 {
        calls.ok("cuModuleLoadData &module &code");
        assert_eq!(context(&dir), CONTEXT + MODULE);
        wait_until("the module is measured", || {
            dir.key("memory.stat", "context_estimated") == 0
        });
        calls.ok("cuModuleUnload $module");
        assert_eq!(context(&dir), CONTEXT);
    }
}

#[test]
fn contexts_beside_managed_memory_are_charged_as_measured() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok(&format!("cuMemAllocManaged &block {} 1", 100 * MIB));
    for _ in 0..3 {
        for nr_contexts in [2, 3] {
            calls.ok(&format!("cuCtxCreate_v2 &context{nr_contexts} 0 0"));
            wait_until("the context is measured", || {
                context(&dir) == nr_contexts * CONTEXT && dir.key("memory.stat", "context_estimated") == 0
            });
        }
        calls.ok("cuCtxDestroy_v2 $context2");
        assert_eq!(context(&dir), 2 * CONTEXT, "the rest stays charged");
        assert_eq!(dir.key("memory.stat", "context_estimated"), 0);
        calls.ok("cuCtxDestroy_v2 $context3");
        wait_until("the destroyed contexts are uncharged", || {
            dir.number("memory.current") == CONTEXT + 100 * MIB
        });
    }
}

#[test]
fn contexts_are_measured_with_longer_nvml_entries() {
    let mount = Mount::with(config().env("SIMGPU_DRIVER", "12.2"));
    let shells: [_; 3] = std::array::from_fn(|_| DriverShell::start(&mount));
    for shell in &shells {
        let dir = Dir::of(&mount, shell.pid());
        wait_until("the context is measured", || context(&dir) == CONTEXT);
    }
    assert_eq!(
        mount.read("", "unmanaged"),
        "",
        "a governed process is listed as unmanaged"
    );
}

#[test]
fn allocations_in_progress_are_not_taken_for_a_context() {
    let mount = mount();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    wait_until("the context is measured", || context(&dir) == CONTEXT);
    // The limit has room for the most that all threads hold at once, so every refusal is wrong.
    let (threads, blocks) = (4, 8);
    dir.write("memory.limit", CONTEXT + threads * blocks * MIB);
    let answer = calls.ask(&format!("churn 3 {threads} {MIB} {blocks}"));
    assert!(answer.ends_with(" refused 0"), "{answer}");
    wait_until("the context is measured", || context(&dir) == CONTEXT);
    assert!(dir.number("memory.peak") <= CONTEXT + threads * blocks * MIB);
}

#[test]
fn restarted_daemon_measures_contexts_again() {
    let mut mount = mount();
    let shell = DriverShell::start(&mount);
    wait_until("the context is measured", || {
        context(&Dir::of(&mount, shell.pid())) == CONTEXT
    });
    mount.kill9();
    mount.restart();
    wait_until("the process has registered again", || mount.governs(shell.pid()));
    wait_until("the context is measured again", || {
        context(&Dir::of(&mount, shell.pid())) == CONTEXT
    });
}

#[test]
fn process_in_pid_namespace_is_known_by_daemons_pid() {
    let mount = mount();
    let calls = Calls::start_apart(&mount);
    assert_eq!(calls.pid(), 1, "the pid in the process's own namespace");
    let pids = governed_pids(&mount);
    let dir = Dir::of(&mount, pids[0]);
    assert_eq!(pids.len(), 1);
    wait_until("the context is measured", || context(&dir) == CONTEXT);
}

/// Tests a driver that does not tell what each process holds: the device's memory in use is divided.
#[test]
fn contexts_are_estimated_where_driver_does_not_tell() {
    for quirk in ["nvml-zero", "nvml-missing"] {
        let mount = Mount::with(config().env("SIMGPU_QUIRKS", quirk));
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        wait_until(&format!("the context is estimated: {quirk}"), || {
            context(&dir) == CONTEXT
        });
        assert_eq!(dir.key("memory.stat", "context_estimated"), CONTEXT, "{quirk}");
        assert_eq!(context(&dir.gpu(1)), 0, "{quirk}");
        calls.ok(&format!("cuMemAlloc_v2 &block {}", 8 * MIB));
        let mut others = [Calls::start(&mount), Calls::start(&mount)];
        for other in &mut others {
            other.ok(&format!("cuMemAlloc_v2 &block {}", 32 * MIB));
        }
        // A third context of a process counts as the process's.
        others[0].ok("cuCtxCreate_v2 &second 0 0");
        let all = [&calls, &others[0], &others[1]].map(|calls| Dir::of(&mount, calls.pid()));
        wait_until(&format!("every context is estimated: {quirk}"), || {
            all.iter().all(|dir| context(dir) == 4 * CONTEXT / 3)
        });
        assert_eq!(dir.number("memory.current"), 4 * CONTEXT / 3 + 8 * MIB, "{quirk}");
        // By now the process has corrected its charge by its part, which remains an estimate.
        let estimated = dir.key("memory.stat", "context_estimated");
        assert_eq!(estimated, 4 * CONTEXT / 3, "{quirk}");
        let limit = 4 * CONTEXT / 3 + 10 * MIB;
        dir.write("memory.limit", limit);
        assert_eq!(
            calls.call(&format!("cuMemAlloc_v2 &more {}", 3 * MIB)),
            OUT_OF_MEMORY,
            "{quirk}"
        );
        drop(others);
        wait_until(&format!("its own context is left: {quirk}"), || {
            context(&dir) == CONTEXT
        });
        calls.ok("cuMemFree_v2 $block");
        calls.ok("cuDevicePrimaryCtxReset_v2 0");
        wait_until(&format!("the context is uncharged: {quirk}"), || {
            dir.number("memory.current") == 0
        });
    }
}

#[test]
fn context_that_driver_lists_late_is_measured_then() {
    let mount = Mount::with(config().env("SIMGPU_QUIRKS", "nvml-late"));
    let calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    wait_until("the context is measured", || {
        context(&dir) == CONTEXT && dir.key("memory.stat", "context_estimated") == 0
    });
    assert_eq!(dir.number("memory.current"), CONTEXT);
}

/// Returns how many calls of the process are marked in its usage block as not charged in full on the first
/// device: what the device holds meanwhile is no overhead.
fn nr_unsettled(pid: i32) -> u32 {
    let block = usage_block(pid);
    let word = |offset: usize| {
        let mut word = [0; size_of::<u32>()];
        let read = block.read_exact_at(&mut word, offset.try_into().expect("a small offset"));
        read.expect("the block is whole");
        u32::from_ne_bytes(word)
    };
    let of_thread = |slot| {
        let slot = offset_of!(Usage, threads) + slot * size_of::<Thread>();
        word(slot + offset_of!(Thread, unsettled)) % 2
    };
    let shared = word(offset_of!(Usage, devices) + offset_of!(UsageDevice, unsettled));
    shared + (0..MAX_THREADS).map(of_thread).sum::<u32>()
}

#[test]
fn allocation_of_unknown_size_is_unsettled_until_charged() {
    let mount = mount();
    for (faults, ask, answer) in [
        ("cuMemAllocPitch_v2=stop", "pitched 1000 100".to_owned(), "ok 0 "),
        (
            "cuArrayGetMemoryRequirements=801,cuArrayCreate_v2=stop",
            format!("alloc array {MIB}"),
            "ok 0",
        ),
    ] {
        let mut command = mount.command(driver_shell());
        command.env("SIMGPU_FAULTS", faults);
        let mut shell = DriverShell::spawn(command);
        assert_eq!(nr_unsettled(shell.pid()), 0, "{faults}");
        shell.tell(&ask);
        let pid = Pid::from_raw(shell.pid());
        wait_until("the process is stopped in the call", || is_stopped(pid));
        assert_eq!(nr_unsettled(shell.pid()), 1, "{faults}");
        kill(pid, Signal::SIGCONT).expect("the process lives");
        let line = shell.answer();
        assert!(line.starts_with(answer), "{faults}: {line}");
        assert_eq!(nr_unsettled(shell.pid()), 0, "{faults}");
    }
}
