//! Tests pools of the simulated driver: on a device, on the host, managed, and imported from another process.

use simgpu::Held;
use support::{Truth, wait_until};

use crate::simgpu::Machine;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 64 * MIB;
/// Bytes that a pool reserves at a time.
const CHUNK: u64 = 32 * MIB;

#[test]
fn host_pool_uses_no_device_memory() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    let pid = program.pid();
    for location in ["HOST", "HOST_NUMA"] {
        program.run(&format!(
            "pool = got(c_uint64, 'cuMemPoolCreate', pool_properties({location}))
             address = got(c_uint64, 'cuMemAllocFromPoolAsync', MIB, pool, 0)
             ok(cu.cuMemsetD8Async(address, 65, 4, 0))"
        ));
        program.calls(0, "cu.cuCtxSynchronize()");
        assert_eq!(program.ask("bytes_at(address, 4)"), "b'AAAA'", "{location}");
        assert_eq!(
            program.ask("attribute(address, 2)"),
            "1",
            "the address is not host memory"
        );
        assert_eq!(program.ask("attribute(address, 17) == pool"), "True");
        assert_eq!(truth.used(pid, 0), CONTEXT);
        assert_eq!(truth.held(pid, 0, Held::HostPool), CHUNK);
        program.calls(
            0,
            "cu.cuMemFreeAsync(address, 0)
             cu.cuCtxSynchronize()
             cu.cuMemPoolDestroy(pool)",
        );
        assert_eq!(truth.held(pid, 0, Held::HostPool), 0);
    }
}

#[test]
fn only_valid_pool_properties_are_accepted() {
    let mut program = Machine::new().started();
    for (properties, error) in [
        ("pool_properties(HOST_NUMA_CURRENT)", 1),
        ("pool_properties(HOST, 0, POSIX_FD)", 1),
        ("pool_properties(DEVICE, 7)", 1),
        ("pool_properties(DEVICE, 0, 8)", 801),
        ("PoolProperties(type=3, location=location(DEVICE, 0))", 1),
        ("PoolProperties(type=2, max=MIB, location=location(DEVICE, 0))", 1),
        ("None", 1),
    ] {
        let call = format!("got(c_uint64, 'cuMemPoolCreate', {properties})");
        assert_eq!(program.ask(&call), format!("'error {error}'"), "{call}");
    }
    program.run("pool = got(c_uint64, 'cuMemPoolCreate', pool_properties(most=32 * MIB))");
    program.run("one = got(c_uint64, 'cuMemAllocFromPoolAsync', 32 * MIB, pool, 0)");
    assert_eq!(
        program.ask("got(c_uint64, 'cuMemAllocFromPoolAsync', 1, pool, 0)"),
        "'error 2'"
    );
}

#[test]
fn managed_pool_is_usable_on_host_and_device() {
    let machine = Machine::new();
    let mut program = machine.started();
    let truth = Truth::of(machine.directory());
    program.run(
        "pool = got(c_uint64, 'cuMemPoolCreate', PoolProperties(type=2, location=location(DEVICE, 0)))
         address = got(c_uint64, 'cuMemAllocFromPoolAsync', MIB, pool, 0)
         ok(cu.cuMemsetD8_v2(address, 66, 4))
         ok(cu.cuCtxSynchronize())",
    );
    assert_eq!(program.ask("bytes_at(address, 4)"), "b'BBBB'");
    assert_eq!(truth.held(program.pid(), 0, Held::Managed), CHUNK);
}

#[test]
fn each_location_and_type_has_a_current_pool() {
    let mut program = Machine::new().env("SIMGPU_DEVICES", 2).started();
    program.run(
        "def default(where, type): return got(c_uint64, 'cuMemGetDefaultMemPool', where, type)
         def current(where, type): return got(c_uint64, 'cuMemGetMemPool', where, type)
         locations = [(location(DEVICE, 0), 1), (location(DEVICE, 1), 1), (location(HOST), 1), (location(HOST_NUMA, 0), 1), (location(DEVICE, 0), 2), (location(0), 2)]",
    );
    assert_eq!(program.ask("len({default(*each) for each in locations})"), "6");
    assert_eq!(
        program.ask("all(current(*each) == default(*each) for each in locations)"),
        "True"
    );
    assert_eq!(
        program.ask("got(c_uint64, 'cuDeviceGetDefaultMemPool', 1) == default(location(DEVICE, 1), 1)"),
        "True"
    );
    program.run(
        "host = got(c_uint64, 'cuMemPoolCreate', pool_properties(HOST))
         own = got(c_uint64, 'cuMemPoolCreate', pool_properties())
         ok(cu.cuMemSetMemPool(location(HOST), 1, host))
         ok(cu.cuMemSetMemPool(location(DEVICE, 0), 1, own))",
    );
    assert_eq!(program.ask("current(location(HOST), 1) == host"), "True");
    assert_eq!(
        program.ask("got(c_uint64, 'cuDeviceGetMemPool', 0) == own"),
        "True"
    );
    assert_eq!(
        program.ask("attribute(got(c_uint64, 'cuMemAllocAsync', 10, 0), 17) == own"),
        "True"
    );
    program.calls(
        1,
        "cu.cuMemSetMemPool(location(DEVICE, 1), 1, own)
         cu.cuMemSetMemPool(location(HOST), 2, host)
         cu.cuMemSetMemPool(location(0), 1, own)
         cu.cuDeviceSetMemPool(0, host)
         cu.cuMemPoolDestroy(default(location(HOST), 1))",
    );
    // A destroyed pool is no longer current anywhere.
    program.calls(0, "cu.cuMemPoolDestroy(host)");
    assert_eq!(
        program.ask("current(location(HOST), 1) == default(location(HOST), 1)"),
        "True"
    );
}

