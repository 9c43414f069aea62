//! Tests the groups that `gcgroupfs run` makes for a command and its children.

mod places;
mod workers;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::{Uid, User, mkfifo};
use support::{Config, Governed, Mount, wait_for, wait_until};
use tempfile::TempDir;

use crate::driver::{DriverShell, driver_shell};

const MIB: u64 = 1 << 20;

/// A program in the background of a job's command: it reads lines from one named pipe and answers on another.
struct Background {
    directory: TempDir,
    input: File,
    output: BufReader<File>,
}

impl Background {
    #[track_caller]
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let open = |name: &str| {
            let path = directory.path().join(name);
            mkfifo(&path, Mode::S_IRWXU).expect("a named pipe");
            // Also opened for the other direction, so that neither side waits for the other.
            let mut options = OpenOptions::new();
            options.read(true).write(true).open(path).expect("the pipe opens")
        };
        let (input, output) = (open("in"), BufReader::new(open("out")));
        Self {
            directory,
            input,
            output,
        }
    }

    fn pipes(&self) -> [PathBuf; 2] {
        ["in", "out"].map(|name| self.directory.path().join(name))
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the program reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program answers");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    /// Reads `ready PID STATUS` and returns the pid.
    #[track_caller]
    fn banner(&mut self) -> i32 {
        let line = self.line();
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!((words.len(), words[0], words[2]), (3, "ready", "0"), "{line}");
        words[1].parse().expect("a pid")
    }
}

/// Returns `gcgroupfs run` with options, and a script whose arguments are the program and the pipes.
fn run_script(mount: &Mount, options: &[&str], script: &str, background: &Background) -> Command {
    let mut command = mount.gcgroupfs(&["run"]);
    command.args(options).args(["--", "sh", "-c", script, "sh"]);
    command.arg(driver_shell()).args(background.pipes());
    command
}

fn shared(config: Config) -> Mount {
    Mount::with(config.arg("--allow-other"))
}

/// Returns the name of the group of a user's jobs.
fn users_group(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).expect("the users are readable");
    format!("users/{}", user.map_or(format!("uid-{uid}"), |user| user.name))
}

fn members(mount: &Mount, group: &str) -> Vec<i32> {
    let text = mount.read(group, "gcgroup.procs");
    text.lines().map(|pid| pid.parse().expect("a pid")).collect()
}

fn has(mount: &Mount, group: &str) -> bool {
    mount.path().join(group).exists()
}

