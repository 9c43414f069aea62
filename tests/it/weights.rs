//! Tests what a priority means for the job, group or process that it is written to, and the examples of
//! gcgroupfs(5).

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Governed, Mount, artifacts, repository, wait_until};

use crate::contended::BATCH;

fn busy(mount: &Mount) -> Governed {
    mount.load(&BATCH)
}

/// Starts a busy job with these options of `gcgroupfs run`.
fn job(mount: &Mount, options: &[&str]) -> Governed {
    let mut command = mount.gcgroupfs(&["run"]);
    command.args(options).arg("--").arg(artifacts().load());
    command.args(BATCH);
    let mut job = Governed::spawn(command);
    job.expect("ready");
    job
}

/// A job of several programs, which are killed when it is dropped.
struct Scripted {
    job: Governed,
    pids: Vec<i32>,
}

impl Scripted {
    /// Starts a job whose script starts busy programs with `"$@"`, and waits until `number` of them are
    /// governed.
    fn new(mount: &Mount, name: &str, script: &str, number: usize) -> Self {
        let mut command = mount.gcgroupfs(&["run", "--name", name, "--", "sh", "-c", script, "sh"]);
        command.arg(artifacts().load()).args(BATCH);
        let mut scripted = Self {
            job: Governed::spawn(command),
            pids: Vec::new(),
        };
        let procs = mount.path().join(name).join("gcgroup.procs");
        wait_until("the programs of the job are governed", || {
            let text = fs::read_to_string(&procs).unwrap_or_default();
            scripted.pids = text.lines().map(|pid| pid.parse().expect("a pid")).collect();
            scripted.pids.len() == number
        });
        scripted
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        for pid in &self.pids {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
    }
}

/// Waits until each process is shown the share that is expected, within one percent.
#[track_caller]
fn wait_for_shares(mount: &Mount, shares: &[(i32, u64)]) {
    wait_until("the shares are as expected", || {
        shares.iter().all(|(pid, percent)| {
            let share = mount.number(*pid, "compute.stat", "share_percent");
            share.abs_diff(*percent) <= 1
        })
    });
}

#[track_caller]
fn set(mount: &Mount, pid: i32, priority: &str) {
    let file = format!("{pid}/compute.priority");
    let status = mount.gcgroupfs(&["set", &file, priority]).status();
    assert!(status.expect("the command starts").success());
}

fn write(mount: &Mount, directory: impl ToString, priority: &str) {
    mount.write(directory, "compute.priority", priority);
}

#[test]
fn priority_of_a_jobs_only_process_is_the_jobs_weight() {
    let mount = Mount::new();
    let (job, plain) = (job(&mount, &["--name", "job"]), busy(&mount));
    let (pid, beside) = (job.pid(), plain.pid());
    let shares = |percent| wait_for_shares(&mount, &[(pid, percent), (beside, 100 - percent)]);
    shares(50);
    write(&mount, pid, "7");
    shares(67);
    set(&mount, pid, "default");
    shares(50);
    set(&mount, pid, "9");
    shares(33);
    write(&mount, pid, "default");
    write(&mount, "job", "6");
    shares(80);
    // A process in no group.
    write(&mount, beside, "6");
    shares(50);
    set(&mount, beside, "7");
    shares(67);
}

#[test]
fn option_priority_is_the_jobs_weight() {
    let mount = Mount::new();
    let jobs = [
        job(&mount, &["--priority", "7"]),
        job(&mount, &["--name", "other"]),
        job(&mount, &["--name", "third", "--priority", "8"]),
    ];
    let shares = jobs.iter().map(Governed::pid).zip([50, 25, 25]);
    wait_for_shares(&mount, &shares.collect::<Vec<_>>());
}

#[test]
fn common_priority_of_a_jobs_children_is_its_weight() {
    let mount = Mount::new();
    let beside = job(&mount, &["--name", "beside"]);
    let job = Scripted::new(&mount, "script", "\"$@\" & \"$@\" & wait", 2);
    let shares = |percents: [u64; 3]| {
        let each = [beside.pid(), job.pids[0], job.pids[1]].into_iter().zip(percents);
        wait_for_shares(&mount, &each.collect::<Vec<_>>());
    };
    shares([50, 25, 25]);
    // That of one is its weight among the children.
    write(&mount, job.pids[0], "7");
    shares([50, 33, 17]);
    set(&mount, job.pids[1], "7");
    shares([33, 33, 33]);
}

#[test]
fn priority_of_the_started_process_is_the_jobs_weight() {
    let mount = Mount::new();
    let beside = job(&mount, &["--name", "beside"]);
    let job = Scripted::new(&mount, "script", "\"$@\" & exec \"$@\"", 2);
    let started = job.job.pid();
    let child = *job
        .pids
        .iter()
        .find(|pid| **pid != started)
        .expect("two processes");
    let shares = |percents: [u64; 3]| {
        let each = [beside.pid(), started, child].into_iter().zip(percents);
        wait_for_shares(&mount, &each.collect::<Vec<_>>());
    };
    shares([50, 25, 25]);
    write(&mount, started, "7");
    shares([33, 44, 22]);
    set(&mount, started, "default");
    set(&mount, child, "7");
    shares([50, 17, 33]);
}

/// Starts `number` busy processes in a group, which is made if there is none.
fn members(mount: &Mount, group: &str, number: usize) -> Vec<Governed> {
    fs::create_dir_all(mount.path().join(group)).expect("root may create a group");
    let jobs: Vec<Governed> = (0..number).map(|_| busy(mount)).collect();
    for job in &jobs {
        mount.write(group, "gcgroup.procs", &job.pid().to_string());
    }
    jobs
}

/// Checks that gcgroupfs(5) has an example, and waits until the processes have these shares.
#[track_caller]
fn example(mount: &Mount, text: &str, shares: &[(&[i32], u64)]) {
    let manual = repository().join("gcgroupfs/src/manual/gcgroupfs.5.in");
    let manual = fs::read_to_string(manual).expect("the manual is readable");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(manual.lines().any(|line| words(line) == text), "{text}");
    let each = shares
        .iter()
        .flat_map(|(pids, percent)| pids.iter().map(|pid| (*pid, *percent)));
    wait_for_shares(mount, &each.collect::<Vec<_>>());
}

fn pids(jobs: &[Governed]) -> Vec<i32> {
    jobs.iter().map(Governed::pid).collect()
}

#[test]
fn manuals_examples_of_groups_hold() {
    let mount = Mount::new();
    let (a, b) = (members(&mount, "a", 1), members(&mount, "b", 5));
    let (a, b) = ((pids(&a), a), (pids(&b), b));
    let text = "users a (one process) and b (five) a 1/2; of b each 1/10";
    example(&mount, text, &[(&a.0, 50), (&b.0, 10)]);
    write(&mount, "b", "9");
    let text = "the same, b/compute.priority 9 a 2/3; of b each 1/15";
    example(&mount, text, &[(&a.0, 67), (&b.0, 7)]);
}

#[test]
fn manuals_examples_of_jobs_hold() {
    let mount = Mount::new();
    let one = [job(&mount, &["--name", "one"])];
    let other = [job(&mount, &["--name", "other"])];
    let two = Scripted::new(&mount, "two", "\"$@\" & \"$@\" & wait", 2);
    let (one, other) = ((pids(&one), one), (pids(&other), other));
    let text = "three jobs, one of two processes 1/3, 1/3, and 1/6 each";
    example(&mount, text, &[(&one.0, 33), (&other.0, 33), (&two.pids, 17)]);
    write(&mount, one.0[0], "7");
    let text = "the same, 7 written to the process of the first 1/2, 1/4, and 1/8 each";
    example(&mount, text, &[(&one.0, 50), (&other.0, 25), (&two.pids, 12)]);
}

#[test]
fn manuals_examples_of_a_process_in_the_root_hold() {
    let mount = Mount::new();
    let root = busy(&mount);
    let a = members(&mount, "a", 2);
    let text = "a process in the root, group a of two 1/2; 1/4 each";
    example(&mount, text, &[(&[root.pid()], 50), (&pids(&a), 25)]);
    let mount = Mount::new();
    let root = busy(&mount);
    let (a, b) = (members(&mount, "a", 1), members(&mount, "a/b", 2));
    let text = "a process in the root, group a of one and a/b of two 1/2; 1/4; of b each 1/8";
    example(
        &mount,
        text,
        &[(&[root.pid()], 50), (&pids(&a), 25), (&pids(&b), 12)],
    );
}
