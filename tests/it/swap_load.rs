//! Tests a workload that verifies every word of its memory while the memory is moved out and in.

use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::Dir;

const MIB: u64 = 1 << 20;

/// Starts the workload.
fn start(mount: &Mount, arguments: &[&str]) -> Governed {
    let mut command = mount.command(artifacts().load());
    command.arg("swap").args(arguments).env("GCGROUP_SWAP", "max");
    let mut program = Governed::spawn(command);
    program.expect("ready");
    program
}

#[test]
fn every_word_is_right_over_limits_reclaims_and_freezes() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let mut program = start(&mount, &["--bytes", "6M", "--blocks", "12", "--hold"]);
    let dir = Dir::of(&mount, program.pid());
    for round in 0..4 {
        wait_until("the program has allocated 16 MiB", || {
            dir.number("memory.current") >= 16 * MIB
        });
        dir.write("memory.limit", 8 * MIB);
        wait_until("the memory over the limit is swapped out", || {
            dir.number("memory.current") <= 8 * MIB
        });
        dir.write("memory.limit", "max");
        wait_until("the memory is swapped in", || {
            dir.number("memory.swap.current") == 0
        });
        if round % 2 == 0 {
            dir.write("compute.freeze", 1);
            wait_until("the process is frozen and drained", || dir.is_frozen());
            // Until its next launch the program may still allocate.
            let is_out = || {
                let _ = mount.try_write(program.pid(), "memory.reclaim", "max");
                dir.number("memory.current") == dir.key("memory.stat", "pinned_unswappable")
            };
            wait_until("only unswappable memory is left on the device", is_out);
            // Further requests may be under way.
            wait_until("the charge equals what the device holds", || {
                mount.truth().used(program.pid(), 0) == dir.number("memory.current")
            });
            dir.write("compute.freeze", 0);
        }
    }
    assert!(dir.key("memory.events", "swap_out") >= 4);
    program.close_stdin();
    program.expect("{\"command\":\"swap\"");
    assert!(program.wait().success(), "{}", program.stderr());
}

#[test]
fn moved_and_freed_memory_leaves_nothing() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let mut program = start(&mount, &["--bytes", "4M", "--blocks", "8", "--hold"]);
    let dir = Dir::of(&mount, program.pid());
    wait_until("the program has allocated 8 MiB", || {
        dir.number("memory.current") >= 8 * MIB
    });
    dir.write("memory.limit", 4 * MIB);
    wait_until("a move out is counted", || {
        dir.key("memory.events", "swap_out") >= 1
    });
    program.say("");
    program.expect("{\"command\":\"swap\"");
    // The memory of a block that is freed while it moves, or while a move of it is prepared, is released when
    // that ends.
    wait_until("nothing is charged, and nothing is left on the device", || {
        let files = ["memory.current", "memory.swap.current"].map(|file| dir.number(file));
        let kinds = ["linear", "pinned_unswappable"].map(|key| dir.key("memory.stat", key));
        let truth = mount.truth();
        let held = [truth.used(program.pid(), 0), truth.used_by_all(0)];
        [files, kinds, held] == [[0; 2]; 3]
    });
    wait_until("the swap pool is empty", || {
        dir.key("memory.stat", "swap_pool") == 0
    });
    assert_eq!(mount.truth().host_at_once(Held::HostPhysical), Some(0));
    program.finish();
}
