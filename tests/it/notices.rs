//! Tests `memory.notice`: a program is told before its memory moves out for others, and what it frees in time
//! does not move.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use support::{Config, Governed, Mount, artifacts, python, repository, wait_until};

use crate::driver::Dir;
use crate::swap_pressure::program;

const MIB: u64 = 1 << 20;
const NR_BLOCKS: u64 = 6;
const BLOCK: u64 = 16 * MIB;

/// Mounts a GPU of 128 MiB whose contexts take no memory, and on which programs have 3 s after a notice.
fn mount() -> Mount {
    let config = Config::default()
        .env("SIMGPU_CONTEXT_MEMORY", 0)
        .env("SIMGPU_MEMORY", "128M");
    let mount = Mount::with(config.without_turns());
    mount.write("", "memory.notice.grace", "3000");
    mount
}

fn alloc(program: &mut Governed, bytes: u64) {
    let answer = program.ask(&format!("alloc linear {bytes}"));
    assert!(answer.starts_with("allocated "), "{answer}");
}

/// A program of the lowest priority with 96 MiB that can move.
fn victim(mount: &Mount) -> Governed {
    let mut victim = program(mount, 15, 1 << 40);
    (0..NR_BLOCKS).for_each(|_| alloc(&mut victim, BLOCK));
    victim
}

fn notice_file(mount: &Mount, directory: impl ToString) -> File {
    File::open(mount.file(directory, "memory.notice")).expect("the file can be opened")
}

fn text(file: &File) -> String {
    let mut text = [0; 128];
    let length = file.read_at(&mut text, 0).expect("the file is readable");
    String::from_utf8_lossy(&text[..length]).into_owned()
}

fn wait_for_change(file: &File) {
    let mut watched = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
    assert_eq!(poll(&mut watched, PollTimeout::from(60_000_u16)), Ok(1));
}

/// Starts the example in C, which has the notices from the file.
fn example_in_c(mount: &Mount, point: &str) -> Governed {
    let directory = repository().join("gcgroupfs/client/c");
    let built = mount.root().join("shrink_cache");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&built)
        .arg(directory.join("shrink_cache.c"))
        .arg("-L")
        .arg(artifacts().simgpu())
        .arg("-lcuda")
        .status();
    assert!(compiled.expect("a compiler").success());
    example(mount.command(built), point)
}

