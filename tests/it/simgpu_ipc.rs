//! Tests memory and events shared between simulated processes: several processes may hold them, and they are
//! freed with the last reference.

use simgpu::Held;
use support::{Truth, wait_until};

use crate::simgpu::{Machine, Program};

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 64 * MIB;

struct Two {
    machine: Machine,
    one: Program,
    other: Program,
}

impl Two {
    fn new() -> Two {
        let machine = Machine::new();
        let (one, other) = (machine.started(), machine.started());
        Two { machine, one, other }
    }

    fn truth(&self) -> Truth {
        Truth::of(self.machine.directory())
    }

    /// Returns the bytes in use besides `contexts` contexts.
    fn used(&self, contexts: u64) -> u64 {
        self.truth().used_by_all(0) - contexts * CONTEXT
    }

    /// Opens a handle of the first process's `address` in the second process, at an address of its own.
    fn open(&mut self) {
        let handle = self.one.ask("exported('cuIpcGetMemHandle', address)");
        self.other
            .run(&format!("address = opened('cuIpcOpenMemHandle_v2', {handle}, 1)"));
    }
}

#[test]
fn linear_memory_is_shared_by_both_processes() {
    let mut two = Two::new();
    two.one
        .run("blocks = [alloc(700), alloc(3 * MIB)]\naddress = blocks[1]\nput(address, b'from one')");
    two.open();
    assert_eq!(two.other.ask("look(address, 8)"), "b'from one'");
    two.other.run("put(address + 2 * MIB, b'from the other')");
    assert_eq!(two.one.ask("look(address + 2 * MIB, 14)"), "b'from the other'");
    assert_eq!(two.other.ask("attribute(address, 18)"), (3 * MIB).to_string());
    // The memory is charged once, to the process that made it.
    assert_eq!(two.truth().used(two.other.pid(), 0), CONTEXT);
    assert_eq!(two.truth().held(two.one.pid(), 0, Held::Linear), 3 * MIB + 700);

    // Opening the handle again returns the same address with a second reference.
    let handle = two.one.ask("exported('cuIpcGetMemHandle', address)");
    let again = format!("opened('cuIpcOpenMemHandle_v2', {handle}, 1) == address");
    assert_eq!(two.other.ask(&again), "True");
    two.other.calls(1, "cu.cuMemFree_v2(address)");
    two.other.calls(
        0,
        "cu.cuIpcCloseMemHandle(address)\ncu.cuMemsetD8_v2(address, 1, 8)\ncu.cuIpcCloseMemHandle(address)",
    );
    two.other.calls(
        1,
        "cu.cuIpcCloseMemHandle(address)\ncu.cuMemsetD8_v2(address, 1, 8)",
    );
    two.one.calls(0, "cu.cuMemFree_v2(address)");
    assert_eq!(two.used(2), 700);
}

#[test]
fn invalid_handles_are_refused() {
    let mut two = Two::new();
    two.one.run("address = alloc(MIB)\nmapped, _ = map_new(2 * MIB)");
    let handle = two.one.ask("exported('cuIpcGetMemHandle', address)");
    let opened = |handle: &str, flags| format!("opened('cuIpcOpenMemHandle_v2', {handle}, {flags})");
    assert_eq!(
        two.one.ask(&opened(&handle, 1)),
        "'error 201'",
        "the process opened its own handle"
    );
    assert_eq!(two.other.ask(&opened(&handle, 0)), "'error 1'");
    assert_eq!(two.other.ask(&opened("'00' * 64", 1)), "'error 400'");
    assert_eq!(two.one.ask("exported('cuIpcGetMemHandle', mapped)"), "'error 1'");
    assert_eq!(two.one.ask("exported('cuIpcGetMemHandle', 4096)"), "'error 1'");
    two.one.calls(0, "cu.cuMemFree_v2(address)");
    assert_eq!(
        two.other.ask(&opened(&handle, 1)),
        "'error 400'",
        "the handle of freed memory was opened"
    );
}

