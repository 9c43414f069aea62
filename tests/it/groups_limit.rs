//! Tests group limits: exact to the byte for the sum of all member processes while they race, move and are
//! killed.

mod races;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, artifacts, stop, wait_until};

use crate::driver::{Dir, DriverShell};
use crate::nvml::{self, Nvml};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";

#[track_caller]
fn mkdir(mount: &Mount, path: &str) {
    std::fs::create_dir(mount.path().join(path)).unwrap_or_else(|error| panic!("mkdir {path}: {error}"));
}

#[track_caller]
fn join(mount: &Mount, group: &str, shell: &DriverShell) {
    mount.write(group, "gcgroup.procs", &shell.pid().to_string());
}

/// Starts a governed process in a group.
#[track_caller]
fn member(mount: &Mount, group: &str) -> DriverShell {
    let shell = DriverShell::start(mount);
    join(mount, group, &shell);
    shell
}

#[track_caller]
fn alloc(shell: &mut DriverShell, bytes: u64) -> String {
    shell.ask(&format!("alloc linear {bytes}"))
}

/// Returns the number that follows `word` at the beginning of an answer.
#[track_caller]
fn count(answer: &str, word: &str) -> u64 {
    let mut words = answer.split(' ');
    assert_eq!(words.next(), Some(word), "{answer}");
    words
        .next()
        .and_then(|count| count.parse().ok())
        .expect("a count")
}

#[test]
fn group_limits_hold_on_each_gpu_and_level() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    mkdir(&mount, "team");
    mkdir(&mount, "team/a");
    mount.write("team", "memory.limit", "100M");
    mount.write("team/0", "memory.limit", "64M");
    mount.write("team/a", "memory.limit", "48M");
    let (mut one, mut other) = (member(&mount, "team/a"), member(&mount, "team"));
    assert_eq!(
        alloc(&mut one, 48 * MIB + 1),
        OUT_OF_MEMORY,
        "allocation over group a's limit"
    );
    assert_eq!(alloc(&mut one, 40 * MIB), "ok 0");
    assert_eq!(
        alloc(&mut other, 24 * MIB + 1),
        OUT_OF_MEMORY,
        "allocation over the group's limit on GPU 0"
    );
    assert_eq!(alloc(&mut other, 24 * MIB), "ok 0");
    assert_eq!(other.ask("gpu 1"), "ok");
    assert_eq!(
        alloc(&mut other, 36 * MIB + 1),
        OUT_OF_MEMORY,
        "allocation over the group's limit"
    );
    assert_eq!(alloc(&mut other, 36 * MIB), "ok 1");
    assert_eq!(one.ask("gpu 1"), "ok");
    assert_eq!(
        alloc(&mut one, 1),
        OUT_OF_MEMORY,
        "allocation over the group's limit"
    );
    let oom = |group: &str| mount.number(group, "memory.events", "oom");
    assert_eq!((oom("team/a"), oom("team/0")), (1, 1));
    assert_eq!(
        oom("team"),
        4,
        "the group does not count refusals in its children"
    );
    assert_eq!(other.ask("free 1"), "ok");
    assert_eq!(alloc(&mut one, 8 * MIB), "ok 1");
    assert_eq!(
        alloc(&mut one, 1),
        OUT_OF_MEMORY,
        "allocation over group a's limit"
    );
}

#[test]
fn limit_below_usage_refuses_until_there_is_room() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let (mut one, mut other) = (member(&mount, "team"), member(&mount, "team"));
    for shell in [&mut one, &mut other] {
        for block in 0..3 {
            assert_eq!(alloc(shell, 10 * MIB), format!("ok {block}"));
        }
    }
    mount.write("team", "memory.limit", "45M");
    assert_eq!(mount.number("team", "memory.events", "over_limit"), 1);
    assert_eq!(mount.number("team", "memory.current", ""), 60 * MIB);
    assert_eq!(one.ask("free 0"), "ok");
    assert_eq!(
        alloc(&mut one, 1),
        OUT_OF_MEMORY,
        "allocation with 50 MiB of 45 MiB charged"
    );
    assert_eq!(other.ask("free 0"), "ok");
    assert_eq!(alloc(&mut one, 5 * MIB + 1), OUT_OF_MEMORY);
    assert_eq!(alloc(&mut one, 5 * MIB), "ok 3");
    assert_eq!(alloc(&mut other, 1), OUT_OF_MEMORY);
    mount.write("team", "memory.limit", "max");
    assert_eq!(alloc(&mut other, 100 * MIB), "ok 3");
}

