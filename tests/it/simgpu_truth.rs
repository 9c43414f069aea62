//! Tests that the usage read from the simulated machine's state matches what its processes did.

use simgpu::Held;
use support::{Truth, wait_until};

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;
/// Bytes of a context.
const CONTEXT: u64 = 64 * MIB;

#[test]
fn every_memory_kind_is_counted_by_its_kind() {
    let machine = Machine::new().env("SIMGPU_DEVICES", 2);
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    let held = |kind| truth.held(pid, 0, kind);
    assert_eq!((held(Held::Context), truth.used(pid, 0)), (CONTEXT, CONTEXT));

    program.run(
        "linear = alloc(3 * MIB)
         pinned = got(c_uint64, 'cuMemAllocHost_v2', 5 * MIB)
         managed = got(c_uint64, 'cuMemAllocManaged', 7 * MIB, 1)
         there, handle = map_new(4 * MIB)
         here, host = map_new(6 * MIB, HOST)
         pooled = got(c_uint64, 'cuMemAllocAsync', MIB, 0)
         descriptor = (c_uint64 * 4)(65536, 16, 1 | 1 << 32)
         array = got(c_uint64, 'cuArrayCreate_v2', descriptor)",
    );
    let expected = [
        (Held::Linear, 3 * MIB),
        (Held::Managed, 7 * MIB),
        (Held::Array, MIB),
        (Held::Pool, 32 * MIB),
        (Held::Graph, 0),
        (Held::Physical, 4 * MIB),
        (Held::HostPinned, 5 * MIB),
        (Held::HostPhysical, 6 * MIB),
    ];
    for (kind, bytes) in expected {
        assert_eq!(held(kind), bytes, "{kind:?}");
    }
    let on_device: u64 = expected
        .iter()
        .filter(|(kind, _)| kind.is_on_device())
        .map(|(_, bytes)| bytes)
        .sum();
    assert_eq!(truth.used(pid, 0), CONTEXT + on_device);
    assert_eq!(truth.used(pid, 1), 0);
    assert_eq!(truth.used_by_all(0), CONTEXT + on_device);

    program.calls(
        0,
        "cu.cuMemFree_v2(linear)
         cu.cuMemFreeHost(pinned)
         cu.cuMemFree_v2(managed)
         cu.cuMemUnmap(there, 4 * MIB)
         cu.cuMemRelease(handle)
         cu.cuMemUnmap(here, 6 * MIB)
         cu.cuMemRelease(host)
         cu.cuMemFree_v2(pooled)
         cu.cuArrayDestroy(array)
         cu.cuCtxSynchronize()",
    );
    assert_eq!(truth.used(pid, 0), CONTEXT);
    for kind in [Held::HostPinned, Held::HostPhysical] {
        assert_eq!(held(kind), 0, "{kind:?}");
    }
    program.kill9();
    wait_until("the killed process's memory is released", || {
        truth.used_by_all(0) == 0
    });
    assert_eq!(truth.held(pid, 0, Held::Context), 0);
}

#[test]
fn usage_time_is_the_kernels_run_time() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    assert_eq!(truth.usage_usec(program.pid(), 0), 0);
    program.run("spin = kernel('gcgroup_spin')\nfor _ in range(20): ok(launch(spin, 1000))");
    program.calls(0, "cu.cuCtxSynchronize()");
    // A spin ends by the clock, so its GPU time is shorter if it begins late.
    let usage = truth.usage_usec(program.pid(), 0);
    assert!((15_000..=20_000).contains(&usage), "{usage} us");
    assert_eq!(truth.nr_launches(program.pid(), 0), 20);
    let pid = program.pid();
    program.kill9();
    assert_eq!(truth.usage_usec(pid, 0), usage);
}

#[test]
fn context_end_releases_its_memory() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    program.run(
        "linear = alloc(MIB)
         descriptor = (c_uint64 * 4)(65536, 16, 1 | 1 << 32)
         array = got(c_uint64, 'cuArrayCreate_v2', descriptor)",
    );
    program.calls(0, "cu.cuDevicePrimaryCtxReset_v2(0)");
    assert_eq!(truth.used(program.pid(), 0), 0);
    program.run("context = start()\nagain = alloc(MIB)");
    program.calls(400, "cu.cuArrayDestroy(array)");
    assert_eq!(truth.held(program.pid(), 0, Held::Linear), MIB);
}
