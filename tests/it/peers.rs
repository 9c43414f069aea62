//! Regression tests for faults found in similar tools, one test for each fault.

use support::{Config, Mount, artifacts, c_program, wait_for, wait_until};

use crate::calls::Calls;
use crate::driver::{Dir, DriverShell, driver_shell, governed_pids};

const MIB: u64 = 1 << 20;

/// Starts a governed `driver_shell` with one more environment variable.
fn with_env(mount: &Mount, name: &str, value: &str) -> DriverShell {
    let mut command = mount.command(driver_shell());
    command.env(name, value);
    DriverShell::spawn(command)
}

#[test]
fn limits_are_kept_by_uuid_not_by_the_programs_index() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 3));
    for (visible, index, real) in [("1", 0, 1), ("2,0", 0, 2), ("2,0", 1, 0)] {
        let mut shell = with_env(&mount, "CUDA_VISIBLE_DEVICES", visible);
        let dir = Dir::of(&mount, shell.pid());
        dir.gpu(real).write("memory.limit", 4 * MIB);
        assert_eq!(shell.ask(&format!("gpu {index}")), "ok");
        assert_eq!(
            shell.ask(&format!("alloc linear {}", 4 * MIB + 1)),
            "error 2",
            "{visible}"
        );
        assert_eq!(
            shell.ask(&format!("alloc linear {}", 4 * MIB)),
            "ok 0",
            "{visible}"
        );
        assert_eq!(dir.gpu(real).number("memory.current"), 4 * MIB, "{visible}");
        assert_eq!(dir.number("memory.current"), 4 * MIB, "{visible}");
        shell.quit();
    }
}

#[test]
fn pools_and_arrays_do_not_exceed_the_limit() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    Dir::of(&mount, shell.pid()).write("memory.limit", 1024 * MIB);
    for (kind, gib) in [
        ("pool", 4),
        ("async", 4),
        ("array", 4),
        ("pool", 32),
        ("array", 32),
    ] {
        let answer = shell.ask(&format!("alloc {kind} {}", gib * 1024 * MIB));
        assert_eq!(answer, "error 2", "{kind}, {gib} GiB");
    }
}

#[test]
fn ninth_and_fortieth_process_are_limited() {
    let mount = Mount::new();
    let mut shells: Vec<_> = (0..40)
        .map(|_| with_env(&mount, "GCGROUP_MEMORY_LIMIT", "1M"))
        .collect();
    // Some of the first processes exit, so that table slots are free before the others are checked.
    shells.drain(..5).for_each(DriverShell::kill9);
    wait_until("the killed processes are no longer governed", || {
        governed_pids(&mount).len() == 35
    });
    for shell in &mut shells {
        assert_eq!(shell.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
        assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 0");
    }
}

#[test]
fn killed_process_is_uncharged_and_limits_still_hold() {
    let mount = Mount::new();
    let mut stays = DriverShell::start(&mount);
    let dir = Dir::of(&mount, stays.pid());
    dir.write("memory.limit", 10 * MIB);
    let mut dies = DriverShell::start(&mount);
    assert_eq!(dies.ask(&format!("alloc linear {}", 100 * MIB)), "ok 0");
    assert_eq!(mount.number("", "memory.current", ""), 100 * MIB);
    dies.kill9();
    wait_until("the killed process is uncharged", || {
        mount.number("", "memory.current", "") == 0
    });
    assert_eq!(stays.ask(&format!("alloc linear {}", 10 * MIB + 1)), "error 2");
    assert_eq!(stays.ask(&format!("alloc linear {}", 10 * MIB)), "ok 0");
}

#[test]
fn overflowing_charge_is_refused() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask(&format!("alloc linear {MIB}")), "ok 0");
    for bytes in [
        "18446744073709551615",
        "9223372036854775808",
        "18446744073708503040",
    ] {
        assert!(
            shell.ask(&format!("alloc linear {bytes}")).starts_with("error"),
            "{bytes}"
        );
        assert!(
            shell.ask(&format!("pitched {bytes} 2")).starts_with("error"),
            "{bytes}"
        );
        assert_eq!(dir.number("memory.current"), MIB, "{bytes}");
    }
}

#[test]
fn device_total_without_limit_is_gpu_memory() {
    let mount = Mount::new();
    let mut governed = DriverShell::start(&mount);
    let mut bare = DriverShell::start_bare(&mount);
    assert_eq!(governed.ask("totalmem"), bare.ask("totalmem"));
    let total = |text: String| text.split(' ').nth(1).map(str::to_owned);
    assert_eq!(total(governed.ask("meminfo")), total(bare.ask("meminfo")));
}

