//! Tests what simulated calls cost with `SIMGPU_PRICES`, and calls that `SIMGPU_QUIRKS` refuse.

use crate::simgpu::Machine;

#[test]
fn first_launch_of_each_function_takes_time_and_memory() {
    let prices = "first-launch-usec=20000,first-launch-bytes=4M";
    let mut program = Machine::new().env("SIMGPU_PRICES", prices).started();
    program.run(
        "import time\nkernels = [kernel('gcgroup_spin'), kernel('gcgroup_spin')]\nbefore = free_memory()\ntook = []",
    );
    for number in [0, 1, 0, 1] {
        program.run("began = time.perf_counter()");
        program.calls(0, &format!("launch(kernels[{number}], 1)"));
        program.run("took.append(time.perf_counter() - began)");
    }
    assert_eq!(program.ask("before - free_memory() == 8 * MIB"), "True");
    assert_eq!(program.ask("[usec >= 0.02 for usec in took[:2]]"), "[True, True]");
}

#[test]
fn calls_take_the_times_of_their_prices() {
    let prices = [
        ("launch-nsec=3000000", "launch(spin, 1)", 0.003),
        ("record-nsec=4000000", "cu.cuEventRecord(event, None)", 0.004),
        (
            "record-context-nsec=5000000",
            "cu.cuCtxRecordEvent(context, event)",
            0.015,
        ),
        (
            "memory-operation-nsec=6000000",
            "cu.cuStreamWriteValue32_v2(None, word, 1, 0)",
            0.006,
        ),
        (
            "pool-query-nsec=7000000",
            "cu.cuMemPoolGetAttribute(pool, 5, other)",
            0.007,
        ),
        ("module-usec=20000", "load()", 0.02),
        ("context-usec=30000", "cu.cuCtxCreate_v2(other, 0, 0)", 0.03),
    ];
    let all = prices.map(|(price, ..)| price).join(",");
    let mut program = Machine::new().env("SIMGPU_PRICES", &all).started();
    program.run("import time");
    program.run("spin, word = kernel('gcgroup_spin'), alloc(MIB)");
    program.run("event, context = got(c_uint64, 'cuEventCreate', 0), got(c_uint64, 'cuCtxGetCurrent')");
    program.run("streams = [got(c_uint64, 'cuStreamCreate', 1) for _ in range(2)]");
    program.run("pool, other = got(c_uint64, 'cuDeviceGetDefaultMemPool', 0), c_uint64()");
    program.run("load = lambda: 0 if kernel('gcgroup_spin') else 1");
    for (price, call, seconds) in prices {
        program.run("began = time.perf_counter()");
        program.calls(0, call);
        program.run("took = time.perf_counter() - began");
        assert_eq!(program.ask(&format!("took >= {seconds}")), "True", "{price}");
    }
}

#[test]
fn parameters_of_a_kernel_are_told() {
    let mut program = Machine::new().started();
    program.run("fill = kernel('gcgroup_fill')\noffset, size = ctypes.c_size_t(), ctypes.c_size_t()");
    program.calls(0, "cu.cuFuncGetParamInfo(fill, 2, offset, size)");
    assert_eq!(program.ask("(offset.value, size.value)"), "(16, 4)");
    program.calls(0, "cu.cuFuncGetParamInfo(fill, 0, offset, None)");
    program.calls(1, "cu.cuFuncGetParamInfo(fill, 3, offset, None)");
}

#[test]
fn memory_operations_exist_and_are_refused() {
    let mut program = Machine::new()
        .env("SIMGPU_QUIRKS", "no-memory-operations")
        .started();
    program.run("address = alloc(MIB)");
    for call in [
        "WriteValue32",
        "WriteValue32_v2",
        "WaitValue32_v2",
        "WriteValue64_v2",
    ] {
        program.calls(801, &format!("cu.cuStream{call}(None, address, 0, 0)"));
    }
}

#[test]
fn newer_call_writes_no_word_without_barrier() {
    let mut program = Machine::new().started();
    program.run("address = alloc(MIB)");
    program.calls(0, "cu.cuStreamWriteValue32(None, address, 5, 1)");
    program.calls(1, "cu.cuStreamWriteValue32_v2(None, address, 5, 1)");
    program.calls(0, "cu.cuStreamWriteValue32_v2(None, address, 5, 0)");
}
