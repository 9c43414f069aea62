//! Tests a GPU full of movable memory: it makes room for contexts and for all memory that cannot be moved, of
//! processes of the same priority.

use support::{Config, Governed, Mount, artifacts};

use crate::driver::Dir;

const MIB: u64 = 1 << 20;
const CARD: u64 = 512 * MIB;
const CONTEXT: u64 = 8 * MIB;
/// Bytes a second between device and host.
const BANDWIDTH: u64 = 1 << 30;

/// Each API with a small size, bytes.
const SMALL: &[(&str, u64)] = &[
    ("linear", 4096),
    ("linear", MIB),
    ("pitched", MIB),
    ("managed", MIB),
    ("async", MIB),
    ("array", MIB),
    ("vmm", 2 * MIB),
];

fn config() -> Config {
    let config = Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT);
    config
        .env("SIMGPU_MEMORY", CARD)
        .env("SIMGPU_HOST_BANDWIDTH", BANDWIDTH)
}

#[track_caller]
fn program(mount: &Mount, swap: u64) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", swap.to_string());
    Governed::spawn(command)
}

#[track_caller]
fn assert_allocated(answer: &str) {
    assert!(answer.starts_with("allocated "), "{answer}");
}

/// Fills the card with movable memory of one process, and all but what it has on the host.
fn full(mount: &Mount) -> Governed {
    let mut holder = program(mount, 1 << 40);
    holder.expect("ready");
    while mount.truth().used(holder.pid(), 0) + 8 * MIB <= CARD {
        assert_allocated(&holder.ask(&format!("alloc linear {}", 8 * MIB)));
    }
    holder
}

#[test]
fn full_card_admits_each_small_block_of_an_equal() {
    let mount = Mount::with(config().without_turns());
    let mut holder = full(&mount);
    for (api, bytes) in SMALL {
        let mut newcomer = program(&mount, 0);
        newcomer.expect("ready");
        assert_allocated(&newcomer.ask(&format!("alloc {api} {bytes}")));
        assert_eq!(newcomer.ask("verify"), "verified 1", "{api}");
        newcomer.finish();
    }
    // Its own memory makes room as well.
    for (api, bytes) in SMALL {
        assert_allocated(&holder.ask(&format!("alloc {api} {bytes}")));
    }
    assert!(holder.ask("verify").starts_with("verified "));
    assert_eq!(Dir::of(&mount, holder.pid()).key("memory.events", "swap_fail"), 0);
}

#[test]
fn programs_that_start_together_all_finish_without_turns() {
    start_together(&Mount::with(config().without_turns()));
}

#[test]
fn programs_that_start_together_all_finish_in_turns() {
    start_together(&Mount::with(config()));
}

/// Runs programs that each need three quarters of the card for movable memory, and a little for all else.
/// None waits for another, so some allocate while memory of others moves.
#[track_caller]
fn start_together(mount: &Mount) {
    const PROGRAMS: usize = 10;
    const PARTS: usize = 6;
    let mut programs: Vec<Governed> = (0..PROGRAMS).map(|_| program(mount, 1 << 40)).collect();
    let large = [("linear", CARD / 8)].repeat(PARTS);
    let all: Vec<_> = large.iter().chain(SMALL).collect();
    for program in &mut programs {
        for (api, bytes) in &all {
            program.say(&format!("alloc {api} {bytes}"));
        }
        program.say("launch 500 1000");
        program.say("verify");
    }
    for program in &mut programs {
        program.expect("ready");
        for _ in &all {
            assert_allocated(&program.line().expect("an answer"));
        }
        assert_eq!(program.line().as_deref(), Some("launched 500"));
        assert_eq!(program.line(), Some(format!("verified {}", all.len())));
        program.finish();
    }
}
