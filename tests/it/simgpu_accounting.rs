//! Tests the simulated NVML: accounting of whole processes, statistics over periods of a device, and
//! properties that the device does not have.

use support::{Truth, wait_until};

use crate::simgpu::{Machine, Program};

const MIB: u64 = 1 << 20;

/// Starts a program that queries NVML about the first device.
fn asker(machine: &Machine) -> Program {
    let mut program = machine.program();
    program.run("ml, device = nvml()\nstats, mode, count = AccountingStats(), c_uint(), c_uint()");
    program
}

fn stats(asker: &mut Program, pid: i32) -> u64 {
    asker.number(&format!("ml.nvmlDeviceGetAccountingStats(device, {pid}, stats)"))
}

#[test]
fn process_is_accounted_during_and_after_its_life() {
    let machine = Machine::new();
    let mut asker = asker(&machine);
    let mut worker = machine.started();
    let pid = worker.pid();
    asker.calls(0, "ml.nvmlDeviceGetAccountingMode(device, mode)");
    assert_eq!(asker.ask("mode.value"), "0");
    // Not available while accounting is off.
    assert_eq!(stats(&mut asker, pid), 3);
    asker.calls(3, "ml.nvmlDeviceGetAccountingPids(device, count, None)");
    asker.calls(
        0,
        "ml.nvmlDeviceSetAccountingMode(device, 1)\nml.nvmlDeviceGetAccountingMode(device, mode)",
    );
    assert_eq!(asker.ask("mode.value"), "1");

    worker.run(
        "address = alloc(100 * MIB)
         ok(cu.cuMemFree_v2(address))
         spin = kernel('gcgroup_spin')
         for _ in range(10): ok(launch(spin, 1000))
         ok(cu.cuCtxSynchronize())",
    );
    assert_eq!(stats(&mut asker, pid), 0);
    assert_eq!(asker.ask("(stats.running, stats.time)"), "(1, 0)");
    assert_eq!(asker.number("stats.peak"), 164 * MIB);
    let share = asker.number("stats.gpu");
    assert!(share <= 100, "{share} percent");
    assert_eq!(stats(&mut asker, 1), 6);
    asker.calls(7, "ml.nvmlDeviceGetAccountingPids(device, count, None)");
    asker.run("pids = numbers(8, c_uint)\ncount.value = 8");
    asker.calls(0, "ml.nvmlDeviceGetAccountingPids(device, count, pids)");
    assert_eq!(asker.ask("pids[:count.value]"), format!("[{pid}]"));

    worker.kill9();
    wait_until("accounting shows that the process has ended", || {
        stats(&mut asker, pid) == 0 && asker.ask("stats.running") == "0"
    });
    assert_eq!(asker.number("stats.peak"), 164 * MIB);
    // The worker's kernels alone took 10 ms.
    assert!(asker.number("stats.time") >= 10);
    asker.calls(0, "ml.nvmlDeviceClearAccountingPids(device)");
    assert_eq!(stats(&mut asker, pid), 6);
    asker.calls(
        2,
        "ml.nvmlDeviceSetAccountingMode(device, 2)\nml.nvmlDeviceGetAccountingMode(0, mode)",
    );
}

#[test]
fn samples_of_past_periods_are_returned() {
    let machine = Machine::new();
    let mut asker = asker(&machine);
    let mut worker = machine.started();
    asker.run("kind = c_uint()\nsamples = numbers(64)\ndef ask(type, seen=0, into=None): return ml.nvmlDeviceGetSamples(device, type, seen, kind, count, into)");
    worker.run("spin = kernel('gcgroup_spin')\nfor _ in range(3000): ok(launch(spin, 1000))");
    wait_until("a utilisation sample is above 0", || {
        asker.run("count.value = 32");
        asker.number("ask(1, 0, samples)") == 0 && asker.number("max(samples[1:2 * count.value:2])") > 0
    });
    assert_eq!(asker.ask("kind.value"), "1");
    assert_eq!(
        asker.ask("all(0 <= share <= 100 for share in samples[1:2 * count.value:2])"),
        "True"
    );
    assert_eq!(
        asker.ask("sorted(samples[0:2 * count.value:2]) == samples[0:2 * count.value:2]"),
        "True"
    );
    asker.calls(0, "ask(1)\nask(2)\nask(3)\nask(4)");
    asker.calls(3, "ask(0)\nask(5)");
    asker.calls(6, "ask(1, 1 << 62)");
}

#[test]
fn device_reports_compute_capability_and_no_mig_mode() {
    let machine = Machine::new();
    let mut asker = asker(&machine);
    asker.run("a, b = c_int(-1), c_int(-1)");
    asker.calls(0, "ml.nvmlDeviceGetCudaComputeCapability(device, a, b)");
    assert_eq!(asker.ask("(a.value, b.value)"), "(9, 0)");
    asker.run("context = start()");
    assert_eq!(
        asker.ask("tuple(got(c_int, 'cuDeviceGetAttribute', n, 0) for n in (75, 76))"),
        "(9, 0)"
    );
    asker.calls(
        3,
        "ml.nvmlDeviceGetMigMode(device, a, b)
         ml.nvmlDeviceSetMigMode(device, 1, a)
         ml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0, a)
         ml.nvmlDeviceGetGpuInstanceId(device, a)
         ml.nvmlDeviceGetComputeInstanceId(device, a)
         ml.nvmlDeviceGetGpuInstances(device, 0, None, a)",
    );
    asker.calls(
        0,
        "ml.nvmlDeviceIsMigDeviceHandle(device, a)\nml.nvmlDeviceGetMaxMigDeviceCount(device, b)",
    );
    assert_eq!(asker.ask("(a.value, b.value)"), "(0, 0)");
    asker.calls(
        2,
        "ml.nvmlDeviceGetMigMode(0, a, b)\nml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, a)",
    );
}

#[test]
fn memory_outliving_its_process_is_listed_for_no_process() {
    let machine = Machine::new();
    let mut asker = asker(&machine);
    let (mut one, mut other) = (machine.started(), machine.started());
    one.run("address, handle = map_new(64 * MIB, handles=POSIX_FD)\ndescriptor = descriptor_of(handle)");
    let (pid, descriptor) = (one.pid(), one.number("descriptor"));
    other.run(&format!("own = borrow({pid}, {descriptor})"));
    asker.run("memory = numbers(3)");
    one.kill9();
    let truth = Truth::of(machine.directory());
    wait_until("the killed process's memory is released", || {
        truth.used(pid, 0) == 0
    });
    asker.calls(0, "ml.nvmlDeviceGetMemoryInfo(device, memory)");
    assert_eq!(asker.number("memory[2]"), 128 * MIB);
    assert_eq!(asker.number("memory[0] - memory[1]"), 128 * MIB);
    asker.run("processes = numbers(24, c_uint64)\ncount.value = 8");
    asker.calls(
        0,
        "ml.nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes)",
    );
    assert_eq!(
        asker.ask("(count.value, processes[0] & 0xffffffff, processes[1])"),
        format!("(1, {}, {})", other.pid(), 64 * MIB)
    );
}
