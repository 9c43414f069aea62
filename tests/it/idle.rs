//! Tests `gcgroup.idle`: processes that are idle leave the GPU, and return when they need it.

use std::fs;

use nix::sys::signal::Signal;
use support::{Config, Governed, Mount, wait_until};

use crate::driver::Dir;

const MIB: u64 = 1 << 20;
/// Memory of the simulated GPU, whose contexts take none, and of a program that takes all that movable memory
/// may have.
const TOTAL: u64 = 64 * MIB;
const WHOLE: u64 = 48 * MIB;
const BLOCK: u64 = 8 * MIB;

fn mount() -> Mount {
    Mount::with(
        Config::default()
            .env("SIMGPU_MEMORY", TOTAL)
            .env("SIMGPU_CONTEXT_MEMORY", 0)
            .env("GCGROUP_SWAP", "max"),
    )
}

/// Starts a program that has filled so much memory.
#[track_caller]
fn model(mount: &Mount, bytes: u64) -> Governed {
    let mut program = mount.obedient();
    for _ in 0..bytes / BLOCK {
        let answer = program.ask(&format!("alloc linear {BLOCK}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    }
    program
}

/// Starts a program that leaves when it is idle for a second, and waits until it has left.
#[track_caller]
fn away(mount: &Mount) -> Governed {
    let program = model(mount, WHOLE);
    mount.write(program.pid(), "gcgroup.idle", "1 reclaim");
    wait_until_away(mount, &program);
    program
}

fn is(mount: &Mount, program: &Governed, key: &str) -> bool {
    mount
        .read(program.pid(), "gcgroup.events")
        .contains(&format!("{key} 1"))
}

#[track_caller]
fn wait_until_away(mount: &Mount, program: &Governed) {
    let dir = Dir::of(mount, program.pid());
    // What was prepared for a move in when it left is freed a little later.
    wait_until("the process has left", || {
        is(mount, program, "away")
            && dir.number("memory.current") == 0
            && mount.truth().used(program.pid(), 0) == 0
    });
}

#[track_caller]
fn verify(program: &mut Governed) {
    assert_eq!(program.ask("verify"), format!("verified {}", WHOLE / BLOCK));
}

/// Waits until all memory of a process is on the GPU.
#[track_caller]
fn wait_until_back(mount: &Mount, program: &Governed) {
    let dir = Dir::of(mount, program.pid());
    wait_until("its memory is back", || dir.number("memory.swap.current") == 0);
    assert_eq!(dir.number("memory.current"), WHOLE);
    assert_eq!(mount.truth().used(program.pid(), 0), WHOLE);
}

#[test]
fn idle_process_leaves_and_its_next_submission_waits_for_its_memory() {
    let mount = mount();
    let mut program = away(&mount);
    let (pid, dir) = (program.pid(), Dir::of(&mount, program.pid()));
    assert!(is(&mount, &program, "frozen"));
    assert_eq!(mount.read(pid, "compute.freeze"), "0", "nobody has written it");
    assert_eq!(dir.number("memory.swap.current"), WHOLE);
    assert_eq!(dir.key("memory.events", "idle"), 1);
    let shown = |arguments: &[&str]| {
        let output = mount.gcgroupfs(arguments).output().expect("the command starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let told = shown(&["explain", &pid.to_string()]);
    assert!(told.contains("away from the GPU, idle for 1 s"), "{told}");
    assert!(shown(&["ls", "--format=state"]).contains("away"));
    verify(&mut program);
    assert_eq!(dir.key("memory.events", "swap_fail"), 0);
    assert_eq!(
        dir.key("memory.events", "swap_in"),
        WHOLE / BLOCK,
        "before the kernels"
    );
    wait_until_away(&mount, &program);
    assert!(shown(&["events"]).contains("returned"));
    verify(&mut program);
}

#[test]
fn calls_that_do_not_need_the_gpu_leave_the_process_away() {
    let mount = mount();
    let mut program = away(&mount);
    assert!(program.ask("meminfo").starts_with("meminfo "));
    assert!(program.ask("device-total").starts_with("device-total "));
    assert_eq!(program.ask("sync"), "synchronised");
    assert!(program.ask("alloc host 4096").starts_with("allocated "));
    assert!(is(&mount, &program, "away"));
    assert_eq!(program.ask("launch 1"), "launched 1");
    wait_until_back(&mount, &program);
}

#[test]
fn twenty_programs_that_each_take_the_gpu_are_used_in_any_order() {
    const ROUNDS: usize = 60;
    let mount = mount();
    fs::create_dir_all(mount.path().join("models/inner")).expect("root may create groups");
    mount.write("models", "gcgroup.idle", "1 reclaim");
    let start = || {
        let program = model(&mount, WHOLE);
        mount.write("models/inner", "gcgroup.procs", &program.pid().to_string());
        program
    };
    let mut programs: Vec<Governed> = (0..20).map(|_| start()).collect();
    let mut seed = u64::from(std::time::UNIX_EPOCH.elapsed().expect("a time").subsec_nanos()) | 1;
    println!("seed {seed}");
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % 1_000_003).expect("a small number") % below
    };
    for round in 0..ROUNDS {
        let at = random(20);
        if random(8) == 0 {
            for program in &programs {
                wait_until_away(&mount, program);
            }
            assert_eq!(mount.truth().used_by_all(0), 0, "{round}");
        }
        let other = (at + 1) % programs.len();
        if random(8) == 0 {
            programs[at].signal(Signal::SIGKILL);
            programs[at].wait();
            programs[at] = start();
        }
        for used in [at, other] {
            programs[used].say("verify");
        }
        for used in [at, other] {
            let answer = programs[used].line();
            assert_eq!(
                answer,
                Some(format!("verified {}", WHOLE / BLOCK)),
                "{round}: {used}"
            );
        }
    }
    for program in &mut programs {
        wait_until_away(&mount, program);
        verify(program);
    }
}

#[test]
fn rule_that_is_removed_brings_the_process_back() {
    let mount = mount();
    let mut program = away(&mount);
    mount.write(program.pid(), "gcgroup.idle", "max");
    wait_until_back(&mount, &program);
    assert!(!mount.read(program.pid(), "gcgroup.events").contains("away"));
    verify(&mut program);
}

#[test]
fn written_freeze_and_suspension_hold_beside_the_rule() {
    let mount = mount();
    let mut program = away(&mount);
    let pid = program.pid();
    for (file, undone) in [("compute.freeze", "frozen"), ("gcgroup.suspend", "suspended")] {
        wait_until_away(&mount, &program);
        mount.write(pid, file, "1");
        wait_until("it is in force", || is(&mount, &program, undone));
        program.say("verify");
        wait_until("the call has been heard", || !is(&mount, &program, "away"));
        assert!(is(&mount, &program, undone), "{file}");
        assert_eq!(program.line_now(), None, "{file}");
        mount.write(pid, file, "0");
        assert_eq!(
            program.line(),
            Some(format!("verified {}", WHOLE / BLOCK)),
            "{file}"
        );
    }
    wait_until_away(&mount, &program);
    // In the other order: neither undoes the other.
    mount.write(pid, "gcgroup.suspend", "1");
    wait_until("it is suspended", || is(&mount, &program, "suspended"));
    mount.write(pid, "gcgroup.suspend", "0");
    wait_until("it is resumed", || !is(&mount, &program, "suspended"));
    wait_until_away(&mount, &program);
    verify(&mut program);
}

#[test]
fn daemon_that_is_killed_brings_processes_back() {
    let mut mount = mount();
    let mut program = away(&mount);
    mount.kill9();
    // After the grace time.
    verify(&mut program);
    mount.restart();
    wait_until("the process has registered again", || {
        mount.governs(program.pid())
    });
    assert_eq!(mount.read(program.pid(), "gcgroup.idle"), "1 reclaim");
    wait_until_away(&mount, &program);
    mount.kill9();
    program.say("verify");
    mount.restart();
    assert_eq!(program.line(), Some(format!("verified {}", WHOLE / BLOCK)));
    wait_until("the process has registered again", || {
        mount.governs(program.pid())
    });
    wait_until_away(&mount, &program);
    verify(&mut program);
}

#[test]
fn killed_program_that_is_away_leaves_nothing() {
    let mount = mount();
    let (mut gone, mut other) = (away(&mount), away(&mount));
    gone.signal(Signal::SIGKILL);
    gone.wait();
    verify(&mut other);
    wait_until_back(&mount, &other);
    assert_eq!(mount.truth().used_by_all(0), WHOLE);
}

#[test]
fn calls_at_any_stage_of_leaving_are_answered() {
    let mount = mount();
    let mut program = away(&mount);
    for stage in ["frozen 1", "away 1"].repeat(6) {
        wait_until("the stage is reached", || {
            mount.read(program.pid(), "gcgroup.events").contains(stage)
        });
        verify(&mut program);
    }
    wait_until_away(&mount, &program);
    verify(&mut program);
    wait_until_back(&mount, &program);
}

#[test]
fn rule_is_refused_with_a_reason_and_changes_nothing() {
    let mount = mount();
    let program = model(&mount, BLOCK);
    let write = |text: &str| {
        let written = mount.try_write(program.pid(), "gcgroup.idle", text);
        written.expect_err("it is refused").raw_os_error()
    };
    assert_eq!(write("30 suspend"), Some(nix::libc::EOPNOTSUPP));
    assert_eq!(write("0 reclaim"), Some(nix::libc::ERANGE));
    assert_eq!(write("reclaim"), Some(nix::libc::EINVAL));
    assert_eq!(mount.read(program.pid(), "gcgroup.idle"), "max");
}

#[test]
fn memory_that_was_out_before_returns_before_any_submission_too() {
    let mount = mount();
    let mut program = model(&mount, WHOLE);
    let dir = Dir::of(&mount, program.pid());
    dir.write("memory.reclaim", "max");
    wait_until("all of it is out", || dir.number("memory.current") == 0);
    dir.write("gcgroup.idle", "1 reclaim");
    wait_until_away(&mount, &program);
    verify(&mut program);
    assert_eq!(dir.key("memory.events", "swap_in"), WHOLE / BLOCK);
}
