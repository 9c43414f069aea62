//! Tests `gcgroupfs top` in a real terminal, by the contents of its screens, and its text for scripts.

#[cfg(test)]
mod row_actions;
pub(crate) mod screen;
#[cfg(test)]
mod widths;

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Config, Governed, Mount, artifacts, tree_for_all, wait_until};

use self::screen::Screen;
use crate::driver::{Dir, DriverShell};
use crate::exporter::{Exporter, join};
use crate::suspend::{resume, suspend};

const MIB: u64 = 1 << 20;

/// The uid of an unprivileged user.
const ALICE: u32 = 1000;

/// Returns `gcgroupfs top` in a UTF-8 locale, looking often.
fn top(mount: &Mount, arguments: &[&str]) -> Command {
    let mut command = mount.gcgroupfs(&["top", "--delay", "0.2"]);
    command
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .env("TERM", "screen");
    command
}

/// Shows the screen and waits until the process is on it.
#[track_caller]
fn shown(mount: &Mount, pid: i32) -> Screen {
    let screen = Screen::start(mount, &top(mount, &[]));
    screen.wait_line(&[&format!("{pid} ")]);
    screen
}

/// Selects the row of a process.
#[track_caller]
fn select(screen: &Screen, pid: i32) {
    screen.press(&["/"]);
    screen.wait_line(&["Search ("]);
    screen.enter(&pid.to_string());
    screen.wait("the keys are shown", |lines| {
        lines.last().is_some_and(|last| last.contains("Quit"))
    });
}

/// Returns a mount with a process in the group `team/a`.
fn team(config: Config) -> (Mount, DriverShell) {
    let mount = Mount::with(config);
    for group in ["team", "team/a"] {
        assert!(
            mount
                .gcgroupfs(&["mkdir", group])
                .status()
                .expect("gcgroupfs runs")
                .success()
        );
    }
    let mut shell = DriverShell::start(&mount);
    let pid = shell.pid().to_string();
    let moved = mount.gcgroupfs(&["set", "team/a/gcgroup.procs", &pid]).status();
    assert!(moved.expect("gcgroupfs runs").success());
    assert_eq!(shell.ask(&format!("alloc linear {}", 6 * MIB)), "ok 0");
    (mount, shell)
}

