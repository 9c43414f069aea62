//! Tests the hook where the system refuses a system call (seccomp filters, gVisor): the process is governed
//! nevertheless, or the hook reports that it is not. `hook/REFUSED_CALLS.md` is generated from the outcomes:
//! `UPDATE=1 cargo test -p gcgroup-tests --test it refused_calls`.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::process::{Command, Stdio};

use nix::libc as sys;
use support::{Governed, Mount, artifacts, repository, wait_until};

use crate::driver::{Dir, driver_shell};

const MIB: u64 = 1 << 20;

/// A system call, or equivalent ones of which the C library's version chooses one.
struct Call {
    name: &'static str,
    /// Empty: not tried, because the outcome depends on the program.
    numbers: &'static [i64],
    /// Index and value of the argument of the calls that are refused; all are if `None`.
    only: Option<(u32, i32)>,
    /// The hook's substitute.
    instead: &'static str,
}

const fn call(name: &'static str, numbers: &'static [i64], instead: &'static str) -> Call {
    Call {
        name,
        numbers,
        only: None,
        instead,
    }
}

const fn only(call: Call, index: u32, value: i32) -> Call {
    Call {
        only: Some((index, value)),
        ..call
    }
}

/// `MFD_CLOEXEC | MFD_ALLOW_SEALING`: the hook's own files; the simulated driver makes others.
const SEALABLE: i32 = 3;

/// Size of the usage block, bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "some pages"
)]
const BLOCK: i32 = gcgroup_abi::map::USAGE_SIZE as i32;

/// Every system call that the hook, its helper thread and the preloaded library make.
#[rustfmt::skip]
const CALLS: &[Call] = &[
    call("clone, clone3", &[sys::SYS_clone, sys::SYS_clone3], "no helper thread: memory does not move either"),
    call("clock_nanosleep, nanosleep", &[sys::SYS_clock_nanosleep, sys::SYS_nanosleep], "not needed, unless ppoll or futex is refused"),
    call("close", &[sys::SYS_close], "-"),
    call("connect", &[sys::SYS_connect], "-"),
    only(call("fcntl F_ADD_SEALS", &[sys::SYS_fcntl], "-"), 1, sys::F_ADD_SEALS),
    only(call("fcntl F_DUPFD_CLOEXEC", &[sys::SYS_fcntl], "descriptors keep the lowest free numbers"), 1, sys::F_DUPFD_CLOEXEC),
    only(call("fcntl F_GET_SEALS", &[sys::SYS_fcntl], "the daemon is trusted not to shrink the control block"), 1, sys::F_GET_SEALS),
    call("fstat, newfstatat, stat", &[sys::SYS_fstat, sys::SYS_newfstatat, sys::SYS_stat], "-"),
    only(call("ftruncate", &[sys::SYS_ftruncate], "-"), 1, BLOCK),
    call("futex", &[], "waits become sleeps of up to 10 ms; the C library ends programs whose threads contend"),
    call("getpid", &[sys::SYS_getpid], "not needed, unless MADV_WIPEONFORK is refused"),
    call("getppid", &[sys::SYS_getppid], "not needed, unless the library is preloaded into a program that the daemon starts"),
    call("getrandom", &[sys::SYS_getrandom], "hash tables are seeded by addresses"),
    call("getsockopt", &[sys::SYS_getsockopt], "not needed, unless the library is preloaded into the daemon"),
    call("gettid", &[sys::SYS_gettid], "the slots of the program's threads have a wrong owner"),
    only(call("madvise MADV_DONTFORK", &[sys::SYS_madvise], "the fork handler unmaps the usage block in children"), 2, sys::MADV_DONTFORK),
    only(call("madvise MADV_WIPEONFORK", &[sys::SYS_madvise], "the process id is compared"), 2, sys::MADV_WIPEONFORK),
    call("membarrier", &[sys::SYS_membarrier], "a page's permissions are changed, which interrupts the other processors"),
    only(call("memfd_create", &[sys::SYS_memfd_create], "-"), 1, SEALABLE),
    call("mmap", &[sys::SYS_mmap], "-"),
    call("mprotect", &[sys::SYS_mprotect], "-"),
    call("mremap", &[sys::SYS_mremap], "blocks are mapped over the old ones"),
    call("munmap", &[sys::SYS_munmap], "mappings stay"),
    call("open, openat", &[sys::SYS_open, sys::SYS_openat], "-"),
    call("poll, ppoll", &[sys::SYS_poll, sys::SYS_ppoll], "the helper thread looks every 10 ms"),
    call("prctl", &[sys::SYS_prctl], "the helper thread has no name, and its timers are less precise"),
    call("getrlimit, prlimit64, setrlimit", &[sys::SYS_getrlimit, sys::SYS_prlimit64, sys::SYS_setrlimit], "the stack of the first thread is measured by /proc"),
    call("pread64, read", &[], "no program loads a library without them"),
    call("recvmsg", &[sys::SYS_recvmsg], "-"),
    call("rt_sigaction", &[sys::SYS_rt_sigaction], "not needed: the C library's, for threads"),
    call("rt_sigprocmask", &[sys::SYS_rt_sigprocmask], "the helper thread may run signal handlers of the program"),
    call("sched_getaffinity", &[sys::SYS_sched_getaffinity], "the hook is made in the helper thread"),
    call("sched_yield", &[sys::SYS_sched_yield], "threads spin"),
    call("sendmsg", &[sys::SYS_sendmsg], "-"),
    call("setsockopt", &[sys::SYS_setsockopt], "a daemon that does not answer can block the first driver call"),
    call("socket", &[sys::SYS_socket], "-"),
    call("socketpair", &[sys::SYS_socketpair], "the helper thread looks every 100 ms"),
    call("tgkill", &[sys::SYS_tgkill], "slots of ended threads are not reused"),
    call("writev", &[sys::SYS_writev], "no report that the hook cannot be loaded"),
];