#[test]
fn launch_error_is_the_drivers_own() {
    let mount = Mount::with(Config::default().env("SIMGPU_FAULTS", "cuLaunchKernel=719@3"));
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask("spin 1 2"), "ok");
    assert_eq!(shell.ask("spin 1 1"), "error 719");
    // The hook's own calls in between (for progress, freeze and thaw) do not replace the error.
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    dir.write("compute.freeze", 0);
    assert_eq!(shell.ask("spin 1 1"), "ok");
}

#[test]
fn allocation_failed_in_the_driver_is_not_charged() {
    for call in [
        "cuMemAlloc_v2",
        "cuMemAllocManaged",
        "cuMemCreate",
        "cuArrayCreate_v2",
        "cuMemAllocAsync",
    ] {
        let mount = Mount::with(Config::default().env("SIMGPU_FAULTS", format!("{call}=999")));
        let mut shell = DriverShell::start(&mount);
        let dir = Dir::of(&mount, shell.pid());
        let kind = match call {
            "cuMemAlloc_v2" => "linear",
            "cuMemAllocManaged" => "managed",
            "cuMemCreate" => "vmm",
            "cuArrayCreate_v2" => "array",
            _ => "async",
        };
        assert_eq!(
            shell.ask(&format!("alloc {kind} {}", 32 * MIB)),
            "error 999",
            "{call}"
        );
        assert_eq!(dir.number("memory.current"), 0, "{call}");
        assert_eq!(dir.key("memory.stat", "nr_alloc_fail"), 1, "{call}");
    }
}

#[test]
fn library_writes_nothing_to_stdout_or_stderr() {
    let mount = Mount::new();
    let path = format!("-L{}", artifacts().simgpu().display());
    let program = c_program("ways.c", &["-DLINKED", &path, "-lcuda", "-ldl"]);
    let output = |mut command: std::process::Command| {
        let out = command
            .args(["linked", "3"])
            .stdin(std::process::Stdio::null())
            .output()
            .expect("the command runs");
        assert!(out.status.success());
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        // Compares everything except the pid.
        (text.split_once('\n').map(|(_, rest)| rest.to_owned()), out.stderr)
    };
    assert_eq!(
        output(mount.command(&program)),
        output(mount.bare_command(&program))
    );
}

/// Returns a governed program that has used the GPU, and the context switches of its helper thread: each
/// wake-up causes one.
fn with_helper(mount: &Mount) -> (DriverShell, impl Fn() -> u64 + use<>) {
    let mut shell = DriverShell::start(mount);
    shell.ask("spin 1 10");
    shell.ask("sync");
    // The helper thread sets its name when it first runs.
    let helper = wait_for("the hook's helper thread runs", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", shell.pid())).expect("the process lives");
        tasks.flatten().map(|entry| entry.path()).find(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "gcgroup")
        })
    });
    let asleep = || std::fs::read_to_string(helper.join("stat")).is_ok_and(|stat| stat.contains(") S "));
    wait_until("the helper thread sleeps", asleep);
    let switches = move || -> u64 {
        let status = std::fs::read_to_string(helper.join("status")).expect("the process lives");
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        counts
            .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
            .sum()
    };
    (shell, switches)
}

fn allocate(shell: &mut DriverShell) {
    let answer = shell.ask(&format!("alloc linear {MIB}"));
    assert_eq!(shell.ask(&answer.replace("ok", "free")), "ok");
}

#[test]
fn helper_thread_sleeps_while_nothing_is_measured() {
    let mount = Mount::with(Config::default().measured_when_read());
    let (mut shell, switches) = with_helper(&mount);
    // The size of the context may still be told to it.
    wait_until("no call wakes the helper thread", || {
        let before = switches();
        for _ in 0..200 {
            assert_eq!(shell.ask("spin 1 10"), "ok");
            allocate(&mut shell);
        }
        switches() == before
    });
}

#[test]
fn helper_thread_sleeps_while_the_gpu_is_idle() {
    let mount = Mount::new();
    let (mut shell, switches) = with_helper(&mount);
    // The end of the work above is still looked for.
    wait_until("no call wakes the helper thread", || {
        let before = switches();
        (0..50).for_each(|_| allocate(&mut shell));
        switches() == before
    });
}

