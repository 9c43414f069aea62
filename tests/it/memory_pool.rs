//! Tests memory pools: charged by what they reserve, whichever process owns them and however they grow and
//! shrink.

use support::{Config, Mount, Truth, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
/// Growth step in bytes of a pool of the simulated driver.
const CHUNK: u64 = 32 * MIB;
const RELEASE_THRESHOLD: u32 = 4;
const DEVICE: u64 = 1;
const HOST: u64 = 2;

/// Creates the pool `name` of pinned memory at a location, shareable as a descriptor if it is on a device.
fn create(calls: &mut Calls, name: &str, location: u64, id: u64) {
    calls.put("properties", 0, 4, 1);
    calls.put("properties", 4, 4, u64::from(location == DEVICE));
    calls.put("properties", 8, 4, location);
    calls.put("properties", 12, 4, id);
    calls.ok(&format!("cuMemPoolCreate &{name} &properties"));
}

/// Starts a program that uses only pools; returns it with a function that asserts both its charge and its
/// usage.
fn watched(mount: &Mount) -> (Calls, impl Fn(u64, &str)) {
    let calls = Calls::start(mount);
    let (dir, truth, pid) = (
        Dir::of(mount, calls.pid()),
        Truth::of(&mount.simgpu_dir()),
        calls.pid(),
    );
    let charged = move |expected: u64, why: &str| {
        assert_eq!(dir.key("memory.stat", "pool"), expected, "{why}");
        assert_eq!(dir.number("memory.current"), expected, "{why}");
        assert_eq!(truth.used(pid, 0), expected, "{why}");
    };
    (calls, charged)
}

#[test]
fn thread_without_context_is_charged_on_streams_device() {
    let mount = Mount::new();
    let (mut calls, charged) = watched(&mount);
    Dir::of(&mount, calls.pid()).write("memory.limit", CHUNK);
    calls.ok("cuStreamCreate &stream 1");
    let alloc = |bytes: u64| format!("cuMemAllocAsync &one {bytes} $stream");
    assert_eq!(calls.apart(&alloc(CHUNK + MIB)), OUT_OF_MEMORY);
    assert_eq!(calls.apart(&alloc(MIB)), Ok(()));
    charged(CHUNK, "though nothing was allocated with a context");
    assert_eq!(calls.apart("cuMemFreeAsync $one $stream"), Ok(()));
    calls.ok("cuStreamSynchronize $stream");
    charged(0, "given back");
}

#[test]
fn memory_kept_by_a_pool_is_charged_until_released() {
    let mount = Mount::new();
    let (mut calls, charged) = watched(&mount);
    create(&mut calls, "pool", DEVICE, 0);
    calls.put("threshold", 0, 8, u64::MAX);
    calls.ok(&format!(
        "cuMemPoolSetAttribute $pool {RELEASE_THRESHOLD} &threshold"
    ));
    calls.ok(&format!("cuMemAllocFromPoolAsync &one {} $pool 0", 5 * MIB));
    calls.ok(&format!("cuMemAllocFromPoolAsync &other {} $pool 0", 40 * MIB));
    charged(3 * CHUNK, "both");
    calls.ok("cuMemFreeAsync $one 0");
    calls.ok("cuMemFreeAsync $other 0");
    calls.ok("cuStreamSynchronize 0");
    charged(3 * CHUNK, "below its threshold it keeps all");
    calls.ok(&format!("cuMemPoolTrimTo $pool {}", 2 * CHUNK));
    charged(2 * CHUNK, "the smaller piece is enough");
    calls.ok("cuMemPoolTrimTo $pool 0");
    charged(0, "trimmed");
    calls.put("threshold", 0, 8, 0);
    calls.ok(&format!(
        "cuMemPoolSetAttribute $pool {RELEASE_THRESHOLD} &threshold"
    ));
    calls.ok(&format!("cuMemAllocFromPoolAsync &one {} $pool 0", 5 * MIB));
    calls.ok("cuMemFreeAsync $one 0");
    calls.ok("cuCtxSynchronize");
    charged(0, "given back where the program waits");
    calls.ok(&format!("cuMemAllocFromPoolAsync &one {} $pool 0", 5 * MIB));
    calls.ok("cuMemPoolDestroy $pool");
    charged(CHUNK, "destroyed, but not what is allocated from it");
    calls.ok("cuMemFreeAsync $one 0");
    calls.ok("cuStreamSynchronize 0");
    charged(0, "gone");
}

/// Tests that reuse of freed memory changes no charge, except after the pool's release threshold was lowered.
#[test]
fn pool_shrinkage_is_uncharged_at_next_synchronisation() {
    let mount = Mount::new();
    let (mut calls, charged) = watched(&mount);
    let come_and_go = |calls: &mut Calls| {
        calls.ok(&format!("cuMemAllocFromPoolAsync &one {} $pool 0", 5 * MIB));
        calls.ok("cuMemFreeAsync $one 0");
        calls.ok("cuStreamSynchronize 0");
    };
    create(&mut calls, "pool", DEVICE, 0);
    for threshold in [u64::MAX, 0] {
        calls.put("threshold", 0, 8, threshold);
        calls.ok(&format!(
            "cuMemPoolSetAttribute $pool {RELEASE_THRESHOLD} &threshold"
        ));
        if threshold == 0 {
            charged(CHUNK, "it had no occasion to give it back");
        }
        come_and_go(&mut calls);
        if threshold != 0 {
            come_and_go(&mut calls);
            charged(CHUNK, "it keeps that");
        }
    }
    charged(0, "it keeps nothing any more");
}

#[test]
fn destroyed_pool_is_uncharged_without_further_calls() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok("cuStreamCreate &stream 1");
    calls.ok("cuStreamCreate &other 1");
    calls.ok("cuMemAlloc_v2 &word 4");
    calls.ok("cuMemsetD32_v2 $word 0 1");
    for stream in ["$stream", "0", "2"] {
        create(&mut calls, "pool", DEVICE, 0);
        calls.ok(&format!("cuMemAllocFromPoolAsync &block {MIB} $pool 0"));
        calls.ok("cuMemPoolDestroy $pool");
        calls.ok(&format!("cuStreamWaitValue32_v2 {stream} $word 1 0"));
        calls.ok(&format!("cuMemFreeAsync $block {stream}"));
        assert_eq!(dir.number("memory.current"), CHUNK + 4, "{stream}");
        calls.ok("cuStreamWriteValue32_v2 $other $word 1 0");
        if stream == "2" {
            // Only this thread can query its per-thread default stream.
            calls.ok("cuCtxSynchronize");
        }
        wait_until("the destroyed pool is uncharged", || {
            dir.number("memory.current") == 4
        });
        calls.ok("cuStreamWriteValue32_v2 $other $word 0 0");
        calls.ok("cuStreamSynchronize $other");
    }
}

