//! Tests a GPU filled by other processes: processes of lower priority with swap give way, and no other
//! process is affected.

use nix::unistd::Pid;
use support::{Config, Governed, Mount, artifacts, stop, wait_until};

use crate::driver::Dir;

const MIB: u64 = 1 << 20;

/// Mounts a GPU of 128 MiB whose contexts take no memory.
fn mount() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_MEMORY", "128M")
            .without_turns(),
    )
}

/// Starts a program of that priority with `swap` bytes of swap.
#[track_caller]
pub(crate) fn program(mount: &Mount, priority: u32, swap: u64) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", swap.to_string());
    let mut program = Governed::spawn(command);
    program.expect("ready");
    Dir::of(mount, program.pid()).write("compute.priority", priority);
    program
}

#[track_caller]
fn alloc(program: &mut Governed, api: &str, bytes: u64) {
    let answer = program.ask(&format!("alloc {api} {bytes}"));
    assert!(answer.starts_with("allocated "), "{api}: {answer}");
}

#[test]
fn lower_priorities_move_out_and_return_with_room() {
    let mount = mount();
    let mut batch = program(&mount, 9, 1 << 40);
    for _ in 0..3 {
        alloc(&mut batch, "linear", 32 * MIB);
    }
    let dir = Dir::of(&mount, batch.pid());
    let truth = mount.truth();
    // For each allocation function, whether or not the requesting process can swap.
    for (api, swap) in [("linear", 0), ("linear", 1 << 40), ("pool", 0), ("vmm", 0)] {
        let mut interactive = program(&mount, 3, swap);
        alloc(&mut interactive, api, 48 * MIB);
        assert_eq!(
            dir.number("memory.swap.current"),
            32 * MIB,
            "{api}: more moved out than needed"
        );
        assert_eq!(dir.number("memory.current"), 64 * MIB, "{api}");
        assert_eq!(truth.used(batch.pid(), 0), 64 * MIB, "{api}");
        assert!(truth.used(interactive.pid(), 0) >= 48 * MIB, "{api}");
        assert_eq!(batch.ask("verify"), "verified 3", "{api}");
        let own = Dir::of(&mount, interactive.pid());
        assert_eq!(own.number("memory.swap.current"), 0, "{api}");
        assert_eq!(own.key("memory.stat", "nr_alloc_fail"), 0, "{api}");
        assert!(
            !own.read("memory.pressure").contains("total=0"),
            "{api}: the allocation has waited"
        );
        interactive.finish();
        wait_until("the batch job's memory is swapped in", || {
            dir.number("memory.swap.current") == 0
        });
        assert_eq!(batch.ask("verify"), "verified 3", "{api}");
    }
    assert_eq!(dir.key("memory.events", "swap_fail"), 0);
}

#[test]
fn equal_priority_is_untouched_by_movable_memory() {
    let mount = mount();
    let mut equal = program(&mount, 5, 1 << 40);
    alloc(&mut equal, "linear", 64 * MIB);
    let mut above = program(&mount, 4, 1 << 40);
    alloc(&mut above, "linear", 32 * MIB);
    // It cannot swap, so it is no donor even at the lowest priority.
    let mut fixed = program(&mount, 15, 0);
    alloc(&mut fixed, "linear", 16 * MIB);
    let mut asker = program(&mount, 5, 1 << 40);
    alloc(&mut asker, "linear", 32 * MIB);
    assert_eq!(
        Dir::of(&mount, asker.pid()).number("memory.swap.current"),
        32 * MIB
    );
    for program in [&equal, &above, &fixed] {
        let dir = Dir::of(&mount, program.pid());
        assert_eq!(dir.key("memory.events", "swap_out"), 0);
        assert_eq!(dir.key("memory.events", "reclaim"), 0);
    }
    alloc(&mut asker, "linear", 16 * MIB);
}

#[test]
fn lowest_priority_moves_out_first_within_its_bound() {
    let mount = mount();
    let mut lesser = program(&mount, 8, 1 << 40);
    for _ in 0..3 {
        alloc(&mut lesser, "linear", 16 * MIB);
    }
    let mut least = program(&mount, 12, 32 * MIB);
    for _ in 0..5 {
        alloc(&mut least, "linear", 16 * MIB);
    }
    let mut asker = program(&mount, 0, 0);
    let out = |program: &Governed| Dir::of(&mount, program.pid()).number("memory.swap.current");
    alloc(&mut asker, "linear", 16 * MIB);
    assert_eq!((out(&least), out(&lesser)), (16 * MIB, 0));
    alloc(&mut asker, "linear", 32 * MIB);
    assert_eq!((out(&least), out(&lesser)), (32 * MIB, 16 * MIB));
    // More than all donors together may give.
    assert_eq!(
        asker.ask(&format!("alloc linear {}", 64 * MIB)),
        "refused CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!((out(&least), out(&lesser)), (32 * MIB, 16 * MIB));
    assert_eq!(least.ask("verify"), "verified 5");
    assert_eq!(lesser.ask("verify"), "verified 3");
}

#[test]
fn without_donors_the_allocation_goes_to_the_host() {
    let mount = mount();
    let mut fixed = program(&mount, 15, 0);
    alloc(&mut fixed, "linear", 112 * MIB);
    let mut asker = program(&mount, 0, 32 * MIB);
    let dir = Dir::of(&mount, asker.pid());
    alloc(&mut asker, "linear", 32 * MIB);
    assert_eq!(dir.number("memory.swap.current"), 32 * MIB);
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(asker.ask("verify"), "verified 1");
    fixed.finish();
    wait_until("the memory is swapped in", || {
        dir.number("memory.swap.current") == 0
    });
    assert_eq!(dir.number("memory.current"), 32 * MIB);
    assert_eq!(asker.ask("verify"), "verified 1");
}

#[test]
fn frozen_donor_moves_out_and_silent_one_times_out() {
    let mount = mount();
    let mut frozen = program(&mount, 9, 1 << 40);
    alloc(&mut frozen, "linear", 96 * MIB);
    let dir = Dir::of(&mount, frozen.pid());
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    let mut asker = program(&mount, 3, 0);
    alloc(&mut asker, "linear", 64 * MIB);
    assert_eq!(dir.number("memory.swap.current"), 96 * MIB);
    assert_eq!(asker.ask("free all"), "freed 1");
    dir.write("compute.freeze", 0);
    assert_eq!(frozen.ask("verify"), "verified 1");
    wait_until("the memory is swapped in", || {
        dir.number("memory.swap.current") == 0
    });
    stop(Pid::from_raw(frozen.pid()));
    assert_eq!(
        asker.ask(&format!("alloc linear {}", 64 * MIB)),
        "refused CUDA_ERROR_OUT_OF_MEMORY"
    );
    frozen.signal(nix::sys::signal::Signal::SIGCONT);
    wait_until("the continued process is swapped in", || {
        dir.number("memory.swap.current") == 0
    });
    assert_eq!(frozen.ask("verify"), "verified 1");
}