#[test]
fn linear_memory_lives_while_a_process_has_it_open() {
    let mut two = Two::new();
    two.one.run("address = alloc(3 * MIB)\nput(address, b'kept')");
    two.open();
    two.one.calls(0, "cu.cuMemFree_v2(address)");
    assert_eq!(two.used(2), 3 * MIB);
    assert_eq!(two.truth().held(two.one.pid(), 0, Held::Linear), 0);
    // New allocations of the first process get other memory.
    two.one.run("others = [alloc(3 * MIB) for _ in range(8)]\nfor each in others: ok(cu.cuMemsetD8_v2(each, 7, 3 * MIB))");
    assert_eq!(two.other.ask("look(address, 4)"), "b'kept'");
    let Two {
        machine,
        one,
        mut other,
    } = two;
    one.kill9();
    let truth = Truth::of(machine.directory());
    wait_until("only the opened allocation is left", || {
        truth.used_by_all(0) == CONTEXT + 3 * MIB
    });
    assert_eq!(other.ask("look(address, 4)"), "b'kept'");
    other.kill9();
    wait_until("the allocation is released", || truth.used_by_all(0) == 0);
}

#[test]
fn memory_held_by_others_leaves_no_room() {
    let machine = Machine::new().env("SIMGPU_MEMORY", "1G");
    let (mut one, mut other) = (machine.started(), machine.started());
    one.run("address, handle = map_new(512 * MIB, handles=POSIX_FD)\ndescriptor = descriptor_of(handle)");
    let descriptor = one.number("descriptor");
    let pid = one.pid();
    other.run(&format!("own = borrow({pid}, {descriptor})"));
    one.kill9();
    // Only the descriptor holds the memory.
    assert_eq!(other.ask("alloc(512 * MIB)"), "'error 2'");
    other.run("os.close(own)");
    let truth = Truth::of(machine.directory());
    wait_until("the allocation is released", || truth.used_by_all(0) == CONTEXT);
    other.run("address = alloc(512 * MIB)");
}

#[test]
fn physical_memory_is_shared_by_descriptor() {
    let mut two = Two::new();
    two.one.run(
        "address, handle = map_new(4 * MIB, handles=POSIX_FD)
         put(address, b'from one')
         descriptor = descriptor_of(handle)",
    );
    let descriptor = two.one.number("descriptor");
    let pid = two.one.pid();
    two.other.run(&format!(
        "own = borrow({pid}, {descriptor})
         handle = got(c_uint64, 'cuMemImportFromShareableHandle', own, POSIX_FD)
         os.close(own)
         at = got(c_uint64, 'cuMemAddressReserve', 4 * MIB, 0, 0, 0)
         ok(cu.cuMemMap(at, 4 * MIB, 0, handle, 0))
         allow(at, 4 * MIB)"
    ));
    assert_eq!(two.other.ask("look(at, 8)"), "b'from one'");
    two.other.run("put(at + 3 * MIB, b'back')");
    assert_eq!(two.one.ask("look(address + 3 * MIB, 4)"), "b'back'");
    assert_eq!(two.truth().used(two.other.pid(), 0), CONTEXT);
    assert_eq!(two.used(2), 4 * MIB);
    assert_eq!(
        two.other
            .ask("got(Properties, 'cuMemGetAllocationPropertiesFromHandle', handle).location.type"),
        "1"
    );

    // Every reference except the second process's mapping is released.
    two.one
        .calls(0, "cu.cuMemUnmap(address, 4 * MIB)\ncu.cuMemRelease(handle)");
    two.one.run("os.close(descriptor)");
    two.other.calls(0, "cu.cuMemRelease(handle)");
    assert_eq!(two.truth().used(two.one.pid(), 0), CONTEXT);
    assert_eq!(two.used(2), 4 * MIB);
    assert_eq!(two.other.ask("look(at, 8)"), "b'from one'");
    two.other.calls(0, "cu.cuMemUnmap(at, 4 * MIB)");
    assert_eq!(two.used(2), 0);
}

#[test]
fn importing_own_memory_adds_a_reference() {
    let machine = Machine::new();
    let mut one = machine.started();
    one.run(
        "address, handle = map_new(2 * MIB, handles=POSIX_FD)
         descriptor = descriptor_of(handle)
         again = got(c_uint64, 'cuMemImportFromShareableHandle', descriptor, POSIX_FD)
         os.close(descriptor)",
    );
    let truth = Truth::of(machine.directory());
    assert_eq!(truth.used(one.pid(), 0), CONTEXT + 2 * MIB);
    one.calls(0, "cu.cuMemUnmap(address, 2 * MIB)\ncu.cuMemRelease(handle)");
    assert_eq!(truth.used(one.pid(), 0), CONTEXT + 2 * MIB);
    one.calls(0, "cu.cuMemRelease(again)");
    assert_eq!(truth.used_by_all(0), CONTEXT);
}