/// Returns what a successful command prints.
#[track_caller]
fn says(mut command: Command) -> String {
    let output = command.output().expect("gcgroupfs runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn screen_shows_gpus_and_tree_in_80_by_24() {
    let (mount, shell) = team(Config::default().env("SIMGPU_DEVICES", 2).arg("--no-fuse"));
    let pid = shell.pid();
    assert!(
        mount
            .gcgroupfs(&["set", "team/memory.limit", "10M"])
            .status()
            .expect("it runs")
            .success()
    );
    let screen = shown(&mount, pid);
    let row = screen.wait_line(&[&pid.to_string(), "driver_shell", "idle"]);
    for cell in ["6M", "10M", "8"] {
        assert!(
            row.split_whitespace().any(|word| word == cell),
            "no {cell} in {row}"
        );
    }
    let lines = screen.wait("the last line is there", |lines| {
        lines.len() == 24 && lines[23].contains("qQuit")
    });
    assert!(
        lines[0].starts_with("gcgroupfs top: 2 GPUs, 2 groups, 1 process"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("GPU0 [") && lines[1].contains("util"),
        "{lines:?}"
    );
    assert!(lines[2].starts_with("GPU1 ["), "{lines:?}");
    let titles: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(
        titles,
        [
            "PID", "GPU", "MEM", "SWAP", "LIMIT", "GPU%", "PRI", "STATE", "PRES%", "NAME"
        ]
    );
    let at = lines[3].find("NAME").expect("a title");
    let names: Vec<&str> = lines[4..7].iter().map(|line| &line[at..]).collect();
    assert_eq!(names[..2], ["- team/", "  - a/"]);
    assert!(names[2].starts_with("    driver_shell"), "{names:?}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
    screen.press(&["F1"]);
    screen.wait_line(&["any other key returns"]);
    screen.wait_line(&["F10 q ", " quit"]);
    screen.press(&["x"]);
    screen.wait_line(&[&pid.to_string(), "driver_shell"]);
}

#[test]
fn suspension_and_lease_show_on_the_screen() {
    let (mount, shell) = team(Config::default());
    let (pid, word) = (shell.pid(), shell.pid().to_string());
    let screen = shown(&mount, pid);
    suspend(&mount, pid);
    // Its memory is on the host.
    screen.wait_line(&[&word, " suspended ", "driver_shell"]);
    mount.write("team", "gcgroup.suspend", "1");
    screen.wait_line(&[" suspended ", "- team/"]);
    mount.write("team", "gcgroup.suspend", "0");
    resume(&mount, pid);
    screen.wait_line(&[&word, " idle ", "driver_shell"]);
    mount.write("team", "gcgroup.lease", "3600");
    screen.wait_line(&["- team/", "lease "]);
    let text = says(top(&mount, &["--once"]));
    assert!(text.contains(" (freeze)\n"), "{text}");
}

#[test]
fn lost_terminal_ends_the_program() {
    let (mount, shell) = team(Config::default());
    let screen = shown(&mount, shell.pid());
    let stat = format!("/proc/{}/stat", screen.pid());
    let runs = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(runs());
    screen.kill_terminal();
    wait_until("the program has ended", || !runs());
}

#[test]
fn keys_fold_filter_and_sort() {
    let (mount, first) = team(Config::default());
    let mut second = DriverShell::start(&mount);
    assert_eq!(second.ask(&format!("alloc linear {}", 64 * MIB)), "ok 0");
    let (first, second) = (first.pid(), second.pid());
    let screen = shown(&mount, second);
    let has = |lines: &[String], pid: i32| {
        let start = format!("{pid} ");
        lines.iter().any(|line| line.trim_start().starts_with(&start))
    };
    select(&screen, first);
    screen.press(&["-"]);
    screen.wait("the group is folded", |lines| {
        !has(lines, first) && has(lines, second)
    });
    screen.wait_line(&["+ a/"]);
    screen.press(&["+"]);
    screen.wait("the group is unfolded", |lines| has(lines, first));
    screen.press(&["F5"]);
    screen.wait("there are no groups", |lines| {
        !lines.iter().any(|line| line.contains("- team/"))
    });
    screen.press(&["M"]);
    let row = |lines: &[String], pid: i32| lines.iter().position(|line| line.contains(&format!("{pid} ")));
    screen.wait("the larger process is first", |lines| {
        lines.first().is_some_and(|title| title.contains("sort memory"))
            && row(lines, second) < row(lines, first)
    });
    screen.press(&["I"]);
    screen.wait("the larger process is last", |lines| {
        row(lines, second) > row(lines, first)
    });
    screen.press(&["F4"]);
    screen.wait_line(&["Filter ("]);
    screen.enter("team");
    screen.wait("only the group's process is shown", |lines| {
        !has(lines, second) && has(lines, first)
    });
}

#[test]
fn actions_take_effect_and_refusals_show_reasons() {
    let (mount, mut shell) = team(Config::default());
    let (pid, dir) = (shell.pid(), Dir::of(&mount, shell.pid()));
    let screen = shown(&mount, pid);
    let word = pid.to_string();
    select(&screen, pid);
    screen.press(&["f"]);
    screen.wait_line(&[&word, "frozen"]);
    assert_eq!(dir.number("compute.freeze"), 1);
    screen.press(&["f"]);
    wait_until("the process is thawed", || dir.number("compute.freeze") == 0);
    screen.wait_line(&[&word, "idle"]);
    screen.press(&["F8"]);
    wait_until("the priority is lower", || dir.number("compute.priority") == 9);
    screen.press(&["l"]);
    screen.wait_line(&[&format!("Memory limit of {pid}")]);
    screen.enter("8M");
    wait_until("the limit is set", || {
        dir.read("memory.limit") == (8 * MIB).to_string()
    });
    screen.wait_line(&[&word, " 8M "]);
    screen.press(&["l"]);
    screen.wait_line(&[&format!("Memory limit of {pid}")]);
    screen.enter("much");
    screen.wait_line(&["Invalid argument: expected bytes"]);
    assert_eq!(dir.number("memory.limit"), 8 * MIB);
    assert_eq!(shell.ask(&format!("alloc linear {}", 4 * MIB)), "error 2");
    screen.wait_line(&[&word, "refused"]);
    screen.press(&["m"]);
    screen.wait_line(&[&format!("Move {pid}")]);
    screen.enter("/team");
    wait_until("the process is moved", || {
        mount.read("team", "gcgroup.procs") == word
    });
    screen.press(&["F9"]);
    screen.wait_line(&[&format!("Signal for {pid}"), "TERM"]);
    screen.press(&["Enter"]);
    wait_until("the process has ended", || !mount.governs(pid));
    screen.wait("its row is gone", |lines| {
        !lines.iter().any(|line| line.contains("driver_shell"))
    });
}

#[test]
fn other_users_are_shown_why_they_may_not() {
    let (mount, shell) = team(Config::default());
    let pid = shell.pid();
    let alice = ALICE.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &alice, "--regid", &alice, "--clear-groups"]);
    command.arg(tree_for_all(mount.root()).join("bin/gcgroupfs"));
    let arguments = top(&mount, &[]);
    command.args(arguments.get_args());
    for (name, value) in arguments.get_envs() {
        command.env(name, value.expect("a value"));
    }
    let screen = Screen::start(&mount, &command);
    screen.wait_line(&[&pid.to_string(), "driver_shell"]);
    select(&screen, pid);
    screen.press(&["f"]);
    screen.wait_line(&[&format!("{pid}/compute.freeze: "), "denied", "owner"]);
    screen.press(&["F9"]);
    screen.wait_line(&[&format!("Signal for {pid}")]);
    screen.press(&["Enter"]);
    screen.wait_line(&[&format!("{pid}: "), "not permitted"]);
    assert!(mount.governs(pid));
}

#[test]
fn states_tell_of_work_quotas_and_moves() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    let busy = mount.load(&["throughput", "--duration", "3600"]);
    let mut command = mount.command(artifacts().load());
    command.arg("obey").env("GCGROUP_SWAP", "max");
    let mut moving = Governed::spawn(command);
    moving.expect("ready");
    assert!(
        moving
            .ask(&format!("alloc linear {}", 32 * MIB))
            .starts_with("allocated")
    );
    let screen = shown(&mount, busy.pid());
    let row = screen.wait_line(&[&busy.pid().to_string(), "running"]);
    screen.wait("the GPU time is measured", |lines| {
        let row = lines.iter().find(|line| line.contains(&busy.pid().to_string()));
        let percent = row.and_then(|row| row.split_whitespace().nth(5)?.parse::<f64>().ok());
        percent.is_some_and(|percent| percent > 0.0)
    });
    assert!(row.contains("gcgroup-load"), "{row}");
    mount.write(busy.pid(), "compute.max", "1000 100000");
    screen.wait_line(&[&busy.pid().to_string(), "throttled"]);
    mount.write(moving.pid(), "memory.reclaim", "max");
    // The state "swapping" lasts 2 s only, in which a busy machine may not read the screen.
    screen.wait_line(&[&moving.pid().to_string(), " 32M "]);
}