#[test]
fn freeing_memory_not_in_the_ledger_calls_the_driver() {
    let mount = Mount::new();
    let (mut governed, mut bare) = (DriverShell::start(&mount), DriverShell::start_bare(&mount));
    for address in ["0", "1", "7f0000000000", "ffffffffffffffff"] {
        let command = format!("freeptr {address}");
        assert_eq!(governed.ask(&command), bare.ask(&command), "{address}");
    }
    for command in [
        format!("alloc linear {MIB}"),
        "free 0".to_owned(),
        "free 0".to_owned(),
    ] {
        assert_eq!(governed.ask(&command), bare.ask(&command), "{command}");
    }
    assert_eq!(Dir::of(&mount, governed.pid()).number("memory.current"), 0);
}

#[test]
fn process_killed_in_an_allocation_delays_no_other() {
    let mount = Mount::new();
    let mut stays = DriverShell::start(&mount);
    let dir = Dir::of(&mount, stays.pid());
    for number in 0..20 {
        let mut dies = DriverShell::start(&mount);
        let its = Dir::of(&mount, dies.pid());
        dies.tell("race 4 4096");
        wait_until("the process has begun to allocate", || {
            its.number("memory.current") > 0
        });
        dies.kill9();
        assert_eq!(stays.ask(&format!("alloc linear {MIB}")), format!("ok {number}"));
    }
    assert_eq!(dir.number("memory.current"), 20 * MIB);
}

#[test]
fn equal_pids_of_two_namespaces_are_two_processes() {
    let mount = Mount::new();
    let mut both = [Calls::start_apart(&mount), Calls::start_apart(&mount)];
    let pids = governed_pids(&mount);
    assert_eq!(pids.len(), 2, "{pids:?}");
    for (number, calls) in both.iter_mut().enumerate() {
        calls.ok(&format!("cuMemAlloc_v2 &a {}", (number as u64 + 1) * MIB));
    }
    let mut charged: Vec<u64> = pids
        .iter()
        .map(|pid| Dir::of(&mount, *pid).number("memory.current"))
        .collect();
    charged.sort_unstable();
    assert_eq!(charged, [MIB, 2 * MIB]);
}

#[test]
fn usage_above_limit_shows_nothing_free_without_error() {
    let mount = Mount::new();
    let mut shell = DriverShell::start(&mount);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(shell.ask(&format!("alloc linear {}", 64 * MIB)), "ok 0");
    dir.write("memory.limit", 16 * MIB);
    assert_eq!(shell.ask("meminfo"), format!("0 {}", 16 * MIB));
}

#[test]
fn look_up_returns_drivers_version_flavour_and_status() {
    let mount = Mount::new();
    let (mut governed, mut bare) = (Calls::start(&mount), Calls::start_bare(&mount));
    for calls in [&mut governed, &mut bare] {
        for (variable, name) in [
            ("alloc", "cuMemAlloc"),
            ("launch", "cuLaunchKernel"),
            ("none", "cuNoSuchThing"),
        ] {
            let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
            calls.fill(variable, &format!("{hex}00"));
        }
    }
    let mut found = Vec::new();
    for (name, version, flags) in [
        ("alloc", 2000, 0),
        ("alloc", 3020, 0),
        ("launch", 4000, 0),
        ("launch", 7000, 2),
        ("none", 12080, 0),
        ("alloc", 1000, 0),
    ] {
        let call = format!("cuGetProcAddress_v2 &{name} &function {version} {flags} &status");
        let [ours, theirs] = [&mut governed, &mut bare].map(|calls| {
            calls.put("status", 0, 8, 99);
            calls.put("function", 0, 8, 1);
            (calls.call(&call), calls.get("status"), calls.get("function"))
        });
        assert_eq!(
            (ours.0, ours.1, ours.2 == 0),
            (theirs.0, theirs.1, theirs.2 == 0),
            "{call}"
        );
        found.push(ours.2);
    }
    assert_ne!(
        found[0], found[1],
        "the hook returns one function for two versions"
    );
    assert_ne!(
        found[2], found[3],
        "the hook returns one function for two stream flavours"
    );
}

#[test]
fn threads_at_the_last_byte_never_exceed_and_never_all_fail() {
    let mount = Mount::new();
    for round in 1..=10 {
        let mut shell = DriverShell::start(&mount);
        let dir = Dir::of(&mount, shell.pid());
        dir.write("memory.limit", 7 * MIB + round);
        assert_eq!(
            shell.ask(&format!("race 8 {MIB}")),
            "raced 7",
            "the last block was not allocated exactly once"
        );
        assert_eq!(dir.number("memory.peak"), 7 * MIB);
    }
}
