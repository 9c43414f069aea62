//! Tests batches of copies, prefetches and discards in the simulated driver.

use crate::simgpu::Machine;

#[test]
fn batch_of_copies_is_all_or_nothing() {
    let mut program = Machine::new().started();
    program.run(
        "stream = got(c_uint64, 'cuStreamCreate', 1)
         a, b, host = alloc(4096), alloc(4096), got(c_uint64, 'cuMemAllocHost_v2', 4096)
         _ = ctypes.memset(host, 3, 4096)
         attributes, none = CopyAttributes(order=1), c_size_t()
         def copy(dsts, srcs, lengths, indexes=(0,), stream=None): return cu.cuMemcpyBatchAsync(sizes(*dsts), sizes(*srcs), sizes(*lengths), len(dsts), attributes, sizes(*indexes), len(indexes), none, stream)
         ok(copy([a, b], [host, host], [100, 200], stream=stream))
         ok(cu.cuStreamSynchronize(stream))",
    );
    assert_eq!(program.ask("(look(a, 100) + look(b, 200)).count(3)"), "300");
    // The second copy does not fit: its index is reported and the first is not made.
    program.run("_ = ctypes.memset(host, 4, 4096)");
    program.calls(1, "copy([a, b], [host, host], [100, 5000], stream=stream)");
    assert_eq!(program.ask("(none.value, look(a, 1))"), "(1, b'\\x03')");
    program.calls(
        1,
        "copy([a], [host], [100], stream=1)
         copy([a], [host], [100], (1,), stream=stream)
         copy([a, b], [host, host], [100, 100], (0, 0), stream=stream)
         copy([], [], [], (0,), stream=stream)",
    );
    program.run("attributes.order = 0");
    program.calls(1, "copy([a], [host], [100], stream=stream)");
}

#[test]
fn only_managed_memory_is_prefetched_and_discarded() {
    let mut program = Machine::new().started();
    program.run(
        "stream = got(c_uint64, 'cuStreamCreate', 1)
         managed, linear = got(c_uint64, 'cuMemAllocManaged', 8192, 1), alloc(8192)
         def prefetch(address, length, where, stream=stream): return cu.cuMemPrefetchBatchAsync(sizes(address), sizes(length), 1, where, sizes(0), 1, 0, stream)
         def discard(address, length): return cu.cuMemDiscardBatchAsync(sizes(address), sizes(length), 1, 0, stream)",
    );
    program.calls(
        0,
        "prefetch(managed, 8192, location(DEVICE, 0))
         prefetch(managed, 4096, location(HOST))
         discard(managed, 8192)
         cu.cuMemPrefetchAsync(managed, 8192, 0, stream)
         cu.cuMemPrefetchAsync(managed, 8192, -1, stream)
         cu.cuStreamSynchronize(stream)",
    );
    program.calls(
        1,
        "prefetch(linear, 4096, location(HOST))
         prefetch(managed, 8193, location(HOST))
         prefetch(managed, 8192, location(HOST), 1)
         discard(linear, 4096)
         cu.cuMemPrefetchAsync(linear, 8192, 0, stream)",
    );
    program.calls(101, "cu.cuMemPrefetchAsync(managed, 8192, 5, stream)");
}

#[test]
fn batch_3d_copies_boxes_of_memory_and_arrays() {
    let mut program = Machine::new().started();
    program.run(
        "stream = got(c_uint64, 'cuStreamCreate', 1)
         host = got(c_uint64, 'cuMemAllocHost_v2', 4096)
         _ = ctypes.memmove(host, bytes(range(256)) * 16, 4096)
         at, array, none = alloc(4096), array_of(16, 4), c_size_t()
         ok(cu.cuMemsetD8_v2(at, 0, 4096))
         ok(cu.cuCtxSynchronize())
         def copy(*ops, flags=0, stream=stream): return cu.cuMemcpy3DBatchAsync(len(ops), (Op3d * len(ops))(*ops), none, flags, stream)",
    );
    // Rows of 4 of 16 bytes to rows of 8; a box of an array, in elements of 4 bytes, and back.
    program.calls(
        0,
        "copy(op_3d(pointer(host, 16), pointer(at, 8), 4, 2, 1), op_3d(pointer(host + 64), part(array, 2, 1), 2, 2, 1))
         cu.cuMemcpy3DWithAttributesAsync(op_3d(part(array, 2, 1), pointer(at + 100), 2, 2, 1), 0, stream)
         cu.cuStreamSynchronize(stream)",
    );
    assert_eq!(
        program.ask("list(look(at, 16))"),
        "[0, 1, 2, 3, 0, 0, 0, 0, 16, 17, 18, 19, 0, 0, 0, 0]"
    );
    assert_eq!(
        program.ask("list(look(at + 100, 16)) == list(range(64, 80))"),
        "True"
    );
    // The second copy is invalid: its index is reported and the first is not made.
    program.run("ok(cu.cuMemsetD8_v2(at, 9, 16))\nok(cu.cuCtxSynchronize())");
    program.calls(
        1,
        "copy(op_3d(pointer(host), pointer(at), 4, 1, 1), op_3d(pointer(host), part(array, 15), 2, 1, 1))",
    );
    assert_eq!(program.ask("(none.value, look(at, 1))"), "(1, b'\\t')");
    program.calls(
        1,
        "copy(op_3d(pointer(host), pointer(at), 0, 1, 1))
         copy(op_3d(pointer(host), pointer(at), 4, 1, 1, order=0))
         copy(op_3d(pointer(host, 2), pointer(at), 4, 1, 1))
         copy(op_3d(pointer(host), pointer(at), 4, 1, 1), flags=1)
         copy(op_3d(pointer(host), pointer(at), 4, 1, 1), stream=1)
         copy()",
    );
}
