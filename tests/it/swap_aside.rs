//! Tests a driver that cannot map host memory for a device: memory of frozen processes still moves out and
//! returns before they continue; memory of running processes stays.

use simgpu::Held;
use support::{Config, Governed, Mount, artifacts, wait_until};

use crate::driver::Dir;
use crate::swap_faults::Fault;

const MIB: u64 = 1 << 20;

fn mount(driver: &str, memory: &str) -> Mount {
    mount_with(driver, memory, "")
}

fn mount_with(driver: &str, memory: &str, locations: &str) -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("SIMGPU_MEMORY", memory)
            .env("SIMGPU_DRIVER", driver)
            .env("SIMGPU_HOST_LOCATIONS", locations)
            .without_turns(),
    )
}

/// Starts a program with `count` movable blocks of 16 MiB.
#[track_caller]
fn blocks(mount: &Mount, count: usize, environment: &[(&str, &str)]) -> Governed {
    let mut command = mount.command(artifacts().load());
    command
        .arg("obey")
        .env("GCGROUP_SWAP", "max")
        .envs(environment.iter().copied());
    let mut program = Governed::spawn(command);
    program.expect("ready");
    for _ in 0..count {
        let answer = program.ask(&format!("alloc linear {}", 16 * MIB));
        assert!(answer.starts_with("allocated "), "{environment:?}: {answer}");
    }
    program
}

#[track_caller]
fn freeze_and_put_out(dir: &Dir<'_>, count: u64) {
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    dir.write("memory.reclaim", "max");
    wait_until("the memory is swapped out", || dir.number("memory.current") == 0);
    assert_eq!(dir.number("memory.swap.current"), count * 16 * MIB);
}

#[track_caller]
fn all_is_freed(mount: &Mount, program: &mut Governed, count: usize) {
    let dir = Dir::of(mount, program.pid());
    assert_eq!(program.ask("free all"), format!("freed {count}"));
    assert_eq!(dir.number("memory.current"), 0);
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(mount.truth().used(program.pid(), 0), 0);
}

#[test]
fn frozen_memory_moves_out_and_back_before_resuming() {
    // Two drivers are too old; newer ones refuse. The third and fourth mappings are those of the first piece
    // on the host.
    for (driver, faults, locations) in [
        ("11.8", "", ""),
        ("12.2", "", ""),
        ("12.8", "", "numa:*=800,host=1"),
        ("13.5", "", "numa:*=2,host=2"),
        ("13.5", "cuMemHostRegister_v2=801", "numa:*=999,host=101"),
        (
            "13.5",
            "cuMemSetAccess=1@3,cuMemSetAccess=1@4",
            "numa:0=ok,numa:*=801,host=801",
        ),
    ] {
        let mount = mount_with(driver, "1G", locations);
        let mut program = blocks(&mount, 2, &[("SIMGPU_FAULTS", faults)]);
        let dir = Dir::of(&mount, program.pid());
        // Exactly as much as needed on the host, so a wrong charge does not fit.
        std::fs::create_dir(mount.path().join("team")).unwrap();
        mount.write("team", "memory.swap.max", "32M");
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
        for _ in 0..2 {
            freeze_and_put_out(&dir, 2);
            let truth = mount.truth();
            assert_eq!(truth.used(program.pid(), 0), 0, "{driver} {faults} {locations}");
            let held = || mount.truth().held(program.pid(), 0, Held::HostPhysical);
            wait_until("the memory of the refused calls is released", || held() == 0);
            program.say("verify");
            dir.write("compute.freeze", 0);
            assert_eq!(
                program.line().as_deref(),
                Some("verified 2"),
                "{driver} {faults} {locations}"
            );
            assert_eq!(
                dir.number("memory.swap.current"),
                0,
                "{driver} {faults} {locations}"
            );
            assert_eq!(
                dir.number("memory.current"),
                32 * MIB,
                "{driver} {faults} {locations}"
            );
        }
        assert_eq!(
            dir.key("memory.events", "swap_fail"),
            0,
            "{driver} {faults} {locations}"
        );
        assert_eq!(
            dir.key("memory.events", "swap_out"),
            4,
            "{driver} {faults} {locations}"
        );
        all_is_freed(&mount, &mut program, 2);
    }
}

#[test]
fn running_process_stays_and_is_reported_once() {
    let mount = mount("11.8", "1G");
    let mut program = blocks(&mount, 2, &[]);
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.limit", 16 * MIB);
    wait_until("the failed move is counted", || {
        dir.key("memory.events", "swap_fail") >= 1
    });
    assert_eq!(program.ask("verify"), "verified 2");
    assert_eq!(dir.number("memory.current"), 32 * MIB);
    dir.write("memory.reclaim", "max");
    wait_until("the second failed move is counted", || {
        dir.key("memory.events", "swap_fail") == 2
    });
    assert_eq!(program.ask("verify"), "verified 2");
    assert_eq!(dir.number("memory.current"), 32 * MIB);
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(
        program.ask("alloc linear 16777216"),
        "refused CUDA_ERROR_OUT_OF_MEMORY",
        "the allocation succeeded on the host"
    );
    assert_eq!(dir.key("memory.events", "swap_out"), 0);
    all_is_freed(&mount, &mut program, 2);
}