impl Call {
    /// Makes `refuse.h` refuse the call in the command's program.
    fn refuse_in(&self, mut command: Command) -> Command {
        let mut text: String = self.numbers.iter().map(|number| format!("{number}:")).collect();
        if let Some((index, value)) = self.only {
            let _ = write!(text, "{index}={value}");
        }
        command.env("REFUSE", text);
        command
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Governed,
    /// Limits hold; the report.
    Partly(String),
    /// Not governed; the report.
    Reported(String),
    /// The driver does not work without the call.
    NoDriver,
}

impl fmt::Display for Outcome {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Governed => write!(to, "governed by a fallback"),
            Self::Partly(report) => write!(to, "governed in part, reported: `{report}`"),
            Self::Reported(report) => write!(to, "reported: `{report}`"),
            Self::NoDriver => write!(to, "the simulated driver does not work without it"),
        }
    }
}

/// A program that was started with a refused call.
struct Shell {
    program: Governed,
    pid: i32,
}

impl Shell {
    /// Starts the program; `None` if it ends or the driver does not start.
    fn start(command: Command) -> Option<Self> {
        let mut program = Governed::spawn(command);
        let line = program.line()?;
        let pid = program.pid();
        (line.starts_with("ready ") && line.ends_with(" 0")).then_some(Self { program, pid })
    }

    /// Returns whether the driver allocates and frees memory.
    fn allocates(&mut self) -> bool {
        let mut ask = |line: &str| {
            self.program.say(line);
            self.program.line()
        };
        let answer = ask(&format!("alloc linear {MIB}"));
        let id = answer.as_deref().and_then(|answer| answer.strip_prefix("ok "));
        id.is_some_and(|id| ask(&format!("free {id}")).as_deref() == Some("ok"))
    }

    /// Returns the hook's report, without what differs between machines.
    fn report(&self) -> Option<String> {
        let stderr = self.program.stderr();
        let line = stderr.lines().find_map(|line| line.strip_prefix("gcgroup: "))?;
        let loading = "the hook cannot be loaded";
        Some(match line.split_once(loading) {
            Some((before, _)) => format!("{before}{loading}: the dynamic linker's message"),
            None => line.to_owned(),
        })
    }
}