/// Starts the example in Python. `point`: where it looks for the files.
fn example_in_python(mount: &Mount, point: &str) -> Governed {
    let mut command = mount.command(python());
    command.arg(repository().join("gcgroupfs/client/python/shrink_cache.py"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    example(command, point)
}

fn example(mut command: Command, point: &str) -> Governed {
    let sizes = [NR_BLOCKS, BLOCK].map(|number| number.to_string());
    command.arg(point).args(sizes).env("GCGROUP_SWAP", "max");
    Governed::spawn(command)
}

#[test]
fn cache_that_shrinks_in_time_moves_nothing() {
    let mut mount = mount();
    for kind in ["C", "Python", "Python without a mount"] {
        let point = mount.path().display().to_string();
        let mut cache = match kind {
            "C" => example_in_c(&mount, &point),
            "Python" => example_in_python(&mount, &point),
            _ => example_in_python(&mount, "/none"),
        };
        assert_eq!(cache.expect("available, "), "available, 6 blocks", "{kind}");
        let dir = Dir::of(&mount, cache.pid());
        dir.write("compute.priority", 15);
        let mut other = program(&mount, 3, 0);
        // 32 MiB are free.
        alloc(&mut other, 64 * MIB);
        assert_eq!(cache.expect("evict, "), "evict, 4 blocks", "{kind}");
        assert_eq!(cache.expect("available, "), "available, 4 blocks", "{kind}");
        assert_eq!(dir.number("memory.current"), 64 * MIB, "{kind}");
        if kind == "Python" {
            mount.kill9();
            mount.restart();
            mount.write("", "memory.notice.grace", "3000");
            let pids = [cache.pid(), other.pid()];
            wait_until("both are governed again", || {
                pids.iter().all(|pid| mount.governs(*pid))
            });
            wait_until("it reads notices again", || {
                cache.line_now().is_some_and(|line| line.starts_with("available"))
            });
        }
        alloc(&mut other, 32 * MIB);
        assert_eq!(cache.expect("evict, "), "evict, 2 blocks", "{kind}");
        let dir = Dir::of(&mount, cache.pid());
        assert_eq!(dir.key("memory.events", "swap_out"), 0, "{kind}");
        assert_eq!(dir.number("memory.swap.current"), 0, "{kind}");
    }
}

#[test]
fn memory_moves_after_the_grace_period_of_a_deaf_program() {
    let mount = mount();
    let mut victim = victim(&mount);
    let mut other = program(&mount, 3, 0);
    let file = notice_file(&mount, victim.pid());
    wait_for_change(&file);
    assert_eq!(text(&file), format!("available {}\n", 32 * MIB));
    let on_device = notice_file(&mount, format!("{}/0", victim.pid()));
    wait_for_change(&on_device);
    drop(on_device);
    let begun = Instant::now();
    other.say(&format!("alloc linear {}", 64 * MIB));
    wait_for_change(&file);
    let told = text(&file);
    let words = told.trim_end().split_once(" deadline_usec=").expect("a notice");
    assert_eq!(words.0, format!("evict target={}", 32 * MIB));
    assert!(
        words.1.parse::<u64>().is_ok_and(|usec| usec <= 3_000_000),
        "{told}"
    );
    assert!(other.line().is_some_and(|line| line.starts_with("allocated ")));
    assert!(begun.elapsed() >= Duration::from_secs(3), "it had its time");
    wait_for_change(&file);
    assert_eq!(text(&file), "available 0\n");
    let dir = Dir::of(&mount, victim.pid());
    assert_eq!(dir.number("memory.swap.current"), 32 * MIB);
    assert_eq!(victim.ask("verify"), "verified 6");
}

#[test]
fn part_that_is_freed_does_not_move() {
    let mount = mount();
    let mut victim = victim(&mount);
    let mut other = program(&mount, 3, 0);
    let file = notice_file(&mount, victim.pid());
    wait_for_change(&file);
    text(&file);
    other.say(&format!("alloc linear {}", 80 * MIB));
    wait_for_change(&file);
    assert!(text(&file).starts_with(&format!("evict target={} ", 48 * MIB)));
    assert_eq!(victim.ask("free 6"), "freed 1");
    wait_until("the rest is shown", || {
        text(&file).starts_with(&format!("evict target={} ", 32 * MIB))
    });
    assert!(other.line().is_some_and(|line| line.starts_with("allocated ")));
    let dir = Dir::of(&mount, victim.pid());
    wait_until("it is over", || text(&file).starts_with("available"));
    assert_eq!(dir.number("memory.swap.current"), 32 * MIB);
    assert_eq!(victim.ask("verify"), "verified 5");
}

#[test]
fn limit_that_is_lowered_gives_notice_and_a_request_does_not() {
    let mount = mount();
    let mut victim = victim(&mount);
    let dir = Dir::of(&mount, victim.pid());
    let file = notice_file(&mount, victim.pid());
    wait_for_change(&file);
    text(&file);
    dir.write("memory.limit", 64 * MIB);
    wait_for_change(&file);
    assert!(text(&file).starts_with(&format!("evict target={} ", 32 * MIB)));
    assert_eq!(victim.ask("free 6"), "freed 1");
    assert_eq!(victim.ask("free 5"), "freed 1");
    wait_for_change(&file);
    assert_eq!(text(&file), "available 0\n");
    assert_eq!(dir.key("memory.events", "swap_out"), 0);
    dir.write("memory.reclaim", BLOCK);
    wait_until("memory has moved out", || {
        dir.number("memory.swap.current") == BLOCK
    });
    let mut watched = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
    assert_eq!(poll(&mut watched, PollTimeout::ZERO), Ok(0), "no notice");
}

#[test]
fn memory_turns_give_notice_and_go_on() {
    let path = repository().join("tests/data/short_turns.toml");
    let config = Config::default().env("SIMGPU_CONTEXT_MEMORY", 0);
    let config = config.env("SIMGPU_MEMORY", "128M").arg("--config");
    let mount = Mount::with(config.arg(path.to_str().expect("the path is UTF-8")));
    let mut jobs = [(); 2].map(|()| {
        let mut job = program(&mount, 8, 1 << 40);
        (0..NR_BLOCKS).for_each(|_| alloc(&mut job, BLOCK));
        job.say("work 200");
        job
    });
    let files = jobs.each_ref().map(|job| notice_file(&mount, job.pid()));
    for file in files.iter().chain(&files) {
        wait_until("a notice", || {
            wait_for_change(file);
            text(file).starts_with("evict ")
        });
    }
    for job in &mut jobs {
        job.say("verify");
        job.expect("worked ");
        assert_eq!(job.line().as_deref(), Some("verified 6"));
    }
}

#[test]
fn grace_is_a_number_of_milliseconds_up_to_three_seconds() {
    let mut mount = Mount::new();
    let file = "memory.notice.grace";
    assert_eq!(mount.read("", file), "100");
    for (value, errno) in [("x", libc::EINVAL), ("-1", libc::EINVAL), ("3001", libc::ERANGE)] {
        let error = mount.try_write("", file, value).expect_err("it is refused");
        assert_eq!(error.raw_os_error(), Some(errno), "{value}");
        assert_eq!(mount.read("", file), "100");
    }
    mount.write("", file, "0");
    mount.kill9();
    mount.restart();
    assert_eq!(mount.read("", file), "0");
}
