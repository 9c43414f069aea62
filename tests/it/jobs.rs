//! Tests the groups that `gcgroupfs run` makes for a command and its children.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::Mode;
use nix::unistd::{Uid, User, mkfifo};
use support::{Config, Governed, Mount, program_for_all, wait_for, wait_until};
use tempfile::TempDir;

use crate::driver::{DriverShell, driver_shell};
use crate::rules::{ALICE, BOB, Ruled};

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
fn children_outlive_their_command_in_its_group() {
    let mount = Mount::new();
    let mut child = Background::new();
    let script = "(read line; exec \"$1\") < \"$2\" > \"$3\" 2>/dev/null & echo $GCGROUP_GROUP";
    let options = ["--name", "short", "--memory-limit", "1M"];
    let output = run_script(&mount, &options, script, &child)
        .output()
        .expect("the command starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "short\n");
    // The child has not used CUDA yet.
    wait_until("the job's group is removed", || !has(&mount, "short"));
    child.say("go");
    let pid = child.banner();
    assert_eq!(members(&mount, "short"), [pid]);
    assert_eq!(child.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
    child.say("quit");
    wait_until("the job's group is removed", || !has(&mount, "short"));
}

/// Scripts that start the program $1, which loses its parent and waits for a line before it uses CUDA.
const LAUNCHERS: &[&str] = &[
    // Python closes all descriptors but the standard ones.
    "exec python3 -c 'import subprocess, sys; subprocess.Popen([\"sh\", \"-c\", \"read line; exec $0\", sys.argv[1]], \
     stdin=open(sys.argv[2]), stdout=open(sys.argv[3], \"w\"), stderr=subprocess.DEVNULL, start_new_session=True)' \
     \"$1\" \"$2\" \"$3\"",
    "setsid sh -c 'read line; exec \"$0\"' \"$1\" < \"$2\" > \"$3\" 2>/dev/null & exit",
    "(sh -c 'exec 3<&0; (read line; exec \"$0\") <&3 & exit' \"$1\" < \"$2\" > \"$3\" 2>/dev/null &) & exit",
    "ulimit -n 256; (read line; exec \"$1\") < \"$2\" > \"$3\" 2>/dev/null & exit",
    "(read line; env -i $(env | grep -E '^(LD_|GCGROUP_|SIMGPU)') \"$1\") < \"$2\" > \"$3\" 2>/dev/null & exit",
];

#[test]
fn workers_find_their_job_after_their_launcher() {
    for script in LAUNCHERS {
        let mut mount = Mount::new();
        let mut workers = [Background::new(), Background::new()];
        let mut main = Governed::spawn({
            let mut command =
                mount.gcgroupfs(&["run", "--memory-limit", "64M", "--compute-max", "90%", "--"]);
            let both = "echo $GCGROUP_GROUP; sh -c \"$0\" sh \"$1\" \"$2\" \"$3\"; sh -c \"$0\" sh \"$1\" \"$4\" \"$5\"";
            command.args(["sh", "-c", both, script]).arg(driver_shell());
            command.args(workers[0].pipes()).args(workers[1].pipes());
            command
        });
        let group = main.line().expect("the command runs");
        assert!(main.wait().success());
        wait_until("the job's group is removed", || !has(&mount, &group));
        mount.kill9();
        mount.restart();
        workers[0].say("go");
        let first = workers[0].banner();
        assert_eq!(members(&mount, &group), [first], "{script}");
        assert_eq!(mount.read(&group, "compute.max"), "90000 100000");
        workers[1].say("go");
        workers[1].banner();
        assert_eq!(members(&mount, &group).len(), 2, "{script}");
        assert_eq!(workers[0].ask(&format!("alloc linear {}", 40 * MIB)), "ok 0");
        assert_eq!(workers[1].ask(&format!("alloc linear {}", 40 * MIB)), "error 2");
        workers.iter_mut().for_each(|worker| worker.say("quit"));
        wait_until("the job's group is removed", || !has(&mount, &group));
    }
}

#[test]
fn worker_of_an_unknown_job_is_refused() {
    let mount = Mount::new();
    let start = |group: &str, job: &str, required: &str| {
        let mut command = mount.command(driver_shell());
        command.envs([
            ("GCGROUP_GROUP", group),
            ("GCGROUP_JOB", job),
            ("GCGROUP_REQUIRED", required),
        ]);
        let mut program = Governed::spawn(command);
        let banner = program.expect("ready");
        (banner.ends_with(" 802"), has(&mount, group))
    };
    assert_eq!(start("train", "train", "1"), (true, false));
    assert_eq!(start("train", "train", "0"), (false, false));
    assert_eq!(start("job-4711", "", "1"), (true, false));
    assert_eq!(start("job-4711", "train", "0"), (false, false));
    assert_eq!(
        start("train", "job-4711", "1"),
        (false, true),
        "not the job's group"
    );
}

#[test]
fn user_gets_a_group_without_set_up() {
    let mount = shared(Config::default());
    let program = program_for_all(&driver_shell(), mount.root());
    let mut command = mount.gcgroupfs_of(ALICE, &["run", "--memory-limit", "1M", "--"]);
    command.arg(&program);
    let mut shell = DriverShell::spawn(command);
    assert_eq!(shell.stderr(), "");
    let own = users_group(ALICE);
    let group = format!("{own}/job-{}", shell.pid());
    assert_eq!(members(&mount, &group), [shell.pid()]);
    let owner = |group: &str| fs::metadata(mount.path().join(group)).expect("it exists").uid();
    assert_eq!([owner("users"), owner(&own), owner(&group)], [0, ALICE, ALICE]);
    assert_eq!(shell.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
    assert!(mount.sh_of(ALICE, &format!("echo 512K > {group}/memory.limit")).0);
    for script in [
        format!("echo 1M > {group}/memory.limit"),
        format!("mkdir {own}/mine"),
    ] {
        assert!(!mount.sh_of(BOB, &script).0, "{script}");
    }
    let bob = DriverShell::spawn({
        let mut command = mount.gcgroupfs_of(BOB, &["run", "--"]);
        command.arg(&program);
        command
    });
    let his = format!("{}/job-{}", users_group(BOB), bob.pid());
    assert_eq!(members(&mount, &his), [bob.pid()]);
    bob.kill9();
    shell.quit();
    wait_until("the users' groups are removed", || !has(&mount, "users"));
}

#[test]
fn taken_or_invalid_name_is_an_error() {
    let mount = shared(Config::default());
    let run = |uid: u32, options: &[&str]| {
        let mut command = mount.gcgroupfs_of(uid, &["run"]);
        command.args(options).args(["--", "echo", "started"]);
        ended(command)
    };
    let holder = Governed::spawn({
        let mut command = mount.gcgroupfs_of(ALICE, &["run", "--name", "train", "--"]);
        command.args(["sh", "-c", "echo ready; read line"]);
        command
    });
    let group = format!("{}/train", users_group(ALICE));
    wait_until("the job has its group", || has(&mount, &group));
    let (status, stderr) = run(ALICE, &["--name", "train"]);
    assert_eq!(status, Some(125));
    assert!(
        stderr.contains("job train: a group of this name exists already"),
        "{stderr}"
    );
    assert_eq!(run(BOB, &["--name", "train"]).0, Some(0));
    // Root's group in place of the one of Bob's jobs does not belong to him; Alice's does not either.
    let his = mount.path().join(users_group(BOB));
    wait_until("Bob's group is removed", || !his.exists());
    fs::create_dir(&his).expect("root may create a group");
    std::os::unix::fs::chown(&his, Some(ALICE), Some(ALICE)).expect("root may change the owner");
    let (status, stderr) = run(BOB, &["--name", "train"]);
    assert_eq!(status, Some(125));
    assert!(stderr.contains("Permission denied"), "{stderr}");
    let (status, stderr) = run(BOB, &["--best-effort", "--name", "train"]);
    assert_eq!(status, Some(0));
    assert!(stderr.contains("warning: "), "{stderr}");
    for name in ["7", "a/b", "", "memory.limit"] {
        assert_eq!(run(0, &["--name", name]).0, Some(2), "{name:?}");
    }
    assert_eq!(run(0, &["--required", "--best-effort"]).0, Some(2));
    drop(holder);
    wait_until("the job's group is removed", || !has(&mount, &group));
}

#[test]
fn job_whose_path_does_not_fit_is_not_started() {
    let mount = Mount::new();
    let parent = "x".repeat(122);
    fs::create_dir(mount.path().join(&parent)).expect("root may create a group");
    let run = |name: &str| {
        let mut command = mount.gcgroupfs(&["run", "--group", &parent, "--compute-max", "10%"]);
        command.args(["--name", name, "--", "true"]);
        ended(command)
    };
    assert_eq!(run("fits1").0, Some(0));
    let (status, stderr) = run("no-room");
    assert_eq!(status, Some(125));
    assert!(stderr.contains("longer than 128 bytes"), "{stderr}");
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
fn group_option_says_where_the_job_is_made() {
    let mount = Mount::new();
    let run = |options: &[&str]| {
        let mut command = mount.gcgroupfs(&["run"]);
        command.args(options).arg("--").arg(driver_shell());
        DriverShell::spawn(command)
    };
    let inside = run(&["--group", "team/a"]);
    assert_eq!(members(&mount, "team/a"), [inside.pid()]);
    let named = run(&["--group", "/team/a", "--name", "night"]);
    assert_eq!(members(&mount, "team/a/night"), [named.pid()]);
    let limited = run(&["--group", "team", "--memory-limit", "1M"]);
    let group = format!("team/job-{}", limited.pid());
    assert_eq!(members(&mount, &group), [limited.pid()]);
    assert_eq!(mount.read(&group, "memory.limit"), MIB.to_string());
    drop((named, limited, inside));
    wait_until("the groups are removed", || !has(&mount, "team"));
}

#[test]
fn jobs_started_by_jobs_are_inside_them() {
    let mount = Mount::new();
    let gcgroupfs = support::artifacts().gcgroupfs();
    let mut command = mount.gcgroupfs(&["run", "--name", "outer", "--memory-limit", "1M", "--"]);
    // The first is a child of the job's command, the second replaces it.
    command.args([
        "sh",
        "-c",
        "\"$0\" run --name a -- sh -c 'echo $GCGROUP_GROUP'; exec \"$0\" run --name b -- \"$1\"",
    ]);
    command.arg(&gcgroupfs).arg(driver_shell());
    let mut shell = Governed::spawn(command);
    assert_eq!(shell.line().as_deref(), Some("outer/a"), "{}", shell.stderr());
    let banner = shell.expect("ready ");
    assert!(banner.ends_with(" 0"), "{banner}: {}", shell.stderr());
    assert_eq!(members(&mount, "outer/b"), [shell.pid()]);
    assert_eq!(shell.ask(&format!("alloc linear {}", MIB + 1)), "error 2");
    drop(shell);
    wait_until("the groups are removed", || !has(&mount, "outer"));
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

#[test]
fn rules_say_where_jobs_are_made() {
    let rules = "[[rule]]\nmatch.uid = 1000\ngroup = { name = \"batch/{gid}-x\", memory.limit = \"4M\" }\n\
                 [[rule]]\nmatch.wish = \"asked/*\"\ngroup.name = \"wishes/{wish}\"\n\
                 [[rule]]\nmatch.exe = \"**/driver_shell*\"\ngroup.name = \"gpu\"\n";
    let ruled = Ruled::new(rules);
    let mount = &ruled.mount;
    let program = program_for_all(&driver_shell(), mount.root());
    let run = |uid: u32, options: &[&str], words: &[&Path]| {
        let mut command = mount.gcgroupfs_of(uid, &["run"]);
        command.args(options).arg("--").args(words);
        Governed::spawn(command)
    };
    let start = |uid: u32, options: &[&str]| {
        let mut shell = run(uid, options, &[&program]);
        let banner = shell.expect("ready ");
        assert!(banner.ends_with(" 0"), "{banner}: {}", shell.stderr());
        shell
    };
    let alice = start(ALICE, &["--memory-limit", "1M"]);
    let group = format!("batch/1000-x/job-{}", alice.pid());
    assert_eq!(members(mount, &group), [alice.pid()]);
    assert_eq!(mount.read("batch/1000-x", "memory.limit"), (4 * MIB).to_string());
    let asked = start(BOB, &["--group", "asked/a", "--name", "mine"]);
    assert_eq!(members(mount, "wishes/asked/a/mine"), [asked.pid()]);
    let bob = start(BOB, &["--name", "direct"]);
    assert_eq!(members(mount, "gpu/direct"), [bob.pid()]);

    // The shell is in no rule, the program that it starts is: it may not escape its group by the job's.
    let words = [
        Path::new("sh"),
        Path::new("-c"),
        Path::new("\"$0\"; true"),
        &program,
    ];
    let mut escaped = run(BOB, &["--memory-limit", "1M"], &words);
    let banner = escaped.expect("ready ");
    assert!(banner.ends_with(" 802"), "{banner}");
    let mut other = run(BOB, &["--best-effort", "--memory-limit", "1M"], &words);
    let banner = other.expect("ready ");
    assert!(banner.ends_with(" 0"), "{banner}");
    let pid = banner.split(' ').nth(1).expect("a pid");
    assert_eq!(mount.read("gpu", "gcgroup.procs"), pid);
}

#[test]
fn worker_that_makes_its_job_again_after_a_kill_is_killed() {
    // The kill is that of the job's group, or after its removal that of the group above.
    for is_early in [true, false] {
        let mount = Mount::new();
        std::fs::create_dir(mount.path().join("team")).expect("root may make groups");
        let mut worker = Background::new();
        let mut main = Governed::spawn({
            let mut command = mount.gcgroupfs(&["run", "--group", "team", "--memory-limit", "64M", "--"]);
            let both = "sh -c \"$0\" sh \"$1\" \"$2\" \"$3\"; echo $GCGROUP_GROUP; read line";
            command.args(["sh", "-c", both, LAUNCHERS[0]]).arg(driver_shell());
            command.args(worker.pipes());
            command
        });
        let group = main.line().expect("the command runs");
        let began = std::time::Instant::now();
        wait_until("the worker is older than two units of start times", || {
            began.elapsed().as_millis() > 20
        });
        let kill = |group: &str| mount.write(group, "gcgroup.kill", "1");
        if is_early {
            kill(&group);
        }
        main.say("");
        assert!(main.wait().success());
        wait_until("the job's group is removed", || !has(&mount, &group));
        if !is_early {
            kill("team");
        }
        worker.say("go");
        wait_until("the worker is killed", || {
            mount.log().contains("was killed: by gcgroup.kill")
        });
    }
}

#[test]
fn job_is_addressed_by_its_name_by_its_user() {
    let mount = Mount::with(Config::default().arg("--allow-other"));
    let mut command = mount.gcgroupfs_of(ALICE, &["run", "--name", "night", "--memory-limit", "1M", "--"]);
    command.args(["sleep", "1000"]);
    let _job = Governed::spawn(command);
    let path = format!("{}/night", users_group(ALICE));
    wait_until("the job has its limit", || {
        fs::read_to_string(mount.file(&path, "memory.limit")).is_ok_and(|limit| limit == "1048576\n")
    });
    let of = |uid, arguments: &[&str]| {
        let output = mount
            .gcgroupfs_of(uid, arguments)
            .output()
            .expect("gcgroupfs runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    };
    assert_eq!(
        of(ALICE, &["get", "night/memory.limit"]).as_deref(),
        Some("1048576\n")
    );
    assert!(of(ALICE, &["set", "/gcgroup/night/memory.limit", "2M"]).is_some());
    assert_eq!(mount.read(&path, "memory.limit"), "2097152");
    for arguments in [
        &["explain", "night"][..],
        &["freeze", "--wait", "night"],
        &["thaw", "night"],
        &["wait", "--timeout", "60", "night/gcgroup.events", "frozen=0"],
        &["hold", "--freeze", "night", "--", "true"],
    ] {
        assert!(of(ALICE, arguments).is_some(), "{arguments:?}");
    }
    assert_eq!(of(BOB, &["get", "night/memory.limit"]), None);
    // A group in the root has precedence.
    fs::create_dir(mount.path().join("night")).expect("a new group");
    assert_eq!(
        of(ALICE, &["get", "night/memory.limit"]).as_deref(),
        Some("max\n")
    );
}