/// Tests that each way to show a process gives it the same state and the same limit.
#[test]
fn all_views_agree_on_state_and_limit() {
    let mount = Mount::with(Config::default().env("SIMGPU_CONTEXT_MEMORY", 0));
    // Beside an idle process, the gate of a busy one arbitrates each launch. With long kernels it hardly
    // waits without work on the GPU, which would be shown as throttled, also on a busy machine.
    let idle = DriverShell::start(&mount);
    let frozen = DriverShell::start(&mount);
    let busy = mount.load(&["throughput", "--duration", "3600", "--kernel-usec", "100000"]);
    mount.write(busy.pid(), "compute.priority", "9");
    join(&mount, "team", &idle);
    join(&mount, "team", &frozen);
    mount.write("team", "gcgroup.procs", &busy.pid().to_string());
    mount.write("team", "memory.limit", "64M");
    mount.write(frozen.pid(), "compute.freeze", "1");
    let exporter = Exporter::start(&mount, &[]);
    let in_page = |pid: i32| {
        let state = exporter.state();
        let mut processes = state["processes"].as_array().into_iter().flatten();
        let process = processes
            .find(|process| process["pid"].as_str() == Some(&pid.to_string()))
            .cloned();
        process.map(|process| (process["state"].clone(), process["limit"].clone()))
    };
    for (pid, state) in [
        (idle.pid(), "idle"),
        (frozen.pid(), "frozen"),
        (busy.pid(), "running"),
    ] {
        let expected = Some((state.into(), (64 * MIB).into()));
        wait_until("the page shows the state", || {
            let is_shown = in_page(pid) == expected;
            if !is_shown {
                // Reading it all the time would leave the busy program no processor, so that it is throttled.
                thread::sleep(Duration::from_millis(200));
            }
            is_shown
        });
        let row = format!("{pid} 64M {state}");
        let output = |arguments: &[&str]| {
            let output = mount.gcgroupfs(arguments).output().expect("the command runs");
            String::from_utf8(output.stdout).expect("text")
        };
        wait_until("ls shows the state", || {
            let text = output(&["ls", "--format=pid,limit,state"]);
            text.lines()
                .any(|line| line.split_whitespace().eq(row.split(' ')))
        });
        wait_until("top shows the state", || {
            let text = output(&["top", "--once", "--delay=0.5", "--filter", &pid.to_string()]);
            text.lines()
                .any(|line| line.contains(&pid.to_string()) && line.contains(state))
        });
    }
}

