//! Tests that memory which a process has shared and freed is charged as long as a descriptor or another
//! process holds it, and no longer.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Mount, Truth, stop, wait_until};

use crate::calls::{Calls, OUT_OF_MEMORY};
use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 16 * MIB;
const LIMIT: u64 = 320 * MIB;
const BLOCK: u64 = 64 * MIB;

struct Shared {
    mount: Mount,
    truth: Truth,
    owner: Calls,
    other: Calls,
}

/// A call that shares a block of an owner, and how another process takes and leaves it.
struct Way {
    name: &'static str,
    make: fn(&mut Calls),
    take: fn(&mut Calls, &mut Calls),
    free: &'static [&'static str],
    leave: &'static [&'static str],
}

fn take_descriptor(other: &mut Calls, owner: &Calls, number: &str) -> i64 {
    let taken = other.take_descriptor(owner, number);
    other.put("taken", 0, 4, u64::try_from(taken).expect("a descriptor"));
    taken
}

const WAYS: [Way; 4] = [
    Way {
        name: "linear",
        make: |owner| {
            owner.ok(&format!("cuMemAlloc_v2 &block {BLOCK}"));
            owner.ok("cuIpcGetMemHandle &handle $block");
        },
        take: |owner, other| {
            let handle = owner.show("handle", 64);
            other.fill("handle", &handle);
            other.ok("cuIpcOpenMemHandle_v2 &block 1 *handle");
        },
        free: &["cuMemFree_v2 $block"],
        leave: &["cuIpcCloseMemHandle $block"],
    },
    Way {
        name: "mapped",
        make: |owner| {
            create(owner);
            owner.ok("cuMemExportToShareableHandle &descriptor $handle 1 0");
        },
        take: |owner, other| {
            let number = owner.ask("get descriptor 0 4");
            let taken = take_descriptor(other, owner, &number);
            other.ok(&format!("cuMemImportFromShareableHandle &handle {taken} 1"));
            other.ok(&format!("cuMemAddressReserve &range {BLOCK} 0 0 0"));
            other.ok(&format!("cuMemMap $range {BLOCK} 0 $handle 0"));
            other.ok("cuMemRelease $handle");
            other.ok("close $taken");
        },
        free: &["cuMemRelease $handle", "close $descriptor"],
        leave: &["cuMemUnmap $range 67108864"],
    },
    Way {
        name: "imported, of unknown size",
        make: |owner| {
            create(owner);
            owner.ok("cuMemExportToShareableHandle &descriptor $handle 1 0");
        },
        take: |owner, other| {
            let number = owner.ask("get descriptor 0 4");
            let taken = take_descriptor(other, owner, &number);
            other.ok(&format!("cuMemImportFromShareableHandle &handle {taken} 1"));
            other.ok("close $taken");
        },
        free: &["cuMemRelease $handle", "close $descriptor"],
        leave: &["cuMemRelease $handle"],
    },
    Way {
        name: "pool",
        make: |owner| {
            for (at, size, value) in [(0, 4, 1), (4, 4, 1), (8, 4, 1), (12, 4, 0)] {
                owner.put("pool_properties", at, size, value);
            }
            owner.put("pool_properties", 80, 8, 0);
            owner.ok("cuMemPoolCreate &pool &pool_properties");
            owner.ok(&format!("cuMemAllocFromPoolAsync &block {BLOCK} $pool 0"));
            owner.ok("cuStreamSynchronize 0");
            owner.ok("cuMemPoolExportToShareableHandle &descriptor $pool 1 0");
            owner.ok("cuMemPoolExportPointer &data $block");
        },
        take: |owner, other| {
            let number = owner.ask("get descriptor 0 4");
            let taken = take_descriptor(other, owner, &number);
            let data = owner.show("data", 64);
            other.fill("data", &data);
            other.ok(&format!("cuMemPoolImportFromShareableHandle &pool {taken} 1 0"));
            other.ok("cuMemPoolImportPointer &block $pool &data");
            other.ok("close $taken");
        },
        free: &[
            "cuMemFreeAsync $block 0",
            "cuStreamSynchronize 0",
            "cuMemPoolDestroy $pool",
            "close $descriptor",
        ],
        leave: &[
            "cuMemFreeAsync $block 0",
            "cuStreamSynchronize 0",
            "cuMemPoolDestroy $pool",
        ],
    },
];

/// Creates a block that can be shared by a descriptor, as `handle`.
fn create(calls: &mut Calls) {
    put_properties(calls);
    calls.ok(&format!("cuMemCreate &handle {BLOCK} &properties 0"));
}

fn put_properties(calls: &mut Calls) {
    for (at, value) in [(0, 1), (4, 1), (8, 1), (12, 0)] {
        calls.put("properties", at, 4, value);
    }
}