/// An allocation at a limit trims pools, which is no reason to take the work of streams for done.
#[test]
fn destroyed_pool_is_charged_at_a_limit_until_its_streams_have_freed() {
    const BLOCK: u64 = 64 << 10;
    for nr_streams in [1, 200] {
        let mount = Mount::new();
        let mut calls = Calls::start(&mount);
        let (dir, truth, pid) = (Dir::of(&mount, calls.pid()), mount.truth(), calls.pid());
        calls.ok("cuMemAlloc_v2 &word 4");
        calls.ok("cuMemsetD32_v2 $word 0 1");
        create(&mut calls, "pool", DEVICE, 0);
        for number in 0..nr_streams {
            calls.ok(&format!("cuStreamCreate &stream{number} 1"));
            let alloc = format!("cuMemAllocFromPoolAsync &block{number} {BLOCK} $pool $stream{number}");
            calls.ok(&alloc);
        }
        dir.write("memory.limit", CHUNK + 4);
        calls.ok("cuStreamWaitValue32_v2 $stream0 $word 1 0");
        for number in 0..nr_streams {
            calls.ok(&format!("cuMemFreeAsync $block{number} $stream{number}"));
        }
        calls.ok("cuMemPoolDestroy $pool");
        let alloc = format!("cuMemAlloc_v2 &other {CHUNK}");
        assert_eq!(calls.call(&alloc), OUT_OF_MEMORY);
        assert_eq!(truth.used(pid, 0), CHUNK + 4, "the device has the pool still");
        assert_eq!(dir.number("memory.current"), CHUNK + 4);
        calls.ok("cuMemsetD32_v2 $word 1 1");
        calls.ok("cuStreamSynchronize $stream0");
        calls.ok(&alloc);
        assert_eq!(truth.used(pid, 0), CHUNK + 4);
    }
}