#[test]
fn moved_process_carries_its_charge() {
    let mount = Mount::new();
    for group in ["a", "b"] {
        mkdir(&mount, group);
        mount.write(group, "memory.limit", "64M");
    }
    let (mut one, mut other) = (member(&mount, "a"), member(&mount, "b"));
    assert_eq!(alloc(&mut one, 60 * MIB), "ok 0");
    assert_eq!(alloc(&mut other, 10 * MIB), "ok 0");
    join(&mount, "a", &other);
    assert_eq!(mount.number("a", "memory.current", ""), 70 * MIB);
    assert_eq!(alloc(&mut other, 1), OUT_OF_MEMORY);
    assert_eq!(alloc(&mut one, 1), OUT_OF_MEMORY);
    join(&mount, "b", &one);
    assert_eq!(alloc(&mut other, 54 * MIB), "ok 1");
    assert_eq!(alloc(&mut one, 4 * MIB + 1), OUT_OF_MEMORY);
    assert_eq!(alloc(&mut one, 4 * MIB), "ok 1");
    mount.write("", "gcgroup.procs", &one.pid().to_string());
    assert_eq!(
        alloc(&mut one, 100 * MIB),
        "ok 2",
        "allocation in no group without a limit"
    );
}

#[test]
fn exec_resets_charge_and_keeps_group_limit() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    mount.write("team", "memory.limit", "64M");
    let (mut one, mut other) = (member(&mount, "team"), member(&mount, "team"));
    assert_eq!(alloc(&mut one, 60 * MIB), "ok 0");
    assert_eq!(alloc(&mut other, 5 * MIB), OUT_OF_MEMORY);
    one.exec();
    wait_until("the old program's memory is uncharged", || {
        mount.number("team", "memory.current", "") == 0
    });
    assert_eq!(alloc(&mut other, 60 * MIB), "ok 0");
    assert_eq!(alloc(&mut one, 4 * MIB + 1), OUT_OF_MEMORY);
    assert_eq!(alloc(&mut one, 4 * MIB), "ok 0");
}

#[test]
fn memory_query_reports_what_the_group_can_allocate() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let mut shells = [member(&mount, "team"), member(&mount, "team")];
    let card = shells[0].ask("meminfo");
    mount.write("team", "memory.limit", "200M");
    mount.write("team/0", "memory.limit", "150M");
    assert_eq!(alloc(&mut shells[1], 30 * MIB), "ok 0");
    for shell in &mut shells {
        let answer = shell.ask("meminfo");
        let mut numbers = answer
            .split(' ')
            .map(|number| number.parse::<u64>().expect("bytes"));
        let (free, total) = (
            numbers.next().expect("the free bytes"),
            numbers.next().expect("total"),
        );
        assert_eq!(total, 150 * MIB);
        assert!(free <= 120 * MIB, "{free}");
        assert_eq!(shell.ask("totalmem"), total.to_string());
    }
    assert_eq!(shells[1].ask("free 0"), "ok");
    let answer = shells[0].ask("meminfo");
    let free = count(&format!("free {answer}"), "free");
    assert!(free > 0);
    assert_eq!(
        alloc(&mut shells[0], free),
        "ok 0",
        "the free memory cannot be allocated"
    );
    let rest = 150 * MIB - free;
    assert_eq!(alloc(&mut shells[0], rest + 1), OUT_OF_MEMORY);
    mount.write("team", "memory.limit", "max");
    mount.write("team/0", "memory.limit", "max");
    assert_eq!(shells[0].ask("free 0"), "ok");
    assert_eq!(shells[0].ask("meminfo"), card);
}

