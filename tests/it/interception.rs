//! Tests that every launch is counted, whichever way a program looks up the driver, and that the library
//! changes nothing in programs without CUDA.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Governed, Mount, artifacts, c_program, c_program_by, python, repository};

use crate::driver::Dir;

pub(crate) const LAUNCHES: u64 = 7;

fn linked() -> PathBuf {
    let path = format!("-L{}", artifacts().simgpu().display());
    c_program("ways.c", &["-DLINKED", &path, "-lcuda", "-ldl"])
}

pub(crate) fn unlinked() -> PathBuf {
    c_program("ways.c", &["-ldl"])
}

/// Builds `ways.c` as a library that is linked with the driver.
pub(crate) fn library(flags: &[&str]) -> PathBuf {
    let path = format!("-L{}", artifacts().simgpu().display());
    let mut all = vec!["-shared", "-fPIC", "-DLIBRARY"];
    all.extend(flags);
    all.extend([path.as_str(), "-Wl,--no-as-needed", "-lcuda", "-ldl"]);
    c_program("ways.c", &all)
}

fn absolute() -> String {
    artifacts().simgpu().join("libcuda.so.1").display().to_string()
}

/// Runs the command governed and compares the counted launches with those it made.
#[track_caller]
pub(crate) fn is_counted(mount: &Mount, command: Command) -> Governed {
    let shown = format!("{command:?}");
    let mut program = Governed::spawn(command);
    let pid: i32 = program.expect("pid ").split_off(4).parse().expect("a pid");
    program.expect(&format!("launched {LAUNCHES}"));
    assert_eq!(Dir::of(mount, pid).launches(), LAUNCHES, "{shown}");
    program
}

#[track_caller]
fn way(mount: &Mount, program: &Path, words: &[&str]) {
    let mut command = mount.command(program);
    command.args(words).arg(LAUNCHES.to_string());
    let mut program = is_counted(mount, command);
    program.say("");
    program.expect("done");
}

#[test]
fn program_linked_with_the_driver_is_counted() {
    way(&Mount::new(), &linked(), &["linked"]);
}

#[test]
fn driver_opened_at_run_time_is_counted() {
    let mount = Mount::new();
    for way_ in [
        "dlsym",
        "libc",
        "ex",
        "proc1",
        "proc2",
        "ptsz",
        "dlsym:libcuda.so",
        &format!("dlsym:{}", absolute()),
    ] {
        way(&mount, &unlinked(), &[way_]);
    }
}

#[test]
fn look_ups_relative_to_the_caller_are_counted() {
    let mount = Mount::new();
    for way_ in ["next", "default"] {
        way(&mount, &linked(), &[way_]);
    }
}

#[test]
fn local_library_with_its_own_driver_is_counted() {
    let mount = Mount::new();
    let library = library(&[]);
    for inner in ["default", "next", "dlsym", "proc2"] {
        way(
            &mount,
            &unlinked(),
            &[&format!("local:{}:{inner}", library.display())],
        );
    }
}

#[test]
fn child_that_alone_uses_the_driver_is_counted() {
    let mount = Mount::new();
    for (program, inner) in [(linked(), "linked"), (unlinked(), "dlsym"), (unlinked(), "proc2")] {
        way(&mount, &program, &["fork", inner]);
    }
}

#[test]
fn program_that_executes_another_is_counted() {
    let mount = Mount::new();
    for (program, inner) in [(linked(), "linked"), (unlinked(), "proc2")] {
        let mut command = mount.command(program);
        command.args(["exec", inner, &LAUNCHES.to_string()]);
        let mut program = is_counted(&mount, command);
        let pid = program.pid();
        program.say("");
        program.expect("pid ");
        program.expect("launched");
        assert_eq!(
            Dir::of(&mount, pid).launches(),
            LAUNCHES,
            "the new program's count does not start at 0"
        );
    }
}