/// Tests that each thread and each context has its own default stream, whichever name it is called by.
#[test]
fn wait_on_own_default_stream_does_not_cover_anothers() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    calls.ok("cuStreamCreate &other 1");
    calls.ok("cuMemAlloc_v2 &word 4");
    for (twin, stream) in [("", 2), ("_ptsz", 0)] {
        calls.ok("cuMemsetD32_v2 $word 0 1");
        calls.ok(&format!("cuMemAllocAsync{twin} &block {MIB} {stream}"));
        calls.ok(&format!("cuStreamWaitValue32_v2{twin} {stream} $word 1 0"));
        calls.ok(&format!("cuMemFreeAsync{twin} $block {stream}"));
        calls.ok_beside(&format!("cuStreamSynchronize{twin} {stream}"));
        assert_eq!(
            dir.number("memory.current"),
            CHUNK + 4,
            "waiting on another thread's stream uncharged the block"
        );
        calls.ok("cuStreamWriteValue32_v2 $other $word 1 0");
        calls.ok(&format!("cuStreamSynchronize{twin} {stream}"));
        assert_eq!(
            dir.number("memory.current"),
            4,
            "waiting on the own stream did not uncharge the block"
        );
    }
}

#[test]
fn current_pool_is_the_one_set() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    dir.write("memory.limit", CHUNK);
    create(&mut calls, "pool", DEVICE, 0);
    calls.put("location", 0, 4, DEVICE);
    let full = format!("cuMemAllocAsync &other {} 0", CHUNK + 1);
    for set in ["cuDeviceSetMemPool 0 $pool", "cuMemSetMemPool &location 1 $pool"] {
        calls.ok(set);
        calls.ok(&format!("cuMemAllocAsync &one {MIB} 0"));
        assert_eq!(dir.gpu(0).key("memory.stat", "pool"), CHUNK, "{set}");
        assert_eq!(calls.call(&full), OUT_OF_MEMORY, "{set}");
        calls.ok("cuMemGetMemPool &current &location 1");
        assert_eq!(calls.get("current"), calls.get("pool"), "{set}");
        calls.ok("cuMemFreeAsync $one 0");
        calls.ok("cuStreamSynchronize 0");
        calls.ok("cuMemPoolTrimTo $pool 0");
        calls.ok("cuMemGetDefaultMemPool &default &location 1");
        calls.ok(&format!("cuMemAllocFromPoolAsync &one {MIB} $default 0"));
        assert_eq!(
            dir.number("memory.current"),
            CHUNK,
            "{set}: the default pool is charged wrongly"
        );
        calls.ok("cuMemFreeAsync $one 0");
        calls.ok("cuCtxSynchronize");
        assert_eq!(dir.number("memory.current"), 0, "{set}");
        calls.ok("cuDeviceSetMemPool 0 $default");
    }
    // A pool of another device than the current one.
    create(&mut calls, "there", DEVICE, 1);
    assert_eq!(
        calls.call(&format!("cuMemAllocFromPoolAsync &one {} $there 0", CHUNK + 1)),
        OUT_OF_MEMORY
    );
    calls.ok(&format!("cuMemAllocFromPoolAsync &one {MIB} $there 0"));
    assert_eq!(dir.gpu(1).number("memory.current"), CHUNK);
    assert_eq!(dir.gpu(0).number("memory.current"), 0);
}