#[test]
fn lowered_limit_swaps_out_and_raised_limit_swaps_in() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let program = |swap: u64| {
        let mut command = mount.command(artifacts().load());
        command.arg("obey").env("GCGROUP_SWAP", swap.to_string());
        let mut program = Governed::spawn(command);
        program.expect("ready");
        mount.write("team", "gcgroup.procs", &program.pid().to_string());
        program
    };
    let alloc = |program: &mut Governed, bytes: u64| {
        let answer = program.ask(&format!("alloc linear {bytes}"));
        assert!(answer.starts_with("allocated "), "{answer}");
    };
    let (mut large, mut small, mut fixed) = (program(1 << 40), program(1 << 40), program(0));
    for _ in 0..6 {
        alloc(&mut large, 16 * MIB);
    }
    alloc(&mut small, 16 * MIB);
    alloc(&mut fixed, 16 * MIB);
    mount.write("team", "memory.limit", "96M");
    let current = || mount.number("team", "memory.current", "");
    wait_until("the group is within its limit", || current() == 96 * MIB);
    let swapped = |program: &Governed| Dir::of(&mount, program.pid()).number("memory.swap.current");
    assert_eq!((swapped(&large), swapped(&small)), (32 * MIB, 0));
    assert_eq!(large.ask("verify"), "verified 6");
    fixed.finish();
    wait_until("one more block is swapped in", || swapped(&large) == 16 * MIB);
    assert_eq!(current(), 96 * MIB);
    mount.write("team", "memory.limit", "max");
    wait_until("every block is swapped in", || swapped(&large) == 0);
    assert_eq!(large.ask("verify"), "verified 6");
    assert_eq!(small.ask("verify"), "verified 1");
}

#[test]
fn context_memory_counts_against_limit_over_restart() {
    const CONTEXT: u64 = 64 * MIB;
    let mut mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", CONTEXT));
    mkdir(&mount, "team");
    let mut shells = [member(&mount, "team"), member(&mount, "team")];
    wait_until("both contexts are measured", || {
        mount.number("team", "memory.current", "") == 2 * CONTEXT
    });
    mount.write("team", "memory.limit", &(2 * CONTEXT + 20 * MIB).to_string());
    assert_eq!(alloc(&mut shells[0], 20 * MIB + 1), OUT_OF_MEMORY);
    assert_eq!(alloc(&mut shells[0], 10 * MIB), "ok 0");
    mount.kill9();
    mount.restart();
    // Requested before any measurement: the hook waits for the daemon, which knows the usage from the last
    // request.
    assert_eq!(alloc(&mut shells[1], 10 * MIB + 1), OUT_OF_MEMORY);
    assert_eq!(alloc(&mut shells[1], 10 * MIB), "ok 0");
    assert_eq!(alloc(&mut shells[0], 1), OUT_OF_MEMORY);
}

#[test]
fn refusal_by_a_group_counts_in_the_process() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    mount.write("team", "memory.limit", "10M");
    let mut shell = member(&mount, "team");
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(alloc(&mut shell, 11 * MIB), OUT_OF_MEMORY);
    assert_eq!(shell.ask(&format!("alloc async {}", 33 * MIB)), OUT_OF_MEMORY);
    for dir in [dir.clone(), dir.gpu(0)] {
        let [own, by_group] = ["oom", "group_max"].map(|key| dir.key("memory.events", key));
        assert_eq!((own, by_group), (0, 2));
    }
    dir.write("memory.limit", "5M");
    assert_eq!(alloc(&mut shell, 6 * MIB), OUT_OF_MEMORY);
    let [own, by_group] = ["oom", "group_max"].map(|key| dir.key("memory.events", key));
    assert_eq!((own, by_group), (1, 2), "the process's own limit refused it");
    shell.quit();
    wait_until("the process has left", || !dir.exists());
    assert!(mount.read("", "exited").contains(" oom=1 group_max=2 "));
}