/// Returns what becomes of a governed program where a call fails, as `failing` makes it in a command.
pub(crate) fn outcome(mount: &Mount, name: &str, failing: impl Fn(Command) -> Command) -> Outcome {
    let bare = Shell::start(failing(mount.bare_command(driver_shell())));
    let works_bare = bare.is_some_and(|mut shell| shell.allocates());
    let shell = Shell::start(failing(mount.command(driver_shell())));
    if !works_bare {
        return Outcome::NoDriver;
    }
    let mut shell = shell.unwrap_or_else(|| panic!("{name}: the hook breaks the program"));
    wait_until(
        "the process is governed, or the hook reports that it is not",
        || mount.governs(shell.pid) || shell.report().is_some(),
    );
    if !mount.governs(shell.pid) || !is_limited(mount, &mut shell, name) {
        // The daemon may have registered the process although its hook could not receive the answer.
        wait_until("the hook reports why the process is not governed", || {
            shell.report().is_some()
        });
        assert!(shell.allocates(), "{name}: the hook breaks the driver");
        return Outcome::Reported(shell.report().unwrap_or_default());
    }
    if name.starts_with("clone") || name == "pthread_create" {
        // Standard error is read by another thread.
        wait_until("the hook reports what is missing", || shell.report().is_some());
    }
    let Some(report) = shell.report() else {
        is_frozen_and_thawed(mount, &mut shell, name);
        if name.starts_with("madvise") {
            is_left_by_children(mount, &mut shell, name);
        }
        return Outcome::Governed;
    };
    Outcome::Partly(report)
}

/// Returns whether memory is charged and limited.
fn is_limited(mount: &Mount, shell: &mut Shell, name: &str) -> bool {
    let dir = Dir::of(mount, shell.pid);
    if mount
        .try_write(shell.pid.to_string(), "memory.limit", &(2 * MIB).to_string())
        .is_err()
        || shell.program.ask(&format!("alloc linear {}", 4 * MIB)) != "error 2"
    {
        return false;
    }
    let answer = shell.program.ask(&format!("alloc linear {MIB}"));
    assert_eq!(answer, "ok 0", "{name}");
    wait_until("the allocation is charged", || {
        dir.number("memory.current") == MIB
    });
    assert_eq!(shell.program.ask("free 0"), "ok", "{name}");
    dir.write("memory.limit", "max");
    true
}

/// Asserts that a freeze is confirmed and holds a launch, which a thaw lets pass.
fn is_frozen_and_thawed(mount: &Mount, shell: &mut Shell, name: &str) {
    let dir = Dir::of(mount, shell.pid);
    assert_eq!(shell.program.ask("spin 1000 20"), "ok", "{name}");
    dir.write("compute.freeze", 1);
    wait_until("the process is frozen and drained", || dir.is_frozen());
    let launches = mount.truth().nr_launches(shell.pid, 0);
    let held = dir.key("compute.stat", "nr_frozen");
    shell.program.say("spin 1 1");
    wait_until("the launch waits at the gate", || {
        dir.key("compute.stat", "nr_frozen") > held
    });
    assert_eq!(mount.truth().nr_launches(shell.pid, 0), launches, "{name}");
    dir.write("compute.freeze", 0);
    assert_eq!(shell.program.line().as_deref(), Some("ok"), "{name}");
}

/// Asserts that a child made by fork(3) that writes to the address of the usage block does not reach its
/// parent's.
fn is_left_by_children(mount: &Mount, shell: &mut Shell, name: &str) {
    let dir = Dir::of(mount, shell.pid);
    let launches = dir.launches();
    let answer = shell.program.ask("vandal fork");
    assert!(!answer.starts_with("the child"), "{name}: {answer}");
    assert!(
        answer.ends_with(" 3"),
        "{name}: {answer}: the driver is initialised in a child"
    );
    assert_eq!(dir.launches(), launches, "{name}: a child is counted");
    assert_eq!(dir.number("memory.current"), 0, "{name}");
    assert!(shell.allocates(), "{name}: not after a fork");
}

