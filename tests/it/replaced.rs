//! Tests programs whose functions of the C library are replaced: by sanitizers, overlays and other preloaded
//! libraries. They run as without the library, and are governed or say that they are not.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Governed, Mount, artifacts, c_program, wait_until};

use crate::driver::{Dir, driver_shell, governed_pids};
use crate::interception::{LAUNCHES, is_counted, library, unlinked};
use crate::required::Stopped;

/// Sanitizers of gcc, as options.
const SANITIZERS: [&str; 4] = ["address", "leak", "thread", "undefined"];

fn sanitized(source: &str, sanitizer: &str) -> PathBuf {
    c_program(source, &[&format!("-fsanitize={sanitizer}"), "-ldl"])
}

/// Builds `replacer.c`.
fn replacer(what: &str) -> PathBuf {
    c_program("replacer.c", &["-shared", "-fPIC", what, "-ldl"])
}

fn joined(libraries: &[&Path]) -> String {
    let names: Vec<String> = libraries.iter().map(|path| path.display().to_string()).collect();
    names.join(":")
}

/// Returns the command of a program that looks the driver up in this way.
fn way(mount: &Mount, preload: &str, way: &str) -> Command {
    let mut command = mount.command(unlinked());
    command
        .env("LD_PRELOAD", preload)
        .args([way, &LAUNCHES.to_string()]);
    command
}

#[test]
fn sanitized_program_without_cuda_ends_as_without_the_library() {
    for sanitizer in SANITIZERS {
        let program = sanitized("inert.c", sanitizer);
        let out = Command::new(&program)
            .arg("cuInit")
            .env("LD_PRELOAD", artifacts().preload())
            .output()
            .expect("the program runs");
        assert!(
            out.status.success() && out.stderr.is_empty(),
            "{sanitizer}: {out:?}"
        );
    }
}

#[test]
fn sanitized_program_is_counted_and_leaks_nothing() {
    let mount = Mount::new();
    for sanitizer in SANITIZERS {
        let mut run = mount.gcgroupfs(&["run", "--"]);
        run.arg(sanitized("ways.c", sanitizer));
        let preloaded = mount.command(sanitized("ways.c", sanitizer));
        for mut command in [preloaded, run] {
            // ThreadSanitizer reports races of the simulated driver, which is not built with it.
            command.env("TSAN_OPTIONS", "report_bugs=0");
            command.args(["dlsym", &LAUNCHES.to_string()]);
            let mut program = is_counted(&mount, command);
            program.say("");
            program.expect("done");
            assert!(program.wait().success(), "{sanitizer}");
        }
    }
}

#[test]
fn program_with_options_of_its_own_starts_under_run() {
    let mount = Mount::new();
    let options = "-DOPTIONS=\"exitcode=99\"";
    let mut command = mount.gcgroupfs(&["run", "--"]);
    command.arg(c_program("inert.c", &["-fsanitize=address", options]));
    let out = command.output().expect("the program runs");
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn replaced_functions_of_the_loader_are_not_called() {
    let mount = Mount::new();
    let (ours, other) = (artifacts().preload(), replacer("-DLOADER"));
    for order in [[&*ours, &*other], [&*other, &*ours]] {
        is_counted(&mount, way(&mount, &joined(&order), "dlsym"));
    }
}

#[test]
fn clock_that_stands_still_does_not_delay_a_program_for_ever() {
    let mount = Mount::new();
    let preload = joined(&[&artifacts().preload(), &replacer("-DCLOCK")]);
    let mut command = mount.command(driver_shell());
    command.env("LD_PRELOAD", preload);
    let stopped = Stopped::new(&mount);
    let mut shell = Governed::spawn(command);
    let banner = shell.expect("ready");
    assert!(banner.ends_with(" 0"), "{banner}");
    drop(stopped);
    wait_until("the process is registered", || mount.governs(shell.pid()));
    assert_eq!(shell.ask("alloc linear 4096"), "ok 0");
}

#[test]
fn program_behind_an_overlay_is_counted_under_run() {
    let mount = Mount::new();
    for what in ["-DWALK", "-DVERSION", "-DHANDLE"] {
        let mut command = mount.gcgroupfs(&["run", "--"]);
        command
            .env("LD_PRELOAD", replacer(what))
            .arg(unlinked())
            .args(["dlsym", &LAUNCHES.to_string()]);
        is_counted(&mount, command);
    }
}

#[test]
fn overlay_before_the_library_is_governed_if_it_asks_for_dlsym() {
    let mount = Mount::new();
    let ours = artifacts().preload();
    for what in ["-DVERSION", "-DHANDLE"] {
        let other = replacer(what);
        for order in [[&*ours, &*other], [&*other, &*ours]] {
            is_counted(&mount, way(&mount, &joined(&order), "dlsym"));
        }
    }
}

#[test]
fn program_that_evades_the_library_is_reported_or_refused() {
    let mount = Mount::new();
    let (ours, other) = (artifacts().preload(), replacer("-DWALK"));
    for (preload, way_, why) in [
        (
            joined(&[&other, &ours]),
            "dlsym",
            "another library defines dlsym before",
        ),
        (joined(&[&ours]), "dlmopen", "opens the driver with dlmopen"),
    ] {
        let mut program = Governed::spawn(way(&mount, &preload, way_));
        program.expect(&format!("launched {LAUNCHES}"));
        assert!(!Dir::of(&mount, program.pid()).exists());
        program.say("");
        assert!(program.wait().success());
        assert!(program.stderr().contains(why), "{}", program.stderr());

        let mut command = way(&mount, &preload, way_);
        command.env("GCGROUP_REQUIRED", "1");
        let mut program = Governed::spawn(command);
        program.expect("CUDA, which is refused");
        assert_eq!(program.wait().code(), Some(1));
        assert!(program.stderr().contains(why), "{}", program.stderr());
    }
    assert!(governed_pids(&mount).is_empty());
}

#[test]
fn program_that_evades_the_library_is_listed_and_explained() {
    let mount = Mount::new();
    let (ours, other) = (artifacts().preload(), replacer("-DWALK"));
    let library = library(&["-DLINKED"]);
    let in_library = |how: &str, inner: &str| format!("{how}:{}:{inner}", library.display());
    let (ours_only, behind) = (joined(&[&ours]), joined(&[&other, &ours]));
    for (preload, way_) in [
        (&behind, "dlsym".to_owned()),
        (&ours_only, "dlmopen".to_owned()),
        (&ours_only, in_library("deepbind", "linked")),
        (&ours_only, in_library("deepbind", "dlsym")),
        (&ours_only, in_library("other", "linked")),
        (&ours_only, in_library("other", "dlsym")),
    ] {
        let mut program = Governed::spawn(way(&mount, preload, &way_));
        program.expect(&format!("launched {LAUNCHES}"));
        let begin = format!("{} gpu=0 ", program.pid());
        let is_listed = |line: &str| line.starts_with(&begin) && line.ends_with("reason=no_hook");
        wait_until("the process is listed", || {
            mount.read("", "unmanaged").lines().any(is_listed)
        });
        // A busy machine may take longer to show the process's files than the command waits.
        wait_until("the evasion is explained", || {
            let mut explain = mount.gcgroupfs(&["explain", &program.pid().to_string()]);
            let text = explain.output().expect("the command runs").stdout;
            String::from_utf8_lossy(&text).contains("looks driver functions up past the library")
        });
        program.say("");
        program.expect("done");
    }
}
