//! Tests arrays of the simulated driver whose memory is mapped later.

use simgpu::Held;
use support::Truth;

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;
const SPARSE: &str = "0x40";
const DEFERRED: &str = "0x80";

#[test]
fn sparse_array_uses_memory_mapped_to_its_tiles() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    program.run(&format!(
        "array = array_of(256, 256, flags={SPARSE})
         info = (c_uint * 12)()
         ok(cu.cuArrayGetSparseProperties(info, array))
         pool = tile_pool(2 * MIB)
         def change(one): return cu.cuMemMapArrayAsync(one, 1, 0)"
    ));
    assert_eq!(program.ask("info[0:3]"), "[128, 128, 1]");
    assert_eq!(truth.held(pid, 0, Held::Array), 0);
    program.calls(
        0,
        "change(map_info(array, pool, (128, 0, 0), (128, 256, 1)))\ncu.cuCtxSynchronize()",
    );
    // The mapping holds the memory.
    program.calls(0, "cu.cuMemRelease(pool)");
    assert_eq!(truth.held(pid, 0, Held::Physical), 2 * MIB);
    program.calls(
        0,
        "change(map_info(array, 0, (128, 0, 0), (128, 128, 1)))
         cu.cuCtxSynchronize()",
    );
    assert_eq!(truth.held(pid, 0, Held::Physical), 2 * MIB);
    program.calls(
        0,
        "change(map_info(array, 0, (128, 128, 0), (128, 128, 1)))
         cu.cuCtxSynchronize()",
    );
    assert_eq!(truth.held(pid, 0, Held::Physical), 0);
    program.run("pool = tile_pool(2 * MIB)");
    program.calls(
        0,
        "change(map_info(array, pool, (0, 0, 0), (256, 256, 1)))
         cu.cuCtxSynchronize()
         cu.cuMemRelease(pool)
         cu.cuArrayDestroy(array)",
    );
    assert_eq!(truth.held(pid, 0, Held::Physical), 0);
}

#[test]
fn invalid_mapping_is_refused() {
    let mut program = Machine::new().env("SIMGPU_DEVICES", 2).started();
    program.run(&format!(
        "array, plain = array_of(256, 256, flags={SPARSE}), array_of(256, 256)
         pool, handle = tile_pool(2 * MIB), got(c_uint64, 'cuMemCreate', 2 * MIB, properties(), 0)
         tile = (128, 128, 1)
         def change(one): return cu.cuMemMapArrayAsync(one, 1, 0)"
    ));
    program.calls(
        1,
        "change(map_info(array, handle, extent=tile))
         change(map_info(plain, pool, extent=tile))
         change(map_info(array, pool, (64, 0, 0), tile))
         change(map_info(array, pool, (256, 0, 0), tile))
         change(map_info(array, pool, extent=(128, 64, 1)))
         change(map_info(array, pool, extent=tile, offset=1000))
         change(map_info(array, pool, extent=tile, offset=2 * MIB))
         change(map_info(array, pool, extent=tile, mask=2))
         change(map_info(array, pool, extent=tile, mask=3))
         change(map_info(array, pool, extent=tile, level=1))
         change(map_info(array, 77, extent=tile))",
    );
    program.calls(400, "change(map_info(1, pool, extent=tile))");
    assert_eq!(
        program.ask(&format!("array_of(256, 0, flags={SPARSE})")),
        "'error 1'"
    );
    assert_eq!(
        program.ask("got(c_uint64 * 6, 'cuArrayGetSparseProperties', plain)"),
        "'error 1'"
    );
}

#[test]
fn deferred_mapping_array_uses_its_mapped_memory() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    program.run(&format!(
        "array = array_of(64, 64, flags={DEFERRED})
         needs = (c_size_t * 4)()
         ok(cu.cuArrayGetMemoryRequirements(needs, array, 0))
         at, handle = map_new(2 * MIB)
         out = (c_char * 4)()"
    ));
    program.calls(400, "cu.cuMemcpyHtoA_v2(array, 0, b'nope', 4)");
    assert_eq!(program.ask("needs[0] % needs[1]"), "0");
    program.calls(
        0,
        "cu.cuMemMapArrayAsync(map_info(array, handle, offset=65536), 1, 0)
         cu.cuCtxSynchronize()
         cu.cuMemcpyHtoA_v2(array, 0, b'here', 4)",
    );
    // The array uses the same memory that is mapped at an address.
    assert_eq!(program.ask("look(at + 65536, 4)"), "b'here'");
    program.calls(0, "cu.cuMemUnmap(at, 2 * MIB)\ncu.cuMemRelease(handle)");
    program.calls(0, "cu.cuMemcpyAtoH_v2(out, array, 0, 4)");
    assert_eq!(program.ask("out.raw"), "b'here'");
    assert_eq!(truth.held(pid, 0, Held::Physical), 2 * MIB);
    program.calls(
        0,
        "cu.cuMemMapArrayAsync(map_info(array), 1, 0)\ncu.cuCtxSynchronize()",
    );
    assert_eq!(truth.held(pid, 0, Held::Physical), 0);
    program.calls(400, "cu.cuMemcpyHtoA_v2(array, 0, b'nope', 4)");
    program.calls(0, "cu.cuArrayDestroy(array)");
}

#[test]
fn small_levels_of_sparse_mipmapped_array_form_its_tail() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    program.run(&format!(
        "descriptor = (c_uint64 * 5)(512, 512, 0, 3 | 1 << 32, {SPARSE})
         mipmap = got(c_uint64, 'cuMipmappedArrayCreate', descriptor, 10)
         info = (c_uint * 12)()
         ok(cu.cuMipmappedArrayGetSparseProperties(info, mipmap))
         pool = tile_pool(4 * MIB)
         def change(one): return cu.cuMemMapArrayAsync(one, 1, 0)"
    ));
    // Levels of 512, 256 and 128 elements have whole tiles.
    assert_eq!(
        program.ask("(info[0:3], info[3], info[6])"),
        "([128, 128, 1], 3, 1)"
    );
    program.calls(
        0,
        "change(map_info(mipmap, pool, extent=(256, 256, 1), type=1, level=1))
         change(map_info(mipmap, pool, type=1, tail=1))
         cu.cuMemRelease(pool)
         cu.cuCtxSynchronize()",
    );
    program.calls(
        1,
        "change(map_info(mipmap, pool, type=1, level=99, extent=(128, 128, 1)))",
    );
    assert_eq!(truth.held(program.pid(), 0, Held::Physical), 4 * MIB);
    program.calls(0, "cu.cuMipmappedArrayDestroy(mipmap)");
    assert_eq!(truth.held(program.pid(), 0, Held::Physical), 0);
}
