//! Tests physical memory by handle: charged once, while any reference holds it, on the device given by its
//! properties.

use support::{Config, Mount, Truth, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const DEVICE: u64 = 1;
const HOST: u64 = 2;
const HOST_NUMA: u64 = 3;

/// Sets `properties`: pinned memory at a location, shareable as a descriptor if it is on a device.
fn properties(calls: &mut Calls, location: u64, id: u64) {
    calls.put("properties", 0, 4, 1);
    calls.put("properties", 4, 4, u64::from(location == DEVICE));
    calls.put("properties", 8, 4, location);
    calls.put("properties", 12, 4, id);
}

fn create(calls: &mut Calls, name: &str, bytes: u64) {
    calls.ok(&format!("cuMemCreate &{name} {bytes} &properties 0"));
}

/// Bytes a process holds on its first device, by the ledger and by the simulated GPU; none elsewhere.
struct Held<'m> {
    dir: Dir<'m>,
    truth: Truth,
    pid: i32,
}

impl<'m> Held<'m> {
    fn of(mount: &'m Mount, calls: &Calls) -> Self {
        Self {
            dir: Dir::of(mount, calls.pid()),
            truth: Truth::of(&mount.simgpu_dir()),
            pid: calls.pid(),
        }
    }

    #[track_caller]
    fn is(&self, bytes: u64, why: &str) {
        let (dir, gpu) = (&self.dir, self.dir.gpu(0));
        let counted = [dir, &gpu].map(|dir| (dir.number("memory.current"), dir.key("memory.stat", "vmm")));
        assert_eq!(counted, [(bytes, bytes); 2], "{why}");
        assert_eq!(self.truth.used(self.pid, 0), bytes, "{why}");
    }

    #[track_caller]
    fn multicast(&self) -> u64 {
        self.dir.key("memory.stat", "multicast")
    }
}

#[test]
fn memory_is_charged_until_last_handle_and_mapping_go() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let held = Held::of(&mount, &calls);
    properties(&mut calls, DEVICE, 0);
    calls.ok(&format!("cuMemAddressReserve &range {} 0 0 0", 8 * MIB));
    held.is(0, "addresses cost nothing");
    for (bytes, is_mapped) in [(4 * MIB, false), (8 * MIB, true), (6 * MIB, true)] {
        create(&mut calls, "handle", bytes);
        held.is(bytes, "made");
        if !is_mapped {
            calls.ok("cuMemRelease $handle");
            held.is(0, "released");
            continue;
        }
        calls.ok(&format!("cuMemMap $range {bytes} 0 $handle 0"));
        calls.ok("cuMemRelease $handle");
        held.is(bytes, "still mapped");
        calls.ok("cuMemRetainAllocationHandle &again $range");
        calls.ok(&format!("cuMemUnmap $range {bytes}"));
        held.is(bytes, "had again by a handle");
        calls.ok("cuMemRelease $again");
        held.is(0, "neither mapped nor by a handle");
        assert!(
            calls.call("cuMemRelease $again").is_err(),
            "a second release succeeded"
        );
        assert!(calls.call(&format!("cuMemUnmap $range {bytes}")).is_err());
        held.is(0, "not taken off twice");
    }
}

#[test]
fn properties_determine_charged_device_in_any_context() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    properties(&mut calls, DEVICE, 1);
    dir.gpu(1).write("memory.limit", 4 * MIB);
    for apart in [false, true] {
        let mut call = |call: &str| {
            if apart {
                calls.apart(call)
            } else {
                calls.call(call)
            }
        };
        assert_eq!(
            call(&format!("cuMemCreate &handle {} &properties 0", 6 * MIB)),
            OUT_OF_MEMORY
        );
        assert_eq!(
            call(&format!("cuMemCreate &handle {} &properties 0", 4 * MIB)),
            Ok(())
        );
        assert_eq!(dir.gpu(0).number("memory.current"), 0);
        assert_eq!(dir.gpu(1).number("memory.current"), 4 * MIB);
        assert_eq!(call("cuMemRelease $handle"), Ok(()));
        assert_eq!(dir.number("memory.current"), 0);
    }
}

