//! Tests functions of the simulated driver that only old programs call.

use simgpu::Held;
use support::Truth;

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;

#[test]
fn memory_from_32_bit_functions_behaves_normally() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    program.run(
        "address, pitched, pitch, base, size = c_uint(), c_uint(), c_uint(), c_uint(), c_uint()
         ok(cu.cuMemAlloc(address, 3 * MIB))
         ok(cu.cuMemAllocPitch(pitched, pitch, 100, 64, 4))
         at = address.value",
    );
    assert_eq!(program.ask("at < 1 << 32 and pitched.value < 1 << 32"), "True");
    assert_eq!(program.number("pitch.value"), 512);
    assert_eq!(truth.held(pid, 0, Held::Linear), 3 * MIB + 512 * 64);
    program.calls(
        0,
        "cu.cuMemsetD32(at, 0x41424344, 4)
         cu.cuMemcpyDtoD(at + 100, at, 16)
         cu.cuCtxSynchronize()
         cu.cuMemGetAddressRange(base, size, at + 5000)",
    );
    // The newer functions see the same memory.
    assert_eq!(program.ask("look(at + 100, 8)"), "b'DCBADCBA'");
    assert_eq!(program.ask("base.value == at and size.value == 3 * MIB"), "True");
    program.run("out = (c_char * 4)()");
    program.calls(0, "cu.cuMemcpyHtoD(at, b'word', 4)\ncu.cuMemcpyDtoH(out, at, 4)");
    assert_eq!(program.ask("out.raw"), "b'word'");
    program.calls(0, "cu.cuMemFree(at)\ncu.cuMemFree(pitched.value)");
    program.calls(
        1,
        "cu.cuMemFree(at)\ncu.cuMemsetD8(at, 1, 1)\ncu.cuMemAlloc(address, 0)",
    );
    assert_eq!(truth.held(pid, 0, Held::Linear), 0);
    // Larger values are reported as the largest one representable.
    program.run("free, total = c_uint(), c_uint()");
    program.calls(0, "cu.cuMemGetInfo(free, total)\ncu.cuDeviceTotalMem(size, 0)");
    assert_eq!(
        program.ask("(free.value, total.value, size.value) == (0xffffffff,) * 3"),
        "True"
    );
    program.calls(2, "cu.cuMemAlloc(address, 0xfffffff0)");
}

#[test]
fn array_from_old_functions_behaves_normally() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    program.run(
        "array = got(c_uint64, 'cuArrayCreate', (c_uint * 4)(256, 4, 1, 1))
         back = (c_uint * 4)()",
    );
    assert_eq!(truth.held(program.pid(), 0, Held::Array), 64 << 10);
    program.calls(
        0,
        "cu.cuArrayGetDescriptor(back, array)\ncu.cuMemcpyHtoA(array, 0, b'row', 3)",
    );
    assert_eq!(program.ask("list(back)"), "[256, 4, 1, 1]");
    program.run("out = (c_char * 3)()");
    program.calls(0, "cu.cuMemcpyAtoH(out, array, 0, 3)\ncu.cuArrayDestroy(array)");
    assert_eq!(program.ask("out.raw"), "b'row'");
}

#[test]
fn launch_by_old_functions_behaves_normally() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    program.run("fill = kernel('gcgroup_fill')\nat = alloc(4096)");
    // Without a block shape the launch fails.
    program.calls(1, "cu.cuLaunch(fill)");
    program.calls(
        0,
        "cu.cuFuncSetBlockShape(fill, 32, 1, 1)
         cu.cuFuncSetSharedSize(fill, 1024)
         cu.cuParamSetv(fill, 0, c_uint64(at), 8)
         cu.cuParamSetv(fill, 8, c_uint64(4), 8)
         cu.cuParamSeti(fill, 16, 65)
         cu.cuParamSetSize(fill, 20)
         cu.cuLaunchGrid(fill, 2, 1)
         cu.cuLaunchGridAsync(fill, 1, 1, 0)
         cu.cuCtxSynchronize()",
    );
    assert_eq!(program.ask("look(at, 16)[::4]"), "b'ABCD'");
    assert_eq!(truth.nr_launches(program.pid(), 0), 2);
    program.calls(
        1,
        "cu.cuFuncSetBlockShape(fill, 0, 1, 1)\ncu.cuParamSeti(fill, 5000, 1)",
    );
    program.calls(400, "cu.cuLaunch(1)");
}
