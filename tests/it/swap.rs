//! Tests memory that moves to the host and back: contents and addresses are unchanged, and the charges are
//! correct.

use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::Dir;

const MIB: u64 = 1 << 20;

/// Mounts with contexts that take no memory, so that limits are exact.
fn mount() -> Mount {
    Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0))
}

/// Starts a program whose large allocations can be moved.
fn swapping(mount: &Mount) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

#[track_caller]
fn alloc(program: &mut Governed, bytes: u64) {
    let answer = program.ask(&format!("alloc linear {bytes}"));
    assert!(answer.starts_with("allocated "), "{answer}");
}

#[test]
fn lowered_limit_moves_out_and_raised_limit_moves_back() {
    let mount = mount();
    let mut program = swapping(&mount);
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..4 {
        alloc(&mut program, 32 * MIB);
    }
    assert_eq!(dir.number("memory.current"), 128 * MIB);
    dir.write("memory.limit", 70 * MIB);
    wait_until("half of the memory is swapped out", || {
        dir.number("memory.current") == 64 * MIB
    });
    assert_eq!(dir.number("memory.swap.current"), 64 * MIB);
    assert_eq!(program.ask("verify"), "verified 4");
    assert_eq!(dir.key("memory.events", "swap_out"), 2);
    dir.write("memory.limit", "max");
    wait_until("the memory is swapped in", || {
        dir.number("memory.swap.current") == 0
    });
    assert_eq!(dir.number("memory.current"), 128 * MIB);
    assert_eq!(program.ask("verify"), "verified 4");
    assert_eq!(dir.key("memory.events", "swap_in"), 2);
    assert_eq!(dir.key("memory.events", "swap_fail"), 0);
    for (key, bytes) in [
        ("swapped", 0),
        ("swap_out_bytes", 64 * MIB),
        ("swap_in_bytes", 64 * MIB),
    ] {
        assert_eq!(dir.key("memory.stat", key), bytes, "{key}");
    }
}

#[test]
fn reclaim_is_not_undone_by_blocks_that_a_limit_moved_out() {
    let mount = mount();
    let mut program = swapping(&mount);
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..3 {
        alloc(&mut program, 16 * MIB);
    }
    dir.write("memory.limit", 32 * MIB);
    wait_until("one block is swapped out", || {
        dir.number("memory.current") == 32 * MIB
    });
    dir.write("memory.reclaim", "max");
    wait_until("every block is swapped out", || dir.number("memory.current") == 0);
    // A second reclaim does not bring the block back.
    dir.write("memory.reclaim", "1");
    wait_until("the second reclaim request is counted", || {
        dir.key("memory.events", "reclaim") == 2
    });
    dir.freeze();
    assert_eq!(dir.number("memory.swap.current"), 48 * MIB);
    assert_eq!(dir.key("memory.events", "swap_in"), 0);
    dir.write("compute.freeze", 0);
    wait_until("only the block over the limit is swapped out", || {
        dir.number("memory.swap.current") == 16 * MIB
    });
    assert_eq!(dir.number("memory.current"), 32 * MIB);
    assert_eq!(program.ask("verify"), "verified 3");
}

#[test]
fn frozen_process_moves_out_and_back_before_it_resumes() {
    let mount = mount();
    let mut program = swapping(&mount);
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..3 {
        alloc(&mut program, 16 * MIB);
    }
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    dir.write("memory.reclaim", "max");
    wait_until("the memory is swapped out", || dir.number("memory.current") == 0);
    assert_eq!(dir.number("memory.swap.current"), 48 * MIB);
    assert!(dir.is_frozen());
    program.say("verify");
    dir.write("compute.freeze", 0);
    assert_eq!(program.line().as_deref(), Some("verified 3"));
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(dir.number("memory.current"), 48 * MIB);
}

