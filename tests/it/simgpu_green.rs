//! Tests green contexts of the simulated driver.

use simgpu::Held;
use support::Truth;

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;

#[test]
fn multiprocessors_are_split_described_and_had() {
    let mut program = Machine::new().started();
    program.run(
        "whole, parts, rest, number = got_of(0, Resource, 'cuDeviceGetDevResource', 1), (Resource * 8)(), Resource(), c_uint()
         def split(into, flags, least): return cu.cuDevSmResourceSplitByCount(into, number, whole, rest, flags, least)",
    );
    let all = program.number("whole.count");
    assert_eq!(all, program.number("got(c_int, 'cuDeviceGetAttribute', 16, 0)"));
    program.calls(0, "split(None, 0, 16)");
    assert_eq!(program.number("number.value"), all / 16);
    program.run("number.value = 2");
    program.calls(0, "split(parts, 0, 12)");
    assert_eq!(
        program.ask("[number.value, parts[0].count, parts[1].count, parts[2].type]"),
        "[2, 16, 16, 0]",
        "the groups do not have 16 multiprocessors"
    );
    assert_eq!(program.number("rest.count"), all - 32);
    program.calls(0, "split(parts, 1, 5)");
    assert_eq!(program.number("parts[0].count"), 6);
    program.calls(1, &format!("split(parts, 0, {})", all + 1));
    program.calls(
        915,
        "cu.cuDevSmResourceSplitByCount(parts, number, parts[0], None, 0, 2)",
    );
    program.calls(
        914,
        "cu.cuDevSmResourceSplitByCount(parts, number, Resource(), None, 0, 2)",
    );
    program.calls(914, "cu.cuDeviceGetDevResource(0, whole, 10000)");
    program.run("description = got(c_uint64, 'cuDevResourceGenerateDesc', parts, 2)");
    program.run("green = got(c_uint64, 'cuGreenCtxCreate', description, 0, 0)");
    assert_eq!(
        program.number("got_of(green, Resource, 'cuGreenCtxGetDevResource', 1).count"),
        12
    );
    let two_splits = "got(c_uint64, 'cuDevResourceGenerateDesc', (Resource * 2)(parts[0], whole), 2)";
    assert_eq!(program.ask(two_splits), "'error 915'");
}

#[test]
fn green_memory_is_primary_contexts_and_streams_detach() {
    let machine = Machine::new();
    let mut program = machine.started();
    let (truth, pid) = (Truth::of(machine.directory()), program.pid());
    program.run(
        "green, view = green_of(16)
         ok(cu.cuCtxSetCurrent(view))
         stream, other = got(c_uint64, 'cuStreamCreate', 0), got(c_uint64, 'cuGreenCtxStreamCreate', green, 1, 0)",
    );
    for (stream, expected) in [("stream", "green"), ("other", "green"), ("0", "green")] {
        assert_eq!(
            program.number(&format!("got_of({stream}, c_uint64, 'cuStreamGetGreenCtx')")),
            program.number(expected)
        );
        assert_eq!(
            program.number(&format!("got_of({stream}, c_uint64, 'cuStreamGetCtx')")),
            program.number("view")
        );
    }
    program.run(&format!(
        "address = alloc({MIB})\nevent = got(c_uint64, 'cuEventCreate', 0)"
    ));
    program.calls(
        0,
        "cu.cuMemsetD8Async(address, 7, 4096, stream)
         cu.cuGreenCtxRecordEvent(green, event)
         cu.cuGreenCtxWaitEvent(green, event)
         cu.cuEventSynchronize(event)
         cu.cuDevicePrimaryCtxRelease_v2(0)
         cu.cuCtxSynchronize()
         cu.cuGreenCtxDestroy(green)",
    );
    assert_eq!(
        truth.held(pid, 0, Held::Linear),
        0,
        "memory is left after the last holder of the primary context"
    );

    program.run(
        "context = start()
         green, view = green_of(16)
         ok(cu.cuCtxSetCurrent(view))
         stream = got(c_uint64, 'cuGreenCtxStreamCreate', green, 1, 0)",
    );
    program.run(&format!("address = alloc({MIB})"));
    program.calls(0, "cu.cuGreenCtxDestroy(green)");
    assert_eq!(
        truth.held(pid, 0, Held::Linear),
        MIB,
        "the primary context that the program holds lost its memory"
    );
    program.calls(709, "cu.cuCtxSynchronize()");
    program.calls(917, "cu.cuStreamQuery(stream)");
    program.calls(0, "cu.cuStreamDestroy_v2(stream)");
    program.calls(
        201,
        "cu.cuGreenCtxDestroy(green)\ncu.cuGreenCtxStreamCreate(numbers(1), green, 1, 0)",
    );
    program.run("ok(cu.cuCtxSetCurrent(context))\ngreen, view = green_of(16)");
    program.calls(0, "cu.cuDevicePrimaryCtxReset_v2(0)");
    assert_eq!(truth.held(pid, 0, Held::Linear), 0);
    program.calls(709, "cu.cuGreenCtxDestroy(green)");
}

#[test]
fn green_context_event_covers_exactly_its_streams() {
    let mut program = Machine::new().started();
    program.run(
        "green, view = green_of(16)
         stream, own = got(c_uint64, 'cuGreenCtxStreamCreate', green, 1, 0), got(c_uint64, 'cuStreamCreate', 1)
         memory, event = got(c_uint64, 'cuMemAllocHost_v2', 4096), got(c_uint64, 'cuEventCreate', 0)
         words = (c_uint * 2).from_address(memory)
         words[0], words[1] = 0, 0",
    );
    program.calls(
        0,
        "cu.cuStreamWaitValue32_v2(stream, memory, 1, 0)
         cu.cuStreamWaitValue32_v2(own, memory + 4, 1, 0)
         cu.cuGreenCtxRecordEvent(green, event)",
    );
    program.calls(600, "cu.cuEventQuery(event)");
    program.run("words[0] = 1");
    program.calls(
        0,
        "cu.cuEventSynchronize(event)\ncu.cuCtxRecordEvent(context, event)",
    );
    program.calls(600, "cu.cuStreamQuery(own)\ncu.cuEventQuery(event)");
    program.run("words[1] = 1");
    program.calls(0, "cu.cuEventSynchronize(event)\ncu.cuCtxSynchronize()");
}