impl Shared {
    fn new() -> Self {
        let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT));
        let (owner, other) = (Calls::start(&mount), Calls::start(&mount));
        let truth = mount.truth();
        let dir = Dir::of(&mount, owner.pid());
        wait_until("the contexts are measured", || {
            dir.key("memory.stat", "context_estimated") == 0 && dir.number("memory.current") == CONTEXT
        });
        Self {
            mount,
            truth,
            owner,
            other,
        }
    }

    /// Waits until the processes are charged so much beside their contexts.
    #[track_caller]
    fn wait_for(&self, why: &str, owner: u64, other: u64) {
        let current = |calls: &Calls| Dir::of(&self.mount, calls.pid()).number("memory.current");
        wait_until(why, || {
            current(&self.owner) == CONTEXT + owner && current(&self.other) == CONTEXT + other
        });
    }
}

#[test]
fn freed_memory_is_charged_while_another_process_has_it() {
    for way in WAYS {
        let mut shared = Shared::new();
        let name = way.name;
        (way.make)(&mut shared.owner);
        (way.take)(&mut shared.owner, &mut shared.other);
        shared.wait_for(&format!("{name}: charged to its owner"), BLOCK, 0);
        way.free.iter().for_each(|call| shared.owner.ok(call));
        assert_eq!(shared.truth.used_by_all(0), 2 * CONTEXT + BLOCK, "{name}");
        // No call tells which of the two holds it.
        shared.wait_for(&format!("{name}: charged to both"), BLOCK, BLOCK);
        way.leave.iter().for_each(|call| shared.other.ok(call));
        assert_eq!(shared.truth.used_by_all(0), 2 * CONTEXT, "{name}");
        shared.wait_for(&format!("{name}: charged to none"), 0, 0);
    }
}

#[test]
fn memory_of_ended_owner_is_charged_to_process_that_has_it() {
    for way in WAYS {
        let mut shared = Shared::new();
        let name = way.name;
        (way.make)(&mut shared.owner);
        (way.take)(&mut shared.owner, &mut shared.other);
        let Shared {
            mount,
            truth,
            owner,
            mut other,
        } = shared;
        drop(owner);
        let dir = Dir::of(&mount, other.pid());
        wait_until(&format!("{name}: charged to the importer"), || {
            dir.number("memory.current") == CONTEXT + BLOCK
        });
        dir.write("memory.limit", CONTEXT + BLOCK + 16 * MIB);
        assert_eq!(
            other.call(&format!("cuMemAlloc_v2 &one {}", 32 * MIB)),
            OUT_OF_MEMORY
        );
        way.leave.iter().for_each(|call| other.ok(call));
        assert_eq!(truth.used_by_all(0), CONTEXT, "{name}");
        wait_until(&format!("{name}: uncharged"), || {
            dir.number("memory.current") == CONTEXT
        });
        other.ok(&format!("cuMemAlloc_v2 &one {}", 32 * MIB));
    }
}

#[test]
fn opened_memory_of_ended_owner_is_charged_after_a_restart() {
    for way in WAYS {
        let mut shared = Shared::new();
        let name = way.name;
        (way.make)(&mut shared.owner);
        (way.take)(&mut shared.owner, &mut shared.other);
        let Shared {
            mut mount,
            owner,
            mut other,
            ..
        } = shared;
        drop(owner);
        let pid = other.pid();
        let is_charged = |mount: &Mount| {
            let dir = Dir::of(mount, pid);
            wait_until(&format!("{name}: charged to the importer"), || {
                dir.number("memory.current") == CONTEXT + BLOCK
            });
        };
        is_charged(&mount);
        // Looks at the device while the process has not registered again.
        stop(Pid::from_raw(pid));
        mount.kill9();
        mount.restart();
        wait_until("the device was looked at", || {
            !mount.read("", "unmanaged").is_empty()
        });
        kill(Pid::from_raw(pid), Signal::SIGCONT).expect("the process lives");
        wait_until("the process has registered again", || mount.governs(pid));
        let dir = Dir::of(&mount, pid);
        for _ in 0..2 {
            other.ok("cuCtxCreate_v2 &more 0 0");
            // Until the device was looked at again: before, the charge is that of the last daemon.
            wait_until(&format!("{name}: the context is measured"), || {
                dir.key("memory.stat", "context_estimated") == 0
            });
            other.ok("cuCtxDestroy_v2 $more");
        }
        is_charged(&mount);
    }
}