#[test]
fn only_memory_created_shareable_is_exported() {
    let mut one = Machine::new().started();
    one.run("_, handle = map_new(2 * MIB)\n_, other = map_new(2 * MIB, handles=POSIX_FD)\nout = c_int()");
    one.calls(
        1,
        "cu.cuMemExportToShareableHandle(out, handle, POSIX_FD, 0)
         cu.cuMemExportToShareableHandle(out, other, POSIX_FD, 1)
         cu.cuMemExportToShareableHandle(out, other, 8, 0)
         cu.cuMemExportToShareableHandle(None, other, POSIX_FD, 0)
         cu.cuMemExportToShareableHandle(out, 1, POSIX_FD, 0)",
    );
    assert_eq!(
        one.ask("got(c_uint64, 'cuMemImportFromShareableHandle', 0, POSIX_FD)"),
        "'error 1'"
    );
    assert_eq!(
        one.ask("got(c_uint64, 'cuMemImportFromShareableHandle', 999, POSIX_FD)"),
        "'error 1'"
    );
    assert_eq!(
        one.ask("got(c_uint64, 'cuMemImportFromShareableHandle', 0, 8)"),
        "'error 801'"
    );
}

#[test]
fn shared_event_delays_the_other_process() {
    let mut two = Two::new();
    two.one
        .run("event = got(c_uint64, 'cuEventCreate', 2 | 4)\nspin = kernel('gcgroup_spin')");
    let handle = two.one.ask("exported('cuIpcGetEventHandle', event)");
    two.other.run(&format!(
        "event = opened('cuIpcOpenEventHandle', {handle})
         word = got(c_uint64, 'cuMemAllocHost_v2', 8)
         _ = ctypes.memset(word, 0, 8)"
    ));
    two.other.calls(0, "cu.cuEventQuery(event)");
    // Work that ends when the test writes a word.
    two.one
        .run("gate = got(c_uint64, 'cuMemAllocHost_v2', 8)\n_ = ctypes.memset(gate, 0, 8)");
    two.one.calls(
        0,
        "cu.cuStreamWaitValue32_v2(0, gate, 1, 1)\ncu.cuEventRecord(event, 0)",
    );
    two.other.calls(600, "cu.cuEventQuery(event)");
    two.other.calls(
        0,
        "cu.cuStreamWaitEvent(0, event, 0)\ncu.cuStreamWriteValue32_v2(0, word, 1, 0)",
    );
    two.other.calls(600, "cu.cuStreamQuery(0)");
    assert_eq!(two.other.ask("c_uint.from_address(word).value"), "0");
    two.one.run("_ = ctypes.memset(gate, 1, 1)");
    two.other
        .calls(0, "cu.cuEventSynchronize(event)\ncu.cuStreamSynchronize(0)");
    assert_eq!(two.other.ask("c_uint.from_address(word).value"), "1");
    two.one.calls(0, "cu.cuEventQuery(event)");
}

#[test]
fn event_of_a_killed_process_ends_waits() {
    let mut two = Two::new();
    two.one.run(
        "event = got(c_uint64, 'cuEventCreate', 2 | 4)
         gate = got(c_uint64, 'cuMemAllocHost_v2', 8)
         _ = ctypes.memset(gate, 0, 8)",
    );
    let handle = two.one.ask("exported('cuIpcGetEventHandle', event)");
    two.other
        .run(&format!("event = opened('cuIpcOpenEventHandle', {handle})"));
    two.one.calls(
        0,
        "cu.cuStreamWaitValue32_v2(0, gate, 1, 1)\ncu.cuEventRecord(event, 0)",
    );
    two.other.calls(600, "cu.cuEventQuery(event)");
    two.one.kill9();
    two.other.calls(0, "cu.cuEventSynchronize(event)");
}

#[test]
fn event_is_shared_only_if_created_so() {
    let mut one = Machine::new().started();
    assert_eq!(one.ask("got(c_uint64, 'cuEventCreate', 4)"), "'error 1'");
    one.run("plain, ours = got(c_uint64, 'cuEventCreate', 2), got(c_uint64, 'cuEventCreate', 6)");
    assert_eq!(one.ask("exported('cuIpcGetEventHandle', plain)"), "'error 400'");
    let handle = one.ask("exported('cuIpcGetEventHandle', ours)");
    assert_eq!(
        one.ask(&format!("opened('cuIpcOpenEventHandle', {handle})")),
        "'error 201'"
    );
    assert_eq!(
        one.ask("opened('cuIpcOpenEventHandle', '00' * 64)"),
        "'error 400'"
    );
}