#[test]
fn memory_of_the_host_is_shown_and_not_charged() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    dir.write("memory.limit", MIB);
    for location in [HOST, HOST_NUMA] {
        properties(&mut calls, location, 0);
        create(&mut calls, "handle", 4 * MIB);
        assert_eq!(dir.number("memory.current"), 0);
        assert_eq!(dir.key("memory.stat", "host"), 4 * MIB);
        calls.ok("cuMemRelease $handle");
        assert_eq!(dir.key("memory.stat", "host"), 0);
    }
}

#[test]
fn imported_memory_shows_as_ipc_and_charges_its_creator() {
    let mount = Mount::new();
    let (mut maker, mut taker) = (Calls::start(&mount), Calls::start(&mount));
    let (made, taken) = (Dir::of(&mount, maker.pid()), Dir::of(&mount, taker.pid()));
    properties(&mut maker, DEVICE, 0);
    create(&mut maker, "handle", 4 * MIB);
    maker.ok("cuMemExportToShareableHandle &descriptor $handle 1 0");
    let descriptor = maker.ask("get descriptor 0 4");
    let descriptor = taker.take_descriptor(&maker, &descriptor);
    taken.write("memory.limit", MIB);
    taker.ok(&format!("cuMemImportFromShareableHandle &handle {descriptor} 1"));
    taker.ok(&format!("cuMemAddressReserve &range {} 0 0 0", 4 * MIB));
    taker.ok(&format!("cuMemMap $range {} 0 $handle 0", 4 * MIB));
    assert_eq!(taken.number("memory.current"), 0);
    assert_eq!(taken.key("memory.stat", "ipc"), 4 * MIB);
    assert_eq!(made.number("memory.current"), 4 * MIB);
    assert_eq!(made.key("memory.stat", "ipc"), 0);
    taker.ok("cuMemRelease $handle");
    assert_eq!(
        taken.key("memory.stat", "ipc"),
        4 * MIB,
        "the mapped memory is uncharged"
    );
    taker.ok(&format!("cuMemUnmap $range {}", 4 * MIB));
    assert_eq!(taken.key("memory.stat", "ipc"), 0);
    maker.ok("cuMemRelease $handle");
    // A look at the device during the release may have charged it twice; the next one corrects that.
    wait_until("it is charged once, since descriptors hold it", || {
        let charged = made.number("memory.current");
        assert!(charged >= 4 * MIB, "{charged}");
        charged == 4 * MIB
    });
}

#[test]
fn opened_memory_shows_until_closed_as_often_as_opened() {
    let mount = Mount::new();
    let (mut maker, mut taker) = (Calls::start(&mount), Calls::start(&mount));
    let (made, taken) = (Dir::of(&mount, maker.pid()), Dir::of(&mount, taker.pid()));
    maker.ok(&format!("cuMemAlloc_v2 &block {}", 4 * MIB));
    maker.ok("cuIpcGetMemHandle &handle $block");
    let handle = maker.show("handle", 64);
    taker.fill("handle", &handle);
    taken.write("memory.limit", MIB);
    // The handle is passed by value; the flag is CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.
    for name in ["one", "other"] {
        taker.ok(&format!("cuIpcOpenMemHandle_v2 &{name} 1 *handle"));
    }
    assert_eq!(
        taker.get("one"),
        taker.get("other"),
        "the second opening returned another address"
    );
    assert_eq!(taken.number("memory.current"), 0);
    assert_eq!(taken.key("memory.stat", "ipc"), 4 * MIB);
    taker.ok("cuIpcCloseMemHandle $one");
    assert_eq!(taken.key("memory.stat", "ipc"), 4 * MIB);
    taker.ok("cuIpcCloseMemHandle $other");
    assert_eq!(taken.key("memory.stat", "ipc"), 0);
    assert!(taker.call("cuIpcCloseMemHandle $other").is_err());
    assert_eq!(made.number("memory.current"), 4 * MIB);
    // Opened memory is closed with its context.
    taker.ok("cuIpcOpenMemHandle_v2 &one 1 *handle");
    taker.ok("cuDevicePrimaryCtxReset_v2 0");
    assert_eq!(taken.key("memory.stat", "ipc"), 0);
}