/// Managed memory goes to the device where it is used, wherever its pool prefers it. It is not known to be
/// there, so a context beside it stays charged.
#[test]
fn managed_pools_are_charged_wherever_their_memory_is() {
    const MANAGED: u64 = 2;
    const CONTEXT: u64 = 8 * MIB;
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT));
    for (location, id) in [(DEVICE, 0), (HOST, 0), (0, 0)] {
        let mut calls = Calls::start(&mount);
        let dir = Dir::of(&mount, calls.pid());
        wait_until("the context is measured", || {
            dir.key("memory.stat", "context_estimated") == 0
        });
        dir.write("memory.limit", CONTEXT + CHUNK);
        calls.put("properties", 0, 4, MANAGED);
        calls.put("properties", 8, 4, location);
        calls.put("properties", 12, 4, id);
        calls.ok("cuMemPoolCreate &created &properties");
        calls.put("location", 0, 4, location);
        calls.ok(&format!("cuMemGetDefaultMemPool &default &location {MANAGED}"));
        for pool in ["created", "default"] {
            let alloc = |bytes| format!("cuMemAllocFromPoolAsync &one {bytes} ${pool} 0");
            assert_eq!(
                calls.call(&alloc(CHUNK + 1)),
                OUT_OF_MEMORY,
                "{pool} of location {location}"
            );
            calls.ok(&alloc(MIB));
            assert_eq!(dir.key("memory.stat", "managed"), CHUNK);
            assert_eq!(dir.number("memory.current"), CONTEXT + CHUNK);
            assert_eq!(mount.truth().peak(calls.pid(), 0), CONTEXT + CHUNK);
            calls.ok("cuMemFreeAsync $one 0");
            calls.ok("cuStreamSynchronize 0");
            assert_eq!(dir.number("memory.current"), CONTEXT);
        }
    }
}

#[test]
fn host_pools_are_not_charged_to_devices() {
    let mount = Mount::new();
    let mut calls = Calls::start(&mount);
    let dir = Dir::of(&mount, calls.pid());
    dir.write("memory.limit", MIB);
    create(&mut calls, "pool", HOST, 0);
    calls.put("location", 0, 4, HOST);
    calls.ok("cuMemGetDefaultMemPool &default &location 1");
    for pool in ["pool", "default"] {
        calls.ok(&format!("cuMemAllocFromPoolAsync &one {} ${pool} 0", 4 * MIB));
        assert_eq!(dir.number("memory.current"), 0, "{pool}");
        calls.ok("cuMemFreeAsync $one 0");
    }
}

#[test]
fn shared_pool_is_charged_only_to_its_creator() {
    let mount = Mount::new();
    let (mut maker, mut taker) = (Calls::start(&mount), Calls::start(&mount));
    let (made, taken) = (Dir::of(&mount, maker.pid()), Dir::of(&mount, taker.pid()));
    create(&mut maker, "pool", DEVICE, 0);
    maker.ok(&format!("cuMemAllocFromPoolAsync &block {} $pool 0", 4 * MIB));
    maker.ok("cuMemPoolExportToShareableHandle &descriptor $pool 1 0");
    maker.ok("cuMemPoolExportPointer &data $block");
    let descriptor = maker.ask("get descriptor 0 4");
    let descriptor = taker.take_descriptor(&maker, &descriptor);
    let data = maker.show("data", 64);
    taker.fill("data", &data);
    taken.write("memory.limit", MIB);
    taker.ok(&format!(
        "cuMemPoolImportFromShareableHandle &pool {descriptor} 1 0"
    ));
    taker.ok("cuMemPoolImportPointer &block $pool &data");
    assert_eq!(taken.number("memory.current"), 0);
    assert_eq!(taken.key("memory.stat", "ipc"), 4 * MIB);
    assert_eq!(made.number("memory.current"), CHUNK);
    taker.ok("cuMemFreeAsync $block 0");
    taker.ok("cuStreamSynchronize 0");
    assert_eq!(taken.key("memory.stat", "ipc"), 0);
    taker.ok("cuMemPoolDestroy $pool");
    assert_eq!(taken.number("memory.current"), 0);
    maker.ok("cuMemFreeAsync $block 0");
    maker.ok("cuStreamSynchronize 0");
    assert_eq!(made.number("memory.current"), CHUNK, "descriptors hold the pool");
}