#[test]
fn python_by_soname_and_by_path() {
    let mount = Mount::new();
    for name in ["libcuda.so.1", &absolute()] {
        let mut command = mount.command(python());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
            .arg(repository().join("tests/clients/ctypes_client.py"))
            .args([name, &LAUNCHES.to_string()]);
        is_counted(&mount, command);
    }
}

#[test]
fn second_interposing_library_works_in_either_order() {
    let mount = Mount::new();
    let ours = artifacts().preload();
    for flags in [&[][..], &["-DHANDLE"], &["-DWRAP_DLSYM"]] {
        let mut all = vec!["-shared", "-fPIC"];
        all.extend(flags);
        all.push("-ldl");
        let other = c_program("interposer.c", &all);
        for order in [[&ours, &other], [&other, &ours]] {
            let preload = format!("{}:{}", order[0].display(), order[1].display());
            let mut command = mount.command(linked());
            command
                .env("LD_PRELOAD", &preload)
                .args(["linked", &LAUNCHES.to_string()]);
            let mut program = is_counted(&mount, command);
            assert_eq!(
                program.expect("interposer saw"),
                format!("interposer saw {LAUNCHES}"),
                "{flags:?} {preload}: the other library missed calls"
            );
        }
    }
}

#[test]
fn another_allocator_preloaded_in_either_order() {
    let mount = Mount::new();
    let ours = artifacts().preload();
    let jemalloc = Path::new("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2");
    assert!(jemalloc.exists(), "run scripts/setup-debian.sh");
    for order in [[ours.as_path(), jemalloc], [jemalloc, ours.as_path()]] {
        for (program, way) in [(linked(), "linked"), (unlinked(), "proc2")] {
            let mut command = mount.command(program);
            command.env(
                "LD_PRELOAD",
                format!("{}:{}", order[0].display(), order[1].display()),
            );
            command.args([way, &LAUNCHES.to_string()]);
            is_counted(&mount, command);
        }
    }
}

#[test]
fn symbols_bound_at_start() {
    let mount = Mount::new();
    let mut command = mount.command(linked());
    command
        .env("LD_BIND_NOW", "1")
        .args(["linked", &LAUNCHES.to_string()]);
    is_counted(&mount, command);
}

/// Names of driver functions, and names that only resemble them.
const NAMES: [&str; 6] = [
    "cuInit",
    "cuLaunchKernel",
    "cuGetProcAddress",
    "nvmlInit_v2",
    "cudnnCreate",
    "cublasCreate_v2",
];

fn output(program: &Path, preload: Option<&Path>) -> String {
    let mut command = Command::new(program);
    command.args(NAMES).env_remove("LD_PRELOAD");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let out = command.output().expect("the command runs");
    assert!(
        out.status.success(),
        "{program:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(
        out.stderr.is_empty(),
        "{program:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn program_without_cuda_behaves_unchanged() {
    let preload = artifacts().preload();
    for program in [
        c_program("inert.c", &["-ldl"]),
        c_program_by("musl-gcc", "inert.c", &[]),
    ] {
        let bare = output(&program, None);
        assert_eq!(output(&program, Some(&preload)), bare, "{program:?}");
        assert!(bare.contains("no hook") && bare.contains("threads 1"), "{bare}");
        assert!(!bare.contains("found"), "{bare}");
    }
}

#[test]
fn static_musl_program_behaves_unchanged() {
    let program = c_program_by("musl-gcc", "inert.c", &["-static"]);
    assert_eq!(
        output(&program, Some(&artifacts().preload())),
        output(&program, None)
    );
}

#[test]
fn opened_library_without_calls_does_not_load_the_hook() {
    let mount = Mount::new();
    let mut command = mount.command(unlinked());
    command.arg(format!("lookup:{}", absolute())).arg("0");
    let mut program = Governed::spawn(command);
    program.expect("launched 0");
    assert!(
        !Dir::of(&mount, program.pid()).exists(),
        "a program that only looks symbols up is governed"
    );
    let tasks = std::fs::read_dir(format!("/proc/{}/task", program.pid()))
        .expect("the process lives")
        .count();
    assert_eq!(tasks, 1, "the program has a helper thread");
}
