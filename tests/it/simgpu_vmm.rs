//! Tests virtual memory of the simulated driver: locations, attributes of addresses, and remapping an
//! address.

use simgpu::Held;
use support::Truth;

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;

#[test]
fn host_memory_uses_no_device_memory_and_works_in_kernels() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let before = truth.used(program.pid(), 0);
    for (kind, name) in [(2, "HOST"), (3, "HOST_NUMA")] {
        program.run(&format!(
            "address, handle = map_new(2 * MIB, {name}, 0, access=((DEVICE, 0), ({name}, 0)))"
        ));
        assert_eq!(truth.used(program.pid(), 0), before, "{name}");
        assert_eq!(truth.held(program.pid(), 0, Held::HostPhysical), 2 * MIB);
        // The host reads and writes the memory at the device's address.
        program.run("put(address, b'driver')");
        assert_eq!(program.ask("bytes_at(address, 6)"), "b'driver'");
        program.run("_ = ctypes.memmove(address + MIB, b'program', 7)");
        assert_eq!(program.ask("look(address + MIB, 7)"), "b'program'");
        program.run("ok(launch(kernel('gcgroup_fill'), address, 4, 7))");
        program.calls(0, "cu.cuCtxSynchronize()");
        assert_eq!(
            program.ask("list((c_uint * 4).from_address(address))"),
            "[7, 8, 9, 10]"
        );
        assert_eq!(
            program.ask("attribute(address, 2)"),
            "1",
            "{kind} is not host memory"
        );
        assert_eq!(program.ask("attribute(address, 4) == address"), "True");
        program.calls(
            0,
            "cu.cuMemUnmap(address, 2 * MIB)
             cu.cuMemRelease(handle)
             cu.cuMemAddressFree(address, 2 * MIB)",
        );
        assert_eq!(truth.held(program.pid(), 0, Held::HostPhysical), 0);
    }
}

#[test]
fn memory_is_created_only_at_valid_locations() {
    let mut program = Machine::new().started();
    for (properties, size, error) in [
        ("properties(HOST_NUMA_CURRENT)", "2 * MIB", 1),
        ("properties(HOST_NUMA, 4096)", "2 * MIB", 1),
        ("properties(HOST, 0, POSIX_FD)", "2 * MIB", 1),
        ("properties(DEVICE, 1)", "2 * MIB", 101),
        ("properties(9)", "2 * MIB", 1),
        ("properties()", "MIB", 1),
        ("properties()", "0", 1),
        ("properties()", "1 << 40", 2),
        ("properties(DEVICE, 0, 8)", "2 * MIB", 801),
        ("None", "2 * MIB", 1),
    ] {
        let call = format!("got(c_uint64, 'cuMemCreate', {size}, {properties}, 0)");
        assert_eq!(program.ask(&call), format!("'error {error}'"), "{call}");
    }
    program.run("there, handle = map_new(2 * MIB)");
    // The host cannot access memory of the device.
    program.run("access = (Access * 1)(Access(location(HOST), 3))");
    program.calls(1, "cu.cuMemSetAccess(there, 2 * MIB, access, 1)");
}

#[test]
fn each_location_has_its_own_access() {
    let mut program = Machine::new().env("SIMGPU_DEVICES", 2).started();
    program.run("at, handle = map_new(2 * MIB, access=((DEVICE, 1),))");
    let access = |device| format!("got(c_uint64, 'cuMemGetAccess', location(DEVICE, {device}), at)");
    assert_eq!((program.number(&access(0)), program.number(&access(1))), (0, 3));
    assert_eq!(program.number("attribute(at, 16, c_uint)"), 0);
    program.run("allow(at, 2 * MIB, ((DEVICE, 0),), 1)");
    assert_eq!((program.number(&access(0)), program.number(&access(1))), (1, 3));
    assert_eq!(program.number("attribute(at, 16, c_uint)"), 1);
}

#[test]
fn attributes_of_mapped_and_reserved_addresses_are_right() {
    let mut program = Machine::new().started();
    program.run(
        "base = got(c_uint64, 'cuMemAddressReserve', 8 * MIB, 0, 0, 0)
         at, handle = map_new(2 * MIB, at=base + 2 * MIB, handles=POSIX_FD)
         inside = at + 100
         start, size = c_uint64(), c_size_t()",
    );
    program.calls(0, "cu.cuMemGetAddressRange_v2(start, size, inside)");
    assert_eq!(
        program.ask("(start.value - base, size.value)"),
        "(2097152, 2097152)"
    );
    let known = "[attribute(inside, n) for n in (2, 9, 10, 13, 14, 17)]";
    assert_eq!(program.ask(known), "[2, 0, 0, 1, 1, 0]");
    assert_eq!(
        program.ask("[attribute(inside, 11) - base, attribute(inside, 12), attribute(inside, 19) - base, attribute(inside, 18)]"),
        format!("[0, {}, {}, {}]", 8 * MIB, 2 * MIB, 2 * MIB)
    );
    // Where no memory is mapped, only the reservation is known.
    assert_eq!(
        program.ask("[attribute(base, n) for n in (2, 12, 13)]"),
        format!("['error 1', {}, 0]", 8 * MIB)
    );
    program.calls(500, "cu.cuMemGetAddressRange_v2(start, size, base)");
    // Two mappings of the same physical memory are recognised as such.
    program.run("ok(cu.cuMemMap(base, 2 * MIB, 0, handle, 0))");
    assert_eq!(program.ask("attribute(base, 20) == attribute(at, 20)"), "True");
    assert_eq!(program.ask("attribute(base, 7) == attribute(at, 7)"), "False");
}