/// Returns the exit status and stderr of a command.
#[track_caller]
fn ended(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().expect("the command starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), stderr)
}

#[test]
fn end_of_a_job_is_logged_with_what_all_its_processes_used() {
    let mount = Mount::with(Config::default().arg("--log").arg("info"));
    let mut child = Background::new();
    let script = "\"$1\" < \"$2\" > \"$3\" 2>/dev/null & exec \"$1\"";
    let options = ["--compute-max", "90%"];
    let mut main = DriverShell::spawn(run_script(&mount, &options, script, &child));
    child.banner();
    let group = format!("job-{}", main.pid());
    for block in 0..2 {
        let answer = main.ask(&format!("alloc linear {MIB}"));
        assert_eq!(answer, format!("ok {block}"));
    }
    assert_eq!(child.ask(&format!("alloc linear {MIB}")), "ok 0");
    assert_eq!(main.ask("spin 20000 1"), "ok");
    let used = || mount.number(&group, "compute.stat", "usage_usec");
    // Its end is found by polling: the middle between two polls is charged.
    wait_until("the GPU time is charged", || used() >= 10_000);
    let used = used();
    // The peak of a group is sampled, also by this read.
    let peak = mount.number(&group, "memory.peak", "");
    assert!(peak >= 3 * MIB);
    main.kill9();
    drop(child);
    let line = wait_for("the end of the job is logged", || {
        let log = mount.log();
        let mut lines = log.lines();
        let ended = format!("job \"{group}\" ended: ");
        lines.find_map(|line| Some(line.split_once(&ended)?.1.to_owned()))
    });
    let value = |key: &str| -> u64 {
        let value = line.split(' ').find_map(|pair| pair.strip_prefix(key));
        value.and_then(|value| value.parse().ok()).expect("a number")
    };
    assert!(value("compute.usage_usec=") >= used, "{line}: {used}");
    assert_eq!(value("nr_alloc="), 3, "{line}");
    assert_eq!(value("nr_launches="), 1, "{line}");
    assert!(value("memory.peak=") >= peak, "{line}: {peak}");
    assert!(value("memory.byte_seconds=") > 0, "{line}");
}

#[test]
fn memory_limit_bounds_command_and_children_together() {
    let mount = Mount::new();
    let mut child = Background::new();
    let script = "\"$1\" < \"$2\" > \"$3\" 2>/dev/null & exec \"$1\"";
    let mut main = DriverShell::spawn(run_script(&mount, &["--memory-limit", "64M"], script, &child));
    let other = child.banner();
    let group = format!("job-{}", main.pid());
    assert_eq!(mount.read(&group, "memory.limit"), (64 * MIB).to_string());
    let mut all = vec![main.pid(), other];
    all.sort_unstable();
    assert_eq!(members(&mount, &group), all);
    let alloc = format!("alloc linear {}", 40 * MIB);
    assert_eq!(child.ask(&alloc), "ok 0");
    assert_eq!(main.ask(&alloc), "error 2");
    assert_eq!(main.ask(&format!("alloc linear {}", 20 * MIB)), "ok 0");
    main.quit();
    wait_until("the command has left", || members(&mount, &group) == [other]);
    child.say("quit");
    wait_until("the job's group is removed", || !has(&mount, &group));
}

#[test]
fn settings_apply_to_single_gpus() {
    let mount = Mount::with(Config::default().env("SIMGPU_DEVICES", 2));
    let devices = mount.read("", "devices");
    let uuid = devices.split(' ').nth(1).expect("a UUID");
    let limits = format!("1G,{uuid}=8M,1=4M");
    let options = ["--memory-limit", &limits, "--compute-max", "50%"];
    let mut command = mount.gcgroupfs(&["run", "--name", "job"]);
    command.args(options).arg("--").arg(driver_shell());
    let mut shell = DriverShell::spawn(command);
    for (file, value) in [
        ("memory.limit", 1024 * MIB),
        ("0/memory.limit", 8 * MIB),
        ("1/memory.limit", 4 * MIB),
    ] {
        assert_eq!(mount.read("job", file), value.to_string(), "{file}");
    }
    assert_eq!(mount.read("job", "compute.max"), "50000 100000");
    assert_eq!(mount.read("job", "0/compute.max"), "max 100000");
    assert_eq!(shell.ask(&format!("alloc linear {}", 8 * MIB + 1)), "error 2");
    shell.ask("gpu 1");
    assert_eq!(shell.ask(&format!("alloc linear {}", 4 * MIB + 1)), "error 2");
    assert_eq!(shell.ask(&format!("alloc linear {}", 3 * MIB)), "ok 0");
    let mut command = mount.gcgroupfs(&["run", "--name", "other", "--swap=16M"]);
    command
        .env_remove("NCCL_GRAPH_REGISTER")
        .arg("--")
        .arg(driver_shell());
    let other = DriverShell::spawn(command);
    assert_eq!(mount.read("other", "memory.swap.max"), (16 * MIB).to_string());
    assert_eq!(mount.read(other.pid(), "memory.swap.max"), (16 * MIB).to_string());
    assert!(has_variable(other.pid(), "NCCL_GRAPH_REGISTER=0"));
    let mut command = mount.gcgroupfs(&["run", "--name", "third", "--swap=16M"]);
    command
        .env("NCCL_GRAPH_REGISTER", "1")
        .arg("--")
        .arg(driver_shell());
    let third = DriverShell::spawn(command);
    assert!(has_variable(third.pid(), "NCCL_GRAPH_REGISTER=1"));
    let mut command = mount.gcgroupfs(&["run", "--name", "fourth", "--swap=0"]);
    command
        .env_remove("NCCL_GRAPH_REGISTER")
        .arg("--")
        .arg(driver_shell());
    let fourth = DriverShell::spawn(command);
    assert!(!has_variable(fourth.pid(), "NCCL_GRAPH_REGISTER=0"));
    let (status, stderr) = ended(mount.gcgroupfs(&["run", "--memory-limit", "2=4M", "--", "true"]));
    assert_eq!(status, Some(125), "{stderr}");
    assert!(stderr.contains("there is no GPU 2"), "{stderr}");
}

/// Returns whether a process has been started with `NAME=VALUE` in its environment.
fn has_variable(pid: i32, variable: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    environment
        .split(|byte| *byte == 0)
        .any(|entry| entry == variable.as_bytes())
}

#[test]
fn job_survives_restart_of_the_daemon() {
    let mut mount = Mount::new();
    let mut command = mount.gcgroupfs(&["run", "--memory-limit", "1M", "--"]);
    command
        .args(["sh", "-c", "echo $GCGROUP_GROUP; read line; \"$0\"; read line"])
        .arg(driver_shell());
    let mut main = Governed::spawn(command);
    let group = main.line().expect("the command runs");
    assert_eq!(group, format!("job-{}", main.pid()));
    mount.kill9();
    mount.restart();
    assert_eq!(mount.read(&group, "memory.limit"), MIB.to_string());
    main.say("go");
    let banner = main.expect("ready ");
    assert!(banner.ends_with(" 0"), "{banner}");
    assert_eq!(members(&mount, &group).len(), 1);
    assert_eq!(main.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
    main.say("quit");
    wait_until("the job has no processes", || members(&mount, &group).is_empty());
    mount.kill9();
    mount.restart();
    assert!(has(&mount, &group), "the group of a living command was removed");
    main.say("go");
    assert!(main.wait().success());
    wait_until("the job's group is removed", || !has(&mount, &group));
}

#[test]
fn command_that_ends_without_a_daemon_leaves_no_group() {
    let mut mount = Mount::new();
    let mut command = mount.gcgroupfs(&["run", "--name", "gone", "--"]);
    command.args(["sh", "-c", "echo ready; read line"]);
    let mut main = Governed::spawn(command);
    main.expect("ready");
    assert!(has(&mount, "gone"));
    mount.kill9();
    main.say("go");
    assert!(main.wait().success());
    mount.restart();
    wait_until("the job's group is removed", || !has(&mount, "gone"));
}