#[test]
fn pool_access_is_its_devices_until_granted_to_others() {
    let mut program = Machine::new().env("SIMGPU_DEVICES", 2).started();
    program.run(
        "pool = got(c_uint64, 'cuMemPoolCreate', pool_properties())
         def access(device): return got(c_uint, 'cuMemPoolGetAccess', pool, location(DEVICE, device))
         def allow_pool(kind, id, flags): return cu.cuMemPoolSetAccess(pool, Access(location(kind, id), flags), 1)",
    );
    assert_eq!(program.ask("[access(0), access(1)]"), "[3, 0]");
    program.calls(0, "allow_pool(DEVICE, 1, 3)");
    assert_eq!(program.ask("[access(0), access(1)]"), "[3, 3]");
    program.calls(1, "allow_pool(DEVICE, 0, 0)\nallow_pool(HOST, 0, 3)\nallow_pool(DEVICE, 1, 7)\nallow_pool(DEVICE, 2, 3)");
}

#[test]
fn pool_allocation_is_imported_by_another_process() {
    let machine = Machine::new();
    let (mut one, mut other) = (machine.started(), machine.started());
    let truth = Truth::of(machine.directory());
    one.run(
        "pool = got(c_uint64, 'cuMemPoolCreate', pool_properties(handles=POSIX_FD))
         descriptor = got(c_int, 'cuMemPoolExportToShareableHandle', pool, POSIX_FD, 0)
         first = got(c_uint64, 'cuMemAllocFromPoolAsync', 1000, pool, 0)
         address = got(c_uint64, 'cuMemAllocFromPoolAsync', 1000, pool, 0)
         ok(cu.cuCtxSynchronize())
         put(address, b'pooled')",
    );
    let (pid, descriptor) = (one.pid(), one.number("descriptor"));
    let data = one.ask("exported('cuMemPoolExportPointer', address)");
    other.run(&format!(
        "own = borrow({pid}, {descriptor})
         pool = got(c_uint64, 'cuMemPoolImportFromShareableHandle', own, POSIX_FD, 0)
         os.close(own)
         address = got(c_uint64, 'cuMemPoolImportPointer', pool, ipc_handle({data}))"
    ));
    assert_eq!(other.ask("look(address, 6)"), "b'pooled'");
    other.run("put(address + 8, b'back')");
    assert_eq!(one.ask("look(address + 8, 4)"), "b'back'");
    assert_eq!(one.ask("look(first + 8, 4)"), "b'\\x00\\x00\\x00\\x00'");
    assert_eq!(truth.used(other.pid(), 0), CONTEXT);
    assert_eq!(other.ask("attribute(address, 17) == pool"), "True");
    // An imported pool cannot allocate.
    assert_eq!(
        other.ask("got(c_uint64, 'cuMemAllocFromPoolAsync', 10, pool, 0)"),
        "'error 1'"
    );
    other.calls(1, "cu.cuDeviceSetMemPool(0, pool)");
    assert_eq!(
        other.ask("exported('cuMemPoolExportPointer', address)"),
        "'error 1'"
    );

    other.calls(0, "cu.cuMemFreeAsync(address, 0)\ncu.cuCtxSynchronize()");
    other.run(&format!(
        "address = got(c_uint64, 'cuMemPoolImportPointer', pool, ipc_handle({data}))"
    ));
    assert_eq!(other.ask("look(address, 6)"), "b'pooled'");
    one.kill9();
    wait_until("only the imported chunk is left", || {
        truth.used_by_all(0) == CONTEXT + CHUNK
    });
    assert_eq!(other.ask("look(address, 6)"), "b'pooled'");
    other.calls(0, "cu.cuMemFree_v2(address)");
    assert_eq!(truth.used_by_all(0), CONTEXT);
    other.calls(0, "cu.cuMemPoolDestroy(pool)");
}

#[test]
fn only_pool_created_shareable_is_shared() {
    let mut one = Machine::new().started();
    one.run(
        "plain = got(c_uint64, 'cuMemPoolCreate', pool_properties())
         shared = got(c_uint64, 'cuMemPoolCreate', pool_properties(handles=POSIX_FD))
         address = got(c_uint64, 'cuMemAllocFromPoolAsync', 10, plain, 0)
         linear = alloc(10)
         memory, handle = map_new(2 * MIB, handles=POSIX_FD)
         descriptor = descriptor_of(handle)",
    );
    assert_eq!(
        one.ask("got(c_int, 'cuMemPoolExportToShareableHandle', plain, POSIX_FD, 0)"),
        "'error 1'"
    );
    assert_eq!(
        one.ask("got(c_int, 'cuMemPoolExportToShareableHandle', shared, POSIX_FD, 1)"),
        "'error 1'"
    );
    assert_eq!(
        one.ask("exported('cuMemPoolExportPointer', address)"),
        "'error 1'"
    );
    assert_eq!(one.ask("exported('cuMemPoolExportPointer', linear)"), "'error 1'");
    // A handle of memory is not accepted as a pool.
    let import = "got(c_uint64, 'cuMemPoolImportFromShareableHandle', descriptor, POSIX_FD, 0)";
    assert_eq!(one.ask(import), "'error 1'");
    // Attributes report the type that the pool was created with.
    let types = "[pool_attribute(pool, 10) for pool in (plain, shared)]";
    assert_eq!(one.ask(types), "[0, 1]");
}
