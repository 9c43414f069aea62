//! Tests the limits of a job: those of its group are the ones that count, and its processes show them.

use support::Mount;

use crate::driver::{Dir, DriverShell, driver_shell};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";

fn run(mount: &Mount, options: &[&str]) -> (DriverShell, String) {
    let mut command = mount.gcgroupfs(&["run"]);
    command.args(options).arg("--").arg(driver_shell());
    let shell = DriverShell::spawn(command);
    let job = format!("job-{}", shell.pid());
    (shell, job)
}

fn alloc(shell: &mut DriverShell, bytes: u64) -> String {
    shell.ask(&format!("alloc linear {bytes}"))
}

#[track_caller]
fn assert_refused(dir: &Dir<'_>, file: &str, value: &str) {
    let before = dir.read(file);
    let error = std::fs::write(dir.path().join(file), value).expect_err(file);
    assert_eq!(error.raw_os_error(), Some(nix::libc::ERANGE), "{file}");
    assert_eq!(dir.read(file), before, "{file}");
}

#[test]
fn jobs_limit_alone_bounds_its_process() {
    let mount = Mount::new();
    let (mut shell, job) = run(&mount, &["--memory-limit", "64M"]);
    let dir = Dir::of(&mount, shell.pid());
    assert_eq!(dir.number("memory.limit"), 64 * MIB);
    assert_eq!(alloc(&mut shell, 65 * MIB), OUT_OF_MEMORY);
    assert_refused(&dir, "memory.limit", "128M");
    assert_refused(&dir, "memory.limit", "max");

    mount.write(&job, "memory.limit", "128M");
    assert_eq!(dir.number("memory.limit"), 128 * MIB);
    assert_eq!(alloc(&mut shell, 100 * MIB), "ok 0");
    assert_eq!(shell.ask("free 0"), "ok");

    dir.write("memory.limit", 80 * MIB);
    assert_eq!(dir.number("memory.limit"), 80 * MIB);
    assert_eq!(
        alloc(&mut shell, 81 * MIB),
        OUT_OF_MEMORY,
        "the process's own limit"
    );
    mount.write(&job, "memory.limit", "32M");
    assert_eq!(dir.number("memory.limit"), 32 * MIB);
    assert_eq!(alloc(&mut shell, 33 * MIB), OUT_OF_MEMORY);
    mount.write(&job, "memory.limit", "max");
    dir.write("memory.limit", "max");
    assert_eq!(alloc(&mut shell, 200 * MIB), "ok 1");
}

#[test]
fn every_limit_of_a_job_shows_in_its_process() {
    let mount = Mount::new();
    let options = [
        "--swap=64M",
        "--compute-max",
        "50%",
        "--memory-high",
        "1G",
        "--memory-limit",
        "0=32M",
    ];
    let (shell, job) = run(&mount, &options);
    let dir = Dir::of(&mount, shell.pid());
    for (dir, file, value, beyond) in [
        (&dir, "memory.swap.max", 64 * MIB, "128M"),
        (&dir, "memory.high", 1024 * MIB, "2G"),
        (&dir.gpu(0), "memory.limit", 32 * MIB, "64M"),
    ] {
        assert_eq!(dir.number(file), value, "{file}");
        assert_refused(dir, file, beyond);
    }
    assert_eq!(dir.read("compute.max"), "50000 100000");
    assert_refused(&dir, "compute.max", "60000 100000");
    for (file, value) in [
        ("memory.swap.max", "128M"),
        ("compute.max", "60000 100000"),
        ("memory.high", "2G"),
    ] {
        mount.write(&job, file, value);
        assert_eq!(dir.read(file), mount.read(&job, file), "{file}");
    }
}

#[test]
fn later_process_of_a_job_has_the_jobs_limit_of_now() {
    let mount = Mount::new();
    let (_first, job) = run(&mount, &["--memory-limit", "64M"]);
    mount.write(&job, "memory.limit", "128M");
    let start = |group: &str, limit: &str| {
        let mut command = mount.command(driver_shell());
        command
            .env("GCGROUP_MEMORY_LIMIT", limit)
            .env("GCGROUP_JOB_LIMITS", "67108864/");
        if !group.is_empty() {
            command.env("GCGROUP_GROUP", group);
        }
        DriverShell::spawn(command)
    };
    let limit = |shell: &DriverShell| Dir::of(&mount, shell.pid()).number("memory.limit");
    let mut later = start(&job, "67108864");
    assert_eq!(limit(&later), 128 * MIB);
    assert_eq!(alloc(&mut later, 100 * MIB), "ok 0");
    let own = start(&job, "32M");
    assert_eq!(limit(&own), 32 * MIB, "set by hand, for this process");
    let outside = start("", "67108864");
    assert_eq!(limit(&outside), 64 * MIB, "the job does not bound it");
}