#[test]
fn terminal_is_restored_at_each_end() {
    let mount = Mount::with(Config::default().arg("--no-fuse"));
    for (end, status) in [("q", 0), ("C-c", 130), ("TERM", 143)] {
        let screen = Screen::start(&mount, &top(&mount, &[]));
        screen.wait_line(&["F1Help"]);
        assert!(
            !screen.lines().iter().any(|line| line == "before"),
            "{:?}",
            screen.lines()
        );
        match end {
            "TERM" => kill(Pid::from_raw(screen.pid()), Signal::SIGTERM).expect("it runs"),
            key => screen.press(&[key]),
        }
        screen.wait_line(&[&format!("status {status}")]);
        let lines = screen.wait("its settings are shown", |lines| {
            lines.iter().any(|line| line.contains("echoctl"))
        });
        let words: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
        for word in ["before", "icanon", "echo", "isig", "opost"] {
            assert!(words.contains(&word), "{end}: no {word} in {words:?}");
        }
        drop(screen);
        fs::remove_dir_all(mount.root().join("screen")).expect("the directory can be removed");
    }
}

/// Returns whether a text has control sequences (SGR) that set a colour.
fn has_color(text: &str) -> bool {
    let sequences = text
        .split("\u{1b}[")
        .skip(1)
        .filter_map(|rest| rest.split('m').next());
    let mut numbers = sequences
        .flat_map(|sequence| sequence.split(';'))
        .filter_map(|number| number.parse().ok());
    numbers.any(|number: u32| matches!(number, 30..=38 | 40..=48 | 90..=107))
}

#[test]
fn screen_without_colour_or_utf8_is_plain() {
    let (mount, shell) = team(Config::default());
    let pid = shell.pid().to_string();
    let mut plain = top(&mount, &[]);
    plain.env("NO_COLOR", "1").env("LC_ALL", "C");
    let screen = Screen::start(&mount, &plain);
    screen.wait_line(&[&pid, "driver_shell"]);
    let text = screen.colored();
    assert!(!has_color(&text) && text.is_ascii(), "{text:?}");
    drop(screen);
    fs::remove_dir_all(mount.root().join("screen")).expect("the directory can be removed");
    let screen = shown(&mount, shell.pid());
    assert!(has_color(&screen.colored()), "{:?}", screen.colored());
}

#[test]
fn screen_outlives_its_daemon() {
    let (mut mount, shell) = team(Config::default());
    let screen = shown(&mount, shell.pid());
    mount.stop();
    screen.wait_line(&["no daemon at"]);
    screen.wait_line(&[&shell.pid().to_string(), "driver_shell"]);
    mount.restart();
    screen.wait("the outage is over", |lines| {
        !lines.iter().any(|line| line.contains("no daemon at"))
    });
    screen.press(&["q"]);
    screen.wait_line(&["status 0"]);
}

#[test]
fn batch_prints_text_for_scripts() {
    let (mount, shell) = team(Config::default().arg("--no-fuse"));
    let pid = shell.pid().to_string();
    let once = says(top(&mount, &["--once"]));
    let head = once
        .lines()
        .find(|line| line.trim_start().starts_with("PID"))
        .expect("titles");
    assert!(
        head.contains(" USER ") && head.contains(" SHARE ") && head.ends_with(" NAME"),
        "{once}"
    );
    let row = once
        .lines()
        .find(|line| line.trim_start().starts_with(&pid))
        .expect("a row");
    assert!(
        row.contains(" root ") && row.contains("    driver_shell"),
        "{once}"
    );
    assert!(once.is_ascii() && !once.contains('\u{1b}'), "{once}");

    let twice = says(top(&mount, &["--batch", "-n", "2", "--flat", "--filter", &pid]));
    assert_eq!(twice.matches("gcgroupfs top: ").count(), 2, "{twice}");
    assert_eq!(twice.matches("driver_shell").count(), 2, "{twice}");
    assert!(!twice.contains("team/"), "{twice}");
}

#[test]
fn wrong_use_is_refused_with_reason() {
    let mut mount = Mount::with(Config::default().arg("--no-fuse"));
    let refused = |mount: &Mount, arguments: &[&str]| {
        let output = top(mount, arguments).output().expect("gcgroupfs runs");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    for (arguments, status, reason) in [
        (&[][..], 1, "not a terminal: use --batch or --once"),
        (
            &["--sort", "nothing"],
            2,
            "columns are pid, user, host_memory, memory",
        ),
        (&["--once", "--batch"], 2, "cannot be used with"),
    ] {
        let (code, error) = refused(&mount, arguments);
        assert_eq!(code, Some(status), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    mount.stop();
    let (code, error) = refused(&mount, &["--once"]);
    assert!(code == Some(1) && error.contains("no daemon at"), "{error}");
}