#[test]
fn memory_bound_to_multicast_object_is_held_and_shown() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut calls = Calls::start(&mount);
    let held = Held::of(&mount, &calls);
    properties(&mut calls, DEVICE, 0);
    calls.put("object", 0, 4, 2);
    calls.put("object", 8, 8, 2 * MIB);
    for bind in [
        "cuMulticastBindMem $multicast 0 $handle 0",
        "cuMulticastBindMem_v2 $multicast 0 0 $handle 0",
    ] {
        calls.ok("cuMulticastCreate &multicast &object");
        for device in [0, 1] {
            calls.ok(&format!("cuMulticastAddDevice $multicast {device}"));
        }
        held.is(0, "an object has no memory of its own");
        for is_unbound in [true, false] {
            create(&mut calls, "handle", 2 * MIB);
            calls.ok(&format!("{bind} {} 0", 2 * MIB));
            assert_eq!(held.multicast(), 2 * MIB, "{bind}");
            calls.ok("cuMemRelease $handle");
            held.is(2 * MIB, "bound");
            if is_unbound {
                calls.ok(&format!("cuMulticastUnbind $multicast 0 0 {}", 2 * MIB));
            } else {
                calls.ok("cuMemRelease $multicast");
            }
            held.is(0, "unbound, or gone with the object");
            assert_eq!(held.multicast(), 0, "{bind}");
        }
    }
}

#[test]
fn memory_bound_by_address_is_held_after_unmapping() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut calls = Calls::start(&mount);
    let held = Held::of(&mount, &calls);
    properties(&mut calls, DEVICE, 0);
    calls.put("object", 0, 4, 2);
    calls.put("object", 8, 8, 2 * MIB);
    calls.ok(&format!("cuMemAddressReserve &range {} 0 0 0", 2 * MIB));
    for bind in [
        "cuMulticastBindAddr $multicast 0 $range",
        "cuMulticastBindAddr_v2 $multicast 0 0 $range",
    ] {
        calls.ok("cuMulticastCreate &multicast &object");
        for device in [0, 1] {
            calls.ok(&format!("cuMulticastAddDevice $multicast {device}"));
        }
        create(&mut calls, "handle", 2 * MIB);
        calls.ok(&format!("cuMemMap $range {} 0 $handle 0", 2 * MIB));
        calls.ok("cuMemRelease $handle");
        calls.ok(&format!("{bind} {} 0", 2 * MIB));
        calls.ok(&format!("cuMemUnmap $range {}", 2 * MIB));
        held.is(2 * MIB, bind);
        calls.ok(&format!("cuMulticastUnbind $multicast 0 0 {}", 2 * MIB));
        held.is(0, bind);
        calls.ok("cuMemRelease $multicast");
        assert_eq!(held.multicast(), 0, "{bind}");
    }
}

#[test]
fn unknown_location_type_is_shown_and_not_charged() {
    let mount = Mount::with(Config::default().env("SIMGPU_FUTURE_LOCATION", 77));
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    dir.write("memory.limit", MIB);
    properties(&mut calls, 77, 0);
    create(&mut calls, "handle", 4 * MIB);
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.key("memory.stat", "unknown"), 4 * MIB);
    calls.ok("cuMemRelease $handle");
    assert_eq!(dir.key("memory.stat", "unknown"), 0);
    // Location types unknown to both the driver and the hook are left to the driver.
    properties(&mut calls, 78, 0);
    assert!(
        calls
            .call(&format!("cuMemCreate &handle {} &properties 0", 4 * MIB))
            .is_err()
    );
    assert_eq!(dir.key("memory.stat", "unknown"), 0);
}