#[test]
fn thaw_waits_for_room_regardless_of_limits() {
    let mount = mount("11.8", "64M");
    let mut program = blocks(&mount, 3, &[]);
    let dir = Dir::of(&mount, program.pid());
    freeze_and_put_out(&dir, 3);
    let mut other = blocks(&mount, 2, &[]);
    dir.write("memory.limit", 16 * MIB);
    let submitted = || ["nr_launches", "nr_copies"].map(|key| dir.key("compute.stat", key));
    let before = submitted();
    program.say("verify");
    dir.write("compute.freeze", 0);
    let truth = mount.truth();
    wait_until("the blocks that fit are swapped in", || {
        dir.number("memory.swap.current") == 16 * MIB
    });
    assert_eq!(truth.used(program.pid(), 0), 32 * MIB);
    assert_eq!(
        submitted(),
        before,
        "work was submitted before the memory was back"
    );
    other.finish();
    assert_eq!(program.line().as_deref(), Some("verified 3"));
    assert_eq!(dir.number("memory.swap.current"), 0);
    assert_eq!(dir.number("memory.current"), 48 * MIB);
    all_is_freed(&mount, &mut program, 3);
}

#[test]
fn swapped_memory_can_be_freed_and_survives_daemon_kills() {
    let mut mount = mount("11.8", "1G");
    let mut program = blocks(&mount, 2, &[]);
    let pid = program.pid();
    freeze_and_put_out(&Dir::of(&mount, pid), 2);
    mount.kill9();
    mount.restart();
    wait_until("the process has registered again", || mount.governs(pid));
    let dir = Dir::of(&mount, pid);
    assert_eq!(dir.number("memory.swap.current"), 32 * MIB);
    program.say("verify");
    dir.write("compute.freeze", 0);
    assert_eq!(program.line().as_deref(), Some("verified 2"));
    freeze_and_put_out(&dir, 2);
    all_is_freed(&mount, &mut program, 2);
    dir.write("compute.freeze", 0);
    let killed = blocks(&mount, 2, &[]);
    let pid = killed.pid();
    freeze_and_put_out(&Dir::of(&mount, pid), 2);
    drop(killed);
    wait_until("the killed process is no longer governed", || !mount.governs(pid));
    assert_eq!(mount.truth().used_by_all(0), 0);
}

#[test]
fn failed_call_in_a_move_costs_one_attempt() {
    let mount = mount("11.8", "1G");
    for (call, nth) in [
        ("cuMemCreate", "2"),
        ("cuMemCreate", "3"),
        ("cuMemcpyAsync", "1"),
        ("cuMemcpyAsync", "2"),
        ("cuMemcpyAsync", "3"),
        ("cuMemcpyAsync", "4"),
        ("cuStreamSynchronize", "1"),
        ("cuStreamSynchronize", "3"),
        ("cuStreamCreate", "2"),
        ("cuStreamDestroy_v2", "1"),
        ("cuMemUnmap", "1"),
        ("cuMemMap", "1"),
        ("cuMemSetAccess", "1"),
        ("cuMemRelease", "2"),
        ("cuMemHostUnregister", "1"),
    ] {
        let fault = &Fault::new(&mount, call, 999, nth);
        let mut program = blocks(&mount, 2, &fault.variables());
        fault.begin();
        let dir = Dir::of(&mount, program.pid());
        dir.write("compute.freeze", 1);
        wait_until("the process is frozen and drained", || dir.is_frozen());
        dir.write("memory.reclaim", "max");
        wait_until(&format!("the move has succeeded or failed: {fault}"), || {
            dir.number("memory.current") == 0 || dir.key("memory.events", "swap_fail") == 1
        });
        if dir.number("memory.current") != 0 {
            // A failed move is not repeated by itself, so another reclaim is requested.
            dir.write("memory.reclaim", "max");
            wait_until(&format!("the memory is swapped out: {fault}"), || {
                dir.number("memory.current") == 0
            });
        }
        assert_eq!(mount.truth().used(program.pid(), 0), 0, "{fault}");
        program.say("verify");
        dir.write("compute.freeze", 0);
        assert_eq!(program.line().as_deref(), Some("verified 2"), "{fault}");
        assert_eq!(mount.truth().used(program.pid(), 0), 32 * MIB, "{fault}");
        let failed = dir.key("memory.events", "swap_fail");
        assert!(failed <= 1, "{fault}: {failed}");
        fault.end();
        all_is_freed(&mount, &mut program, 2);
    }
}