#[test]
fn excess_over_limit_is_on_host_up_to_swap_max() {
    let mount = mount();
    let mut program = swapping(&mount);
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.limit", 32 * MIB);
    dir.write("memory.swap.max", 16 * MIB);
    alloc(&mut program, 32 * MIB);
    alloc(&mut program, 16 * MIB);
    assert_eq!(
        program.ask("alloc linear 2097152"),
        "refused CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(dir.number("memory.swap.current"), 16 * MIB);
    assert_eq!(dir.number("memory.current"), 32 * MIB);
    assert_eq!(program.ask("verify"), "verified 2");
    assert_eq!(program.ask("free all"), "freed 2");
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(dir.number("memory.current"), 0);
}

#[test]
fn program_without_swap_never_moves() {
    let mount = mount();
    let mut command = mount.command(artifacts().load());
    command.arg("obey");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    let dir = Dir::of(&mount, program.pid());
    alloc(&mut program, 32 * MIB);
    assert_eq!(dir.number("memory.swap.max"), 0);
    for (file, value) in [("memory.swap.max", "1G"), ("memory.reclaim", "max")] {
        let error = std::fs::write(dir.path().join(file), value).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{file}");
    }
    dir.write("memory.limit", MIB);
    assert_eq!(program.ask("verify"), "verified 1");
    assert_eq!(dir.number("memory.current"), 32 * MIB);
    assert_eq!(dir.key("memory.stat", "pinned_unswappable"), 32 * MIB);
}

#[test]
fn set_with_wait_confirms_effect_or_reports_the_rest() {
    let mount = mount();
    let mut program = swapping(&mount);
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..4 {
        alloc(&mut program, 8 * MIB);
    }
    let set = |file: &str, value: &str, timeout: &str| {
        let path = format!("{}/{file}", program.pid());
        let command = ["set", "--wait", "--timeout", timeout, &path, value];
        mount.gcgroupfs(&command).output().unwrap()
    };
    assert!(set("memory.limit", "16M", "60").status.success());
    assert_eq!(dir.number("memory.current"), 16 * MIB);
    assert!(set("memory.reclaim", "8M", "60").status.success());
    assert_eq!(dir.number("memory.swap.current"), 24 * MIB);
    assert!(set("compute.freeze", "1", "60").status.success());
    assert!(dir.is_frozen());
    // `gcgroupfs set` accepts the same syntax as the files.
    assert!(set("compute.freeze", " 00 ", "60").status.success());
    assert!(!dir.is_frozen());
    assert!(set("memory.limit", " 16M", "1e19").status.success());
    dir.write("memory.swap.max", 0);
    let refused = set("memory.limit", "1M", "0");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(words.contains("memory.current is "), "{words}");
    assert!(
        !set("memory.swap.max", "max", "60").status.success(),
        "--wait accepts a file without an effect to wait for"
    );
}

#[test]
fn reclaim_order_is_configurable_and_first_out_returns_first() {
    let mount = mount();
    for (order, first) in [("oldest", 8), ("largest", 32)] {
        let mut command = mount.command(artifacts().load());
        command
            .arg("obey")
            .env("GCGROUP_SWAP", "max")
            .env("GCGROUP_RECLAIM", order);
        let mut program = Governed::spawn(command);
        program.expect("ready");
        let dir = Dir::of(&mount, program.pid());
        for size in [8, 16, 32] {
            alloc(&mut program, size * MIB);
        }
        dir.write("memory.limit", 55 * MIB);
        wait_until(order, || dir.number("memory.swap.current") == first * MIB);
        dir.write("memory.limit", 1);
        wait_until(order, || dir.number("memory.current") == 0);
        dir.write("memory.limit", first * MIB);
        wait_until(order, || dir.number("memory.current") == first * MIB);
        assert_eq!(program.ask("verify"), "verified 3", "{order}");
    }
}

#[test]
fn thaw_waits_for_room_depending_on_start_option() {
    let mount = Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_MEMORY", "64M")
            .without_turns(),
    );
    for waits in [false, true] {
        let mut command = mount.command(artifacts().load());
        command.arg("obey").env("GCGROUP_SWAP", "max");
        command.env("GCGROUP_THAW", if waits { "wait" } else { "" });
        let mut program = Governed::spawn(command);
        program.expect("ready");
        let dir = Dir::of(&mount, program.pid());
        for _ in 0..3 {
            alloc(&mut program, 16 * MIB);
        }
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        dir.write("memory.reclaim", "max");
        wait_until("the memory is swapped out", || dir.number("memory.current") == 0);
        let mut other = swapping(&mount);
        alloc(&mut other, 32 * MIB);
        let copies = || dir.key("compute.stat", "nr_copies");
        let before = copies();
        program.say("verify");
        dir.write("compute.freeze", 0);
        wait_until("the blocks that fit are swapped in", || {
            dir.number("memory.current") == 32 * MIB
        });
        if waits {
            assert_eq!(copies(), before);
            other.finish();
        }
        assert_eq!(program.line().as_deref(), Some("verified 3"), "{waits}");
        assert_eq!(
            dir.number("memory.swap.current"),
            if waits { 0 } else { 16 * MIB }
        );
        program.finish();
    }
}

#[test]
fn bytes_that_move_count_once() {
    const PART: u64 = 32 * MIB;
    const ALL: u64 = 16 * PART;
    let config = Config::default().env("SIMGPU_CONTEXT_MEMORY", 0);
    let mount = Mount::with(config.env("SIMGPU_HOST_BANDWIDTH", 2_u64 << 30));
    let mut program = swapping(&mount);
    let dir = Dir::of(&mount, program.pid());
    for _ in 0..ALL / PART {
        alloc(&mut program, PART);
    }
    let (current, swapped) = (
        || dir.number("memory.current"),
        || dir.number("memory.swap.current"),
    );
    for _ in 0..2 {
        dir.write("memory.limit", MIB);
        // What moves between the two reads is seen in neither place.
        wait_until("all has moved out", || {
            let (swapped, current) = (swapped(), current());
            assert!(current + swapped <= ALL + PART, "{current} + {swapped}");
            current == 0
        });
        assert_eq!(swapped(), ALL);
        dir.write("memory.limit", "max");
        wait_until("nothing is on the host", || {
            let (current, swapped) = (current(), swapped());
            assert!(current + swapped <= ALL + PART, "{current} + {swapped}");
            swapped == 0
        });
    }
    assert_eq!(program.ask("verify"), "verified 16");
}
