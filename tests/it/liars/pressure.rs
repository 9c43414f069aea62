//! Tests lies about memory pressure: donors without memory, and requesters that do not need any.

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use support::{Config, Governed, Mount, stop, wait_until};

use super::{liar, tell};
use crate::driver::Dir;
use crate::swap_pressure::program;

const MIB: u64 = 1 << 20;

/// Mounts a GPU of 128 MiB whose contexts take no memory.
fn mount() -> Mount {
    let config = Config::default()
        .env("SIMGPU_MEMORY", "128M")
        .without_turns()
        .arg("--allow-other");
    Mount::with(config)
}

#[track_caller]
fn alloc(program: &mut Governed, bytes: u64) -> String {
    program.ask(&format!("alloc linear {bytes}"))
}

/// Starts a liar that claims to have movable memory and is the first donor to be asked.
#[track_caller]
fn donor(mount: &Mount) -> Governed {
    let mut donor = liar(mount, &["can_swap=1", "priority=15", "memory_swap_max=max"]);
    let dir = Dir::of(mount, donor.pid());
    dir.write("compute.priority", 15);
    dir.write("memory.swap.max", "max");
    tell(&mut donor, "set memory_current 0 134217728");
    tell(&mut donor, "set swappable 0 134217728");
    donor
}

#[test]
fn donor_without_memory_does_not_block_an_allocation() {
    let mount = mount();
    let mut batch = program(&mount, 9, 1 << 40);
    for _ in 0..3 {
        assert!(alloc(&mut batch, 32 * MIB).starts_with("allocated "));
    }
    let mut donor = donor(&mount);
    let mut important = program(&mount, 3, 0);
    assert!(alloc(&mut important, 48 * MIB).starts_with("allocated "));
    assert_eq!(
        Dir::of(&mount, batch.pid()).number("memory.swap.current"),
        32 * MIB
    );
    let asked = donor.ask("control 0");
    assert!(
        asked.contains(" reclaim_bytes=0 "),
        "the donor is asked although it holds nothing: {asked}"
    );
    assert_eq!(batch.ask("verify"), "verified 3");
}

#[test]
fn next_donor_is_asked_when_one_does_not_deliver() {
    let mount = mount();
    let mut idle = program(&mount, 12, 1 << 40);
    let mut next = program(&mount, 9, 1 << 40);
    for program in [&mut idle, &mut next] {
        assert!(alloc(program, 60 * MIB).starts_with("allocated "));
    }
    stop(Pid::from_raw(idle.pid()));
    let mut important = program(&mount, 3, 0);
    assert!(alloc(&mut important, 40 * MIB).starts_with("allocated "));
    let swapped = |program: &Governed| Dir::of(&mount, program.pid()).number("memory.swap.current");
    assert_eq!((swapped(&idle), swapped(&next)), (0, 60 * MIB));
    idle.signal(Signal::SIGCONT);
    wait_until("the first donor has moved out, or the second is back", || {
        swapped(&idle) == 60 * MIB || swapped(&next) == 0
    });
    important.finish();
    wait_until("both donors are swapped in", || {
        swapped(&idle) + swapped(&next) == 0
    });
    assert_eq!(idle.ask("verify"), "verified 1");
}

#[test]
fn request_for_room_on_an_empty_gpu_moves_no_memory() {
    let mount = mount();
    let mut tenant = program(&mount, 9, 1 << 40);
    assert!(alloc(&mut tenant, 16 * MIB).starts_with("allocated "));
    let mut liar = liar(&mount, &["priority=0"]);
    Dir::of(&mount, liar.pid()).write("compute.priority", 0);
    for _ in 0..20 {
        assert_eq!(liar.ask(&format!("press 0 {}", 16 * MIB)), "refused");
    }
    let dir = Dir::of(&mount, tenant.pid());
    assert_eq!(dir.key("memory.events", "swap_out"), 0);
    assert_eq!(dir.key("memory.events", "reclaim"), 0);
}

#[test]
fn requester_that_uses_no_room_is_soon_ignored() {
    let mount = mount();
    let mut tenant = program(&mount, 9, 1 << 40);
    assert!(alloc(&mut tenant, 112 * MIB).starts_with("allocated "));
    let dir = Dir::of(&mount, tenant.pid());
    let mut liar = liar(&mount, &["priority=0"]);
    Dir::of(&mount, liar.pid()).write("compute.priority", 0);
    // An honest process could have used that room, so the first requests are believed.
    let mut nr_relieved = 0;
    wait_until("the lying process's request is refused", || {
        // The victim has room to return; otherwise there is no memory to ask for.
        wait_until("the tenant is swapped in", || {
            dir.number("memory.swap.current") == 0
        });
        let is_refused = liar.ask(&format!("press 0 {}", 64 * MIB)) == "refused";
        nr_relieved += u32::from(!is_refused);
        is_refused
    });
    assert!((1..=8).contains(&nr_relieved), "{nr_relieved}");
    assert_eq!(tenant.ask("verify"), "verified 1");
}
