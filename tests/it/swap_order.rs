//! Tests the order of driver calls in a move: slow calls are made before or after anything is held.

use std::path::Path;

use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::Dir;
use crate::swap_faults::is_host_counted;

const MIB: u64 = 1 << 20;

/// Driver calls that a move makes for a block, without fast ones.
const CALLS: [&str; 5] = [
    "cuMemCreate",
    "cuMemSetAccess",
    "cuMemcpyAsync",
    "cuMemUnmap",
    "cuMemRelease",
];

fn calls(trace: &Path) -> Vec<String> {
    let lines = std::fs::read_to_string(trace).unwrap();
    let names = lines.lines().filter_map(|line| line.split_whitespace().nth(1));
    names
        .filter(|name| CALLS.contains(name))
        .map(|name| name.trim_start_matches("cuMem").to_owned())
        .collect()
}

#[test]
fn move_creates_before_copying_and_releases_afterwards() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let trace = mount.simgpu_dir().join("trace");
    let mut command = mount.command(artifacts().load());
    command
        .arg("obey")
        .env("GCGROUP_SWAP", "max")
        .env("SIMGPU_TRACE", &trace);
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..2 {
        let answer = program.ask(&format!("alloc linear {}", 8 * MIB));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    let dir = Dir::of(&mount, program.pid());
    let made = ["Create", "SetAccess"].repeat(2);
    // First the program's own calls, then those of the moves.
    let before = calls(&trace).len();
    dir.write("memory.limit", 1);
    wait_until("both blocks are swapped out", || {
        dir.number("memory.current") == 0
    });
    let copied = ["cpyAsync", "cpyAsync"];
    let exchanged = ["Unmap", "SetAccess"].repeat(2);
    let settled = ["Unmap", "Release"].repeat(2);
    let tried = ["Create", "SetAccess", "Unmap", "Release"];
    let of_out: Vec<_> = [&tried[..], &made, &copied, &exchanged, &settled].concat();
    assert_eq!(calls(&trace)[before..], of_out, "calls of the move out");
    assert_eq!(dir.number("memory.swap.current"), 16 * MIB);
    wait_until("the host memory equals what is charged", || {
        is_host_counted(&mount, program.pid())
    });

    let before = before + of_out.len();
    dir.write("memory.limit", "max");
    wait_until("both blocks are swapped in", || {
        dir.number("memory.swap.current") == 0
    });
    // The host memory is kept afterwards.
    let of_in: Vec<_> = [&made[..], &copied, &exchanged, &["Unmap", "Unmap"]].concat();
    let all = calls(&trace);
    assert_eq!(all[before..][..of_in.len()], of_in, "calls of the move in");
    wait_until("the host memory equals what is charged", || {
        is_host_counted(&mount, program.pid())
    });
    wait_until("the swap pool is empty", || {
        dir.key("memory.stat", "swap_pool") == 0
    });
    assert_eq!(
        calls(&trace)[before + of_in.len()..],
        ["Release", "Release"],
        "calls after the move in"
    );
    assert_eq!(program.ask("verify"), "verified 2");
    program.finish();
}
