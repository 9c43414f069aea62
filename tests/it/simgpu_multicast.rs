//! Tests multicast objects of the simulated driver: bound memory is held.

use simgpu::Held;
use support::Truth;

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;

#[test]
fn bound_memory_lives_until_unbound_or_object_is_gone() {
    let machine = Machine::new().env("SIMGPU_DEVICES", 2);
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    let held = || {
        (
            truth.held(pid, 0, Held::Physical),
            truth.held(pid, 1, Held::Physical),
        )
    };
    program.run(
        "wish = (c_uint64 * 4)(2, 8 * MIB, 0, 0)
         team = got(c_uint64, 'cuMulticastCreate', wish)
         one, other = (got(c_uint64, 'cuMemCreate', 4 * MIB, properties(DEVICE, id), 0) for id in (0, 1))",
    );
    assert_eq!(
        program.ask("got(c_size_t, 'cuMulticastGetGranularity', wish, 0)"),
        (2 * MIB).to_string()
    );
    // Binding fails until all devices were added.
    program.calls(0, "cu.cuMulticastAddDevice(team, 0)");
    program.calls(401, "cu.cuMulticastBindMem(team, 0, one, 0, 4 * MIB, 0)");
    program.calls(1, "cu.cuMulticastAddDevice(team, 0)");
    program.calls(
        0,
        "cu.cuMulticastAddDevice(team, 1)
         cu.cuMulticastBindMem(team, 0, one, 0, 4 * MIB, 0)
         cu.cuMulticastBindMem_v2(team, 1, 0, other, 2 * MIB, 2 * MIB, 0)
         cu.cuMemRelease(one)
         cu.cuMemRelease(other)",
    );
    assert_eq!(held(), (4 * MIB, 4 * MIB));
    program.calls(0, "cu.cuMulticastUnbind(team, 0, 0, 4 * MIB)");
    assert_eq!(held(), (0, 4 * MIB));
    program.calls(0, "cu.cuMemRelease(team)");
    assert_eq!(held(), (0, 0));
    program.calls(1, "cu.cuMemRelease(team)");
}

#[test]
fn invalid_binding_is_refused() {
    let mut program = Machine::new().started();
    program.run(
        "wish = (c_uint64 * 4)(1, 8 * MIB, 0, 0)
         team = got(c_uint64, 'cuMulticastCreate', wish)
         ok(cu.cuMulticastAddDevice(team, 0))
         at, memory = map_new(4 * MIB)
         _, host = map_new(4 * MIB, HOST)",
    );
    program.calls(
        1,
        "cu.cuMulticastBindMem(team, 0, host, 0, 4 * MIB, 0)
         cu.cuMulticastBindMem(team, 0, memory, 0, 6 * MIB, 0)
         cu.cuMulticastBindMem(team, 6 * MIB, memory, 0, 4 * MIB, 0)
         cu.cuMulticastBindMem(team, 1, memory, 0, 4 * MIB, 0)
         cu.cuMulticastBindMem(team, 0, memory, 0, 4 * MIB, 1)
         cu.cuMulticastBindMem(team, 0, team, 0, 4 * MIB, 0)
         cu.cuMulticastBindMem(memory, 0, memory, 0, 4 * MIB, 0)
         cu.cuMulticastUnbind(team, 0, 0, 4 * MIB)",
    );
    // Binding by address also works after the handle was released.
    program.calls(
        0,
        "cu.cuMemRelease(memory)\ncu.cuMulticastBindAddr(team, 0, at, 4 * MIB, 0)",
    );
    program.calls(1, "cu.cuMulticastBindAddr(team, 2 * MIB, at, 4 * MIB, 0)");
    assert_eq!(
        program.ask("got(c_uint64, 'cuMulticastCreate', (c_uint64 * 4)(2, 8 * MIB, 0, 0))"),
        "'error 1'"
    );
    assert_eq!(
        program.ask("got(c_uint64, 'cuMulticastCreate', (c_uint64 * 4)(1, 1, 0, 0))"),
        "'error 1'"
    );
    program.run("there = got(c_uint64, 'cuMemAddressReserve', 8 * MIB, 0, 0, 0)");
    program.calls(801, "cu.cuMemMap(there, 8 * MIB, 0, team, 0)");
}
