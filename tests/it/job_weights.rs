//! Tests what a priority means that is written to a process of a job, by the simulator's truth.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Governed, Mount, artifacts, wait_until};

use crate::contended::{long_batch, wait_for_used};

/// Starts a busy job with these options of `gcgroupfs run`.
pub(crate) fn job(mount: &Mount, options: &[&str]) -> Governed {
    let mut command = mount.gcgroupfs(&["run"]);
    command.args(options).arg("--").arg(artifacts().load());
    command.args(long_batch());
    let mut job = Governed::spawn(command);
    job.expect("ready");
    job
}

/// A job of several programs, which are killed when it is dropped.
pub(crate) struct Scripted {
    job: Governed,
    pub(crate) pids: Vec<i32>,
}

impl Scripted {
    /// Starts a job whose script starts busy programs with `"$@"`, `gcgroupfs` being `"$0"`, and waits until
    /// `number` of them are governed in this group: that of the job or one in it.
    pub(crate) fn new(mount: &Mount, group: &str, script: &str, number: usize) -> Self {
        let name = group.split('/').next().unwrap_or(group);
        let mut command = mount.gcgroupfs(&["run", "--name", name, "--", "sh", "-c", script]);
        command
            .args([artifacts().gcgroupfs(), artifacts().load()])
            .args(long_batch());
        let mut scripted = Self {
            job: Governed::spawn(command),
            pids: Vec::new(),
        };
        let procs = mount.path().join(group).join("gcgroup.procs");
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

/// Waits until each process is shown the share that is expected, within one percent, and then until it has
/// that by the simulator's truth.
#[track_caller]
pub(crate) fn wait_for_shares(mount: &Mount, shares: &[(i32, u64)]) {
    wait_until("the shares are as expected", || {
        shares.iter().all(|(pid, percent)| {
            let share = mount.number(*pid, "compute.stat", "share_percent");
            share.abs_diff(*percent) <= 1
        })
    });
    let parts = shares.iter().map(|(pid, percent)| (vec![*pid], *percent));
    wait_for_used(mount, &parts.collect::<Vec<_>>());
}

/// Checks what `compute.priority` shows in each directory.
#[track_caller]
fn shows<const N: usize>(mount: &Mount, directories: [&dyn ToString; N], priorities: [u32; N]) {
    let shown = directories.map(|directory| mount.read(directory.to_string(), "compute.priority"));
    assert_eq!(shown, priorities.map(|priority| priority.to_string()));
}

/// Kills the daemon and starts it again.
fn restart(mount: &mut Mount, pids: &[i32]) {
    mount.kill9();
    mount.restart();
    wait_until("the processes have registered again", || {
        pids.iter().all(|pid| mount.governs(*pid))
    });
}

#[track_caller]
fn set(mount: &Mount, pid: i32, priority: &str) {
    let file = format!("{pid}/compute.priority");
    let status = mount.gcgroupfs(&["set", &file, priority]).status();
    assert!(status.expect("the command starts").success());
}

pub(crate) fn write(mount: &Mount, directory: impl ToString, priority: &str) {
    mount.write(directory, "compute.priority", priority);
}

#[test]
fn priority_of_a_jobs_only_process_is_the_jobs_weight() {
    let mut mount = Mount::new();
    let (job, plain) = (job(&mount, &["--name", "job"]), mount.load(&long_batch()));
    let (pid, beside) = (job.pid(), plain.pid());
    let shares = |mount: &Mount, percent| wait_for_shares(mount, &[(pid, percent), (beside, 100 - percent)]);
    shares(&mount, 50);
    write(&mount, pid, "7");
    shows(&mount, [&pid, &"job", &"job/0"], [7; 3]);
    shares(&mount, 67);
    set(&mount, pid, "default");
    shares(&mount, 50);
    set(&mount, pid, "9");
    shares(&mount, 33);
    restart(&mut mount, &[pid, beside]);
    shows(&mount, [&pid, &"job", &beside], [9, 9, 8]);
    shares(&mount, 33);
    write(&mount, pid, "default");
    write(&mount, "job", "6");
    shows(&mount, [&pid, &"job"], [6; 2]);
    shares(&mount, 80);
    // A process in no group.
    write(&mount, beside, "6");
    shares(&mount, 50);
    set(&mount, beside, "7");
    shares(&mount, 67);
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
    shows(&mount, [&job.pids[0], &job.pids[1], &"script"], [7, 8, 8]);
    shares([50, 33, 17]);
    set(&mount, job.pids[1], "7");
    shows(&mount, [&job.pids[0], &job.pids[1], &"script"], [7; 3]);
    shares([33, 33, 33]);
}

#[test]
fn priority_of_the_started_process_is_the_jobs_weight() {
    let mut mount = Mount::new();
    let beside = job(&mount, &["--name", "beside"]);
    let job = Scripted::new(&mount, "script", "\"$@\" & exec \"$@\"", 2);
    let started = job.job.pid();
    let child = *job
        .pids
        .iter()
        .find(|pid| **pid != started)
        .expect("two processes");
    let all = [beside.pid(), started, child];
    let shares = |mount: &Mount, percents: [u64; 3]| {
        wait_for_shares(mount, &all.into_iter().zip(percents).collect::<Vec<_>>());
    };
    shares(&mount, [50, 25, 25]);
    write(&mount, started, "7");
    for _ in 0..2 {
        shows(&mount, [&started, &child, &"script"], [7, 8, 7]);
        shares(&mount, [33, 44, 22]);
        restart(&mut mount, &all);
    }
    set(&mount, started, "default");
    set(&mount, child, "7");
    shows(&mount, [&started, &child, &"script"], [8, 7, 8]);
    shares(&mount, [50, 17, 33]);
}

#[test]
fn priority_in_a_job_started_by_a_job_is_the_weight_of_both() {
    let mut mount = Mount::new();
    let beside = job(&mount, &["--name", "beside"]);
    for script in [
        "\"$0\" run --name inner -- \"$@\" & wait",
        "exec \"$0\" run --name inner -- \"$@\"",
    ] {
        let job = Scripted::new(&mount, "outer/inner", script, 1);
        let all = [job.pids[0], beside.pid()];
        let shares = |mount: &Mount, percent| {
            wait_for_shares(mount, &[(all[0], percent), (all[1], 100 - percent)]);
        };
        shares(&mount, 50);
        write(&mount, all[0], "7");
        for _ in 0..2 {
            shows(
                &mount,
                [&all[0], &"outer/inner", &"outer", &"beside"],
                [7, 7, 7, 8],
            );
            shares(&mount, 67);
            restart(&mut mount, &all);
        }
        drop(job);
        wait_until("the job has ended", || !mount.path().join("outer").exists());
    }
}

#[test]
fn priority_of_a_job_in_a_named_group_counts_there_only() {
    let mount = Mount::new();
    let beside = job(&mount, &["--name", "beside"]);
    let night = job(&mount, &["--group", "team", "--name", "night"]);
    let other = job(&mount, &["--group", "team", "--name", "other"]);
    let all = [&beside, &night, &other].map(Governed::pid);
    write(&mount, night.pid(), "7");
    shows(&mount, [&"team/night", &"team/other", &"team"], [7, 8, 8]);
    wait_for_shares(&mount, &all.into_iter().zip([50, 33, 17]).collect::<Vec<_>>());
}