#[test]
fn nvml_shows_a_member_its_groups_limit() {
    let mount = Mount::new();
    mkdir(&mount, "team");
    let mut nvml = Nvml::spawn(mount.command(nvml::program()));
    assert_eq!(nvml.ask("cuda"), [0]);
    let pid = nvml.0.pid();
    mount.write("team", "gcgroup.procs", &pid.to_string());
    assert!(nvml.ask("memory 0 1")[1] > 200 * MIB);
    mount.write("team", "memory.limit", "200M");
    assert_eq!(nvml.ask(&format!("alloc 0 {}", 50 * MIB)), [0]);
    let [result, total, free, used] = nvml.ask("memory 0 1")[..] else {
        panic!("nvmlDeviceGetMemoryInfo did not return four numbers");
    };
    assert_eq!((result, total, free, used), (0, 200 * MIB, 150 * MIB, 50 * MIB));
    assert_eq!(nvml.computing(0).into_keys().collect::<Vec<_>>(), [pid]);
}

#[test]
fn stopped_member_is_awaited_briefly_and_counted_later() {
    let mut mount = Mount::new();
    mkdir(&mount, "team");
    mount.write("team", "memory.limit", "100M");
    let (mut stopped, mut other) = (member(&mount, "team"), member(&mount, "team"));
    assert_eq!(alloc(&mut stopped, 60 * MIB), "ok 0");
    let pid = Pid::from_raw(stopped.pid());
    stop(pid);
    mount.kill9();
    mount.restart();
    assert_eq!(
        alloc(&mut other, 50 * MIB),
        "ok 0",
        "the stopped member's 60 MiB are charged too early"
    );
    kill(pid, Signal::SIGCONT).expect("the process lives");
    let current = || mount.number("team", "memory.current", "");
    wait_until("the stopped process is charged again", || current() == 110 * MIB);
    assert_eq!(alloc(&mut other, 1), OUT_OF_MEMORY);
    assert_eq!(alloc(&mut stopped, 1), OUT_OF_MEMORY);
    assert_eq!(other.ask("free 0"), "ok");
    assert_eq!(alloc(&mut stopped, 40 * MIB), "ok 1");
    assert_eq!(alloc(&mut other, 1), OUT_OF_MEMORY);
}

#[test]
fn memory_freed_by_a_member_is_free_for_the_next() {
    let config = Config::default().env("SIMGPU_MEMORY", "6G");
    let mount = Mount::with(config.env("SIMGPU_CONTEXT_MEMORY", 8 * MIB));
    mkdir(&mount, "team");
    mount.write("team", "memory.limit", "4G");
    let mut one = member(&mount, "team");
    let mut watcher = Nvml::spawn(mount.command(nvml::program()));
    assert_eq!(watcher.ask("cuda"), [0]);
    mount.write("team", "gcgroup.procs", &watcher.0.pid().to_string());
    let free_now = |watcher: &mut Nvml| {
        let [0, total, free, used] = watcher.ask("memory 0 1")[..] else {
            panic!("nvmlDeviceGetMemoryInfo fails");
        };
        assert_eq!((total, used + free), (4096 * MIB, total));
        free
    };
    let current = || mount.number("team", "memory.current", "");
    for round in 0..3 {
        assert_eq!(alloc(&mut one, 3000 * MIB), format!("ok {round}"));
        wait_until("the memory counts as used", || {
            free_now(&mut watcher) == 4096 * MIB - current()
        });
        assert_eq!(one.ask(&format!("free {round}")), "ok");
        wait_until("the memory counts as free", || {
            free_now(&mut watcher) == 4096 * MIB - current()
        });
    }
    // Before the daemon takes the grant back.
    assert_eq!(alloc(&mut one, 3000 * MIB), "ok 3");
    assert_eq!(one.ask("free 3"), "ok");
    let mut next = member(&mount, "team");
    let answer = next.ask("meminfo");
    let free: u64 = answer
        .split(' ')
        .nth(1)
        .and_then(|free| free.parse().ok())
        .expect("a number");
    assert!(free > 4000 * MIB, "{answer}");
    assert_eq!(alloc(&mut next, 3500 * MIB), "ok 0");
}