#[test]
fn handle_lives_until_released_and_unmapped() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    let held = || truth.held(pid, 0, Held::Physical);
    assert_eq!(held(), 0);
    program.run("at, handle = map_new(4 * MIB)");
    program.calls(0, "cu.cuMemRelease(handle)");
    assert_eq!(held(), 4 * MIB);
    program.calls(
        1,
        "cu.cuMemRelease(handle)\ncu.cuMemMap(at, 4 * MIB, 0, handle, 0)",
    );
    program.run("again = got(c_uint64, 'cuMemRetainAllocationHandle', at + 5)");
    program.calls(0, "cu.cuMemUnmap(at, 4 * MIB)");
    assert_eq!(held(), 4 * MIB);
    program.run("ok(cu.cuMemMap(at, 4 * MIB, 0, again, 0))\nallow(at, 4 * MIB)\nput(at, b'x')");
    program.calls(1, "cu.cuMemAddressFree(at, 4 * MIB)");
    program.calls(0, "cu.cuMemUnmap(at, 4 * MIB)\ncu.cuMemRelease(again)");
    assert_eq!(held(), 0);
    program.calls(0, "cu.cuMemAddressFree(at, 4 * MIB)");
}

/// Tests the steps of a swap: the bytes move to the host and back, and the address stays the same.
#[test]
fn graph_replays_correctly_after_remapping_its_memory() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    program.run(
        "at, handle = map_new(4 * MIB)
         out = at + 2 * MIB
         fill, checksum = kernel('gcgroup_fill'), kernel('gcgroup_checksum')
         ok(launch(fill, at, 1000, 3))
         ok(cu.cuCtxSynchronize())
         put(out, bytes(8))
         stream = got(c_uint64, 'cuStreamCreate', 1)
         ok(cu.cuStreamBeginCapture_v2(stream, 0))
         ok(launch(checksum, at, 1000, out, stream=stream))
         graph = c_uint64()
         ok(cu.cuStreamEndCapture(stream, graph))
         run = got(c_uint64, 'cuGraphInstantiateWithFlags', graph.value, 0)
         ok(cu.cuGraphLaunch(run, stream))
         ok(cu.cuStreamSynchronize(stream))
         once = int.from_bytes(look(out, 8), 'little')",
    );
    assert!(program.number("once") > 0);
    let full = truth.held(pid, 0, Held::Physical);
    program.run(
        "away, kept = map_new(4 * MIB, HOST)
         ok(cu.cuMemcpyDtoD_v2(away, at, 4 * MIB))
         ok(cu.cuCtxSynchronize())
         ok(cu.cuMemUnmap(at, 4 * MIB))
         ok(cu.cuMemRelease(handle))",
    );
    assert_eq!(truth.held(pid, 0, Held::Physical), full - 4 * MIB);
    // No memory is mapped here, and a launch that touches the address would fault, so none is made.
    program.run(
        "same, handle = map_new(4 * MIB, at=at)
         ok(cu.cuMemcpyDtoD_v2(at, away, 4 * MIB))
         ok(cu.cuCtxSynchronize())
         ok(cu.cuGraphLaunch(run, stream))
         ok(cu.cuStreamSynchronize(stream))",
    );
    assert_eq!(
        program.ask("int.from_bytes(look(out, 8), 'little') == 2 * once"),
        "True"
    );
    // With its memory elsewhere on the host, the graph replays, too.
    program.run(
        "ok(cu.cuMemUnmap(at, 4 * MIB))
         ok(cu.cuMemUnmap(away, 4 * MIB))
         ok(cu.cuMemMap(at, 4 * MIB, 0, kept, 0))
         allow(at, 4 * MIB)
         ok(cu.cuGraphLaunch(run, stream))
         ok(cu.cuStreamSynchronize(stream))",
    );
    assert_eq!(
        program.ask("int.from_bytes(look(out, 8), 'little') == 2 * once"),
        "True"
    );
}

#[test]
fn copy_time_between_host_and_device_follows_bytes() {
    let machine = Machine::new().env("SIMGPU_HOST_BANDWIDTH", "1G");
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    program.run(
        "here, one = map_new(16 * MIB, HOST)
         there, other = map_new(16 * MIB)
         pinned = got(c_uint64, 'cuMemAllocHost_v2', 16 * MIB)
         events = [got(c_uint64, 'cuEventCreate', 0) for _ in range(2)]",
    );
    let copied_usec = 1_000_000 / 64;
    let mut expected = 0;
    for copy in [
        "cu.cuMemcpyAsync(there, here, 16 * MIB, 0)",
        "cu.cuMemcpyAsync(here, there, 16 * MIB, 0)",
        "cu.cuMemcpyHtoDAsync_v2(there, pinned, 16 * MIB, 0)",
        "cu.cuMemcpyDtoHAsync_v2(pinned, there, 16 * MIB, 0)",
    ] {
        program.calls(
            0,
            &format!("cu.cuEventRecord(events[0], 0)\n{copy}\ncu.cuEventRecord(events[1], 0)"),
        );
        program.calls(0, "cu.cuCtxSynchronize()");
        expected += copied_usec;
        assert_eq!(truth.copy_usec(pid, 0), expected, "{copy}");
        let between = program.ask("got(c_float, 'cuEventElapsedTime', events[0], events[1])");
        let between: f64 = between.parse().unwrap();
        assert!(between >= 15.6, "{copy}: {between} ms");
    }
    // No kernel has done any work.
    assert_eq!(truth.usage_usec(pid, 0), 0);
}
