//! Tests threads with small stacks: the hook uses at most 8 KiB of a caller's stack, whichever call comes
//! first.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::{Mount, artifacts, c_program};
use tempfile::TempDir;

use crate::driver::{Dir, DriverShell, driver_shell};
use crate::odd_times::hooked;

/// Smallest size in bytes that pthread_attr_setstack(3) accepts; it includes thread data and thread-local
/// storage.
const LEAST: usize = 16 << 10;
/// Stack size in bytes that suffices for any call.
const AMPLE: usize = 1 << 20;
/// Most bytes of a caller's stack that the hook may use. Promised for release builds, and also true for debug
/// builds.
const MOST: usize = 8 << 10;

/// Result code of a function and the bytes of stack used, or another outcome as text.
type Called = Result<(i32, usize), String>;

/// Calls each of `names` in its own process, on a thread with a stack of `size` bytes, with `small_stack.c`.
fn called(mut command: Command, when: &str, size: usize, names: &[String]) -> BTreeMap<String, Called> {
    let mut child = command
        .arg(when)
        .arg(size.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("piped");
    let text = names.join("\n");
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("the thread ends without a panic");
    writer
        .join()
        .expect("the thread ends without a panic")
        .expect("the program reads its input");
    assert!(output.status.success(), "{}", output.status);
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let of_line = |line: &str| -> Option<(String, Called)> {
        let (name, rest) = line.split_once(' ')?;
        let numbers = rest.split_once(' ');
        let numbers = numbers.and_then(|(code, used)| Some((code.parse().ok()?, used.parse().ok()?)));
        Some((name.to_owned(), numbers.ok_or_else(|| rest.to_owned())))
    };
    output.lines().filter_map(of_line).collect()
}

fn program() -> PathBuf {
    c_program("small_stack.c", &["-pthread", "-ldl"])
}

/// Returns a directory with a driver that needs almost no stack.
pub(crate) fn small_driver() -> TempDir {
    let library = c_program(
        "small_driver.c",
        &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"],
    );
    let directory = TempDir::new().expect("a directory");
    symlink(library, directory.path().join("libcuda.so.1")).expect("a link");
    directory
}

/// Returns the command of the governed program with these variables.
fn with(mount: &Mount, settings: &[(&str, &str)]) -> Command {
    let mut command = mount.command(program());
    command.envs(settings.iter().copied());
    command
}

/// Compares governed with bare calls: the answers on the smallest stack, if the driver itself works on it,
/// and the stack usage on an ample stack.
#[track_caller]
fn little_is_used(when: &str, names: &[String]) {
    let mount = Mount::new();
    are_answered_on(LEAST, &mount, &[], when, names);
    little_more_is_used(&mount, &[], when, names);
}

#[track_caller]
fn are_answered_on(size: usize, mount: &Mount, settings: &[(&str, &str)], when: &str, names: &[String]) {
    let bare = called(mount.bare_command(program()), when, size, names);
    let governed = called(with(mount, settings), when, size, names);
    let mut compared = 0;
    for (name, answer) in bare {
        let Ok((answer, _)) = answer else { continue };
        let code = governed[&name].as_ref().map(|(code, _)| *code);
        assert_eq!(code, Ok(answer), "{name}, {when}, on {size} bytes");
        compared += 1;
    }
    assert!(
        compared * 10 > names.len() * 9,
        "only {compared} of {} were compared",
        names.len()
    );
}

#[track_caller]
fn little_more_is_used(mount: &Mount, settings: &[(&str, &str)], when: &str, names: &[String]) {
    let bare = called(mount.bare_command(program()), when, AMPLE, names);
    let governed = called(with(mount, settings), when, AMPLE, names);
    for (name, used) in bare {
        let (Ok((_, bare)), Ok((_, governed))) = (&used, &governed[&name]) else {
            panic!("{name}, {when}: {used:?}, {:?}", governed[&name]);
        };
        let more = governed.saturating_sub(*bare);
        assert!(more <= MOST, "{name}, {when}: {more} bytes more than {bare}");
    }
}

#[test]
fn first_calls_use_little_stack() {
    little_is_used("first", &hooked());
}

#[test]
fn calls_in_a_context_use_little_stack() {
    little_is_used("context", &hooked());
}

#[test]
fn allocations_and_launches_use_little_stack() {
    let (mount, work) = (Mount::new(), ["work".to_owned()]);
    let little = |settings: &[(&str, &str)]| {
        are_answered_on(LEAST, &mount, settings, "work", &work);
        little_more_is_used(&mount, settings, "work", &work);
    };
    let limit = ("GCGROUP_MEMORY_LIMIT", "80M");
    little(&[]);
    little(&[limit]);
    // Movable memory takes other functions of the driver, which need more stack.
    let movable = [limit, ("GCGROUP_SWAP", "1")];
    are_answered_on(2 * LEAST, &mount, &movable, "work", &work);
    little_more_is_used(&mount, &movable, "work", &work);
    fs::create_dir(mount.path().join("team")).expect("a group");
    mount.write("team", "compute.max", "1000 10000");
    little(&[("GCGROUP_GROUP", "team")]);
    let _other = mount.load(&["throughput", "--kernel-usec", "500", "--duration", "3600"]);
    little(&[]);
}

#[test]
fn commands_run_with_a_small_stack_limit() {
    let mount = Mount::new();
    fs::create_dir(mount.path().join("team")).expect("a group");
    for kilobytes in [64, 256] {
        for words in [
            "run --memory-limit 1G -- true",
            "hold --priority 9 team -- true",
            "get memory.current",
            "set team/memory.limit 4G",
            "ls",
            "explain team",
            "manual",
            "completions bash",
            "--help",
        ] {
            let mut command = mount.bare_command("sh");
            command
                .args(["-c", &format!("ulimit -s {kilobytes} && exec \"$0\" {words}")])
                .arg(artifacts().gcgroupfs())
                .env("GCGROUP_SOCKET", mount.socket());
            let out = command.output().expect("the command runs");
            assert!(out.status.success(), "{kilobytes} KiB: {words}: {out:?}");
        }
    }
}

/// Uses a small driver, because the simulated driver's cuInit needs more than the smallest stack.
#[test]
fn first_cu_init_on_16_kib_registers() {
    let (mount, driver) = (Mount::new(), small_driver());
    let path = format!("-L{}", driver.path().display());
    let library = driver.path().join("libcuda.so.1");
    let linked = [
        "-pthread",
        "-Wl,--no-as-needed",
        &path,
        &library.display().to_string(),
        "-ldl",
    ];
    for (when, program) in [
        ("first", program()),
        ("linked", c_program("small_stack.c", &linked)),
    ] {
        let run = |size| {
            let mut command = mount.command(&program);
            // With this variable cuInit succeeds only if the process is governed.
            command
                .env("LD_LIBRARY_PATH", driver.path())
                .env("GCGROUP_REQUIRED", "1");
            let names = ["none", "cuInit"].map(str::to_owned);
            called(command, when, size, &names)
        };
        let on_least = &run(LEAST)["cuInit"];
        assert!(matches!(on_least, Ok((0, _))), "{when}: {on_least:?}");
        let (none, init) = (run(AMPLE)["none"].clone(), run(AMPLE)["cuInit"].clone());
        let (Ok((_, none)), Ok((0, init))) = (none, init) else {
            panic!("{when}: cuInit fails on an ample stack")
        };
        assert!(init - none <= MOST, "{when}: {} bytes", init - none);
    }
}

#[test]
fn process_with_a_small_stack_limit_is_governed() {
    let mount = Mount::new();
    for kilobytes in [64, 128, 256] {
        let mut command = mount.command("sh");
        command
            .args(["-c", &format!("ulimit -s {kilobytes} && exec \"$0\"")])
            .arg(driver_shell());
        let mut shell = DriverShell::spawn(command);
        let dir = Dir::of(&mount, shell.pid());
        assert_eq!(shell.ask("alloc linear 4096"), "ok 0", "{kilobytes}");
        assert_eq!(dir.number("memory.current"), 4096);
        assert_eq!(shell.ask("spin 1 3"), "ok");
        assert_eq!(dir.launches(), 3);
        dir.freeze();
        shell.quit();
    }
}