/// Returns the table of outcomes.
fn table() -> String {
    let mount = Mount::new();
    let mut text = "# Refused system calls\n\n\
        What happens where the system refuses a system call that the hook makes, by a seccomp filter or\n\
        because the kernel lacks it. Generated by a test on the simulated driver:\n\
        `UPDATE=1 cargo test -p gcgroup-tests --test it refused_calls`.\n\n\
        | system call | outcome | instead of the call |\n| --- | --- | --- |\n"
        .to_owned();
    for call in CALLS {
        if call.numbers.is_empty() {
            let _ = writeln!(text, "| {} | not tried | {} |", call.name, call.instead);
            continue;
        }
        let outcome = match outcome(&mount, call.name, |command| call.refuse_in(command)) {
            Outcome::Governed if call.instead.starts_with("not needed") => "governed".to_owned(),
            outcome => outcome.to_string(),
        };
        let _ = writeln!(text, "| {} | {outcome} | {} |", call.name, call.instead);
    }
    text
}

#[test]
fn every_refused_call_has_the_documented_outcome() {
    let path = repository().join("hook/REFUSED_CALLS.md");
    let found = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &found).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("the table is there");
    assert_eq!(found, kept, "run with UPDATE=1");
}

#[test]
fn daemon_is_told_of_what_is_missing() {
    let mount = Mount::new();
    let refused = |name: &str| CALLS.iter().find(|call| call.name == name).expect("a row");
    for (name, said) in [
        ("clone, clone3", "has no helper thread"),
        (
            "memfd_create",
            "is not governed: its hook cannot share a usage block",
        ),
    ] {
        let command = refused(name).refuse_in(mount.command(driver_shell()));
        let shell = Shell::start(command).expect("the driver starts");
        let line = format!(" {} (", shell.pid);
        wait_until("the daemon logs it", || {
            let log = mount.log();
            log.lines()
                .any(|text| text.contains(&line) && text.contains(said))
        });
        wait_until("the hook reports it", || shell.report().is_some());
    }
}

#[test]
fn missing_hook_is_reported_once_with_the_reason() {
    let mount = Mount::new();
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let alone = dir.path().join("libgcgroup.so");
    std::fs::copy(artifacts().preload(), &alone).expect("the library can be copied");
    let mut command = mount.command(driver_shell());
    command.env("LD_PRELOAD", &alone);
    let mut shell = Shell::start(command).expect("the driver starts");
    assert!(shell.allocates());
    assert!(shell.program.finish().is_empty());
    let stderr = shell.program.stderr();
    let hook = dir.path().join("libgcgroup_hook.so");
    let reason = format!("cannot be loaded: {}: ", hook.display());
    assert_eq!(stderr.matches("gcgroup: not governed").count(), 1, "{stderr}");
    assert!(stderr.contains(&reason), "{stderr}");
}

/// Returns the names of the system calls that a program makes.
fn traced(command: &Command) -> BTreeSet<String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let mut strace = Command::new("strace");
    strace.arg("-f").arg("-o").arg(file.path());
    strace.arg(command.get_program()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        value.map(|value| strace.env(name, value));
    }
    let output = strace.output().expect("strace runs");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file.path()).expect("strace has written it");
    let names = text.lines().filter_map(|line| {
        let call = line.split_once(' ')?.1.trim_start().split_once('(')?.0;
        call.chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_')
            .then(|| call.to_owned())
    });
    names.collect()
}

#[test]
fn every_call_of_the_hook_is_in_the_table() {
    let mount = Mount::new();
    let known: BTreeSet<&str> = CALLS
        .iter()
        .flat_map(|call| call.name.split(", "))
        .filter_map(|name| name.split(' ').next())
        .collect();
    let mut without = traced(&mount.bare_command(driver_shell()));
    // A thread of the simulated driver, which a short program may end before it gets there.
    without.insert("accept4".to_owned());
    let with = traced(&mount.command(driver_shell()));
    let missing: Vec<_> = with
        .difference(&without)
        .filter(|name| !known.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no row in the table: {missing:?}");
    assert!(with.contains("connect"), "{with:?}");
}