#[test]
fn released_memory_that_descriptors_hold_exceeds_no_limit() {
    let mut shared = Shared::new();
    let dir = Dir::of(&shared.mount, shared.owner.pid());
    dir.write("memory.limit", LIMIT);
    let (owner, truth) = (&mut shared.owner, &shared.truth);
    put_properties(owner);
    let mut descriptors = Vec::new();
    let mut nr_refused = 0;
    while nr_refused < 20 {
        if owner.call(&format!("cuMemCreate &handle {BLOCK} &properties 0")) == OUT_OF_MEMORY {
            nr_refused += 1;
            continue;
        }
        owner.ok("cuMemExportToShareableHandle &descriptor $handle 1 0");
        owner.ok("cuMemRelease $handle");
        descriptors.push(owner.ask("get descriptor 0 4"));
        let lost = truth.used_by_all(0) - CONTEXT;
        assert!(
            lost <= LIMIT,
            "{lost} bytes with {} descriptors",
            descriptors.len()
        );
    }
    assert_eq!(descriptors.len() as u64, (LIMIT - CONTEXT) / BLOCK);
    for descriptor in descriptors {
        owner.ok(&format!("close {descriptor}"));
    }
    assert_eq!(truth.used_by_all(0), 2 * CONTEXT);
    wait_until("closed descriptors hold nothing", || {
        dir.number("memory.current") == CONTEXT
    });
    for _ in 0..(LIMIT - CONTEXT) / BLOCK {
        owner.ok(&format!("cuMemAlloc_v2 &one {BLOCK}"));
    }
}

/// A program shares memory over and over, and its partner is done with it each time before it is freed.
#[test]
fn room_of_memory_that_nobody_has_is_granted_at_once() {
    let mut shared = Shared::new();
    let dir = Dir::of(&shared.mount, shared.owner.pid());
    dir.write("memory.limit", CONTEXT + BLOCK + 16 * MIB);
    for way in WAYS {
        for _ in 0..5 {
            (way.make)(&mut shared.owner);
            (way.take)(&mut shared.owner, &mut shared.other);
            way.leave.iter().for_each(|call| shared.other.ok(call));
            way.free.iter().for_each(|call| shared.owner.ok(call));
        }
    }
    shared.wait_for("charged to none", 0, 0);
}

/// Starts a program in the group, which takes memory to which descriptors of `keeper` then lead, until it is
/// refused, and ends. Returns the descriptors.
fn leave_memory(shared: &mut Shared, group: &str, most: usize) -> Vec<String> {
    let mut owner = Calls::with(&shared.mount, true, &[("GCGROUP_GROUP", group)]);
    put_properties(&mut owner);
    let mut descriptors = Vec::new();
    let start = [
        "cuInit 0",
        "cuDeviceGet &device 0",
        "cuDevicePrimaryCtxRetain &context $device",
    ];
    let is_ready = start.iter().all(|call| owner.call(call).is_ok());
    if !is_ready {
        return descriptors;
    }
    owner.ok("cuCtxSetCurrent $context");
    while descriptors.len() < most
        && owner
            .call(&format!("cuMemCreate &handle {BLOCK} &properties 0"))
            .is_ok()
    {
        owner.ok("cuMemExportToShareableHandle &descriptor $handle 1 0");
        if descriptors.len() % 2 == 0 {
            owner.ok("cuMemRelease $handle");
        }
        let number = owner.ask("get descriptor 0 4");
        descriptors.push(shared.other.take_descriptor(&owner, &number).to_string());
    }
    descriptors
}

#[test]
fn memory_left_by_short_lived_processes_exceeds_no_group_limit() {
    let mut shared = Shared::new();
    fs::create_dir(shared.mount.path().join("team")).expect("the group is made");
    shared.mount.write("team", "memory.limit", &LIMIT.to_string());
    fs::create_dir(shared.mount.path().join("others")).expect("the group is made");
    for nr_others in [2, 0] {
        let mut descriptors = leave_memory(&mut shared, "others", nr_others);
        for _ in 0..12 {
            descriptors.extend(leave_memory(&mut shared, "team", 2));
            let others = nr_others as u64 * BLOCK;
            let lost = shared.truth.used_by_all(0) - 2 * CONTEXT - others;
            assert!(lost <= LIMIT, "{lost} bytes, and {others} of others");
        }
        // A context must fit beside what is left.
        let left = (LIMIT - CONTEXT) / BLOCK;
        assert_eq!(descriptors.len() as u64, nr_others as u64 + left);
        let current = |group| shared.mount.number(group, "memory.current", "");
        wait_until("each group is charged for what is left of its processes", || {
            [current("team"), current("others")] == [left * BLOCK, nr_others as u64 * BLOCK]
        });
        for descriptor in descriptors {
            shared.other.ok(&format!("close {descriptor}"));
        }
        let current = |group| shared.mount.number(group, "memory.current", "");
        wait_until("the groups are charged for nothing", || {
            [current("team"), current("others")] == [0, 0]
        });
    }
    fs::remove_dir(shared.mount.path().join("others")).expect("a group without processes is removed");
}

#[test]
fn program_gets_the_limit_after_one_that_shared_memory() {
    let mut shared = Shared::new();
    fs::create_dir(shared.mount.path().join("team")).expect("the group is made");
    shared
        .mount
        .write("team", "memory.limit", &(CONTEXT + 4 * BLOCK).to_string());
    for _ in 0..10 {
        let descriptors = leave_memory(&mut shared, "team", 8);
        // The program before has ended, and nobody holds what it had shared.
        assert_eq!(descriptors.len(), 4);
        for descriptor in descriptors {
            shared.other.ok(&format!("close {descriptor}"));
        }
    }
}
