//! Tests the examples of gcgroupfs(5) of what a priority means.

use std::fs;

use support::{Governed, Mount, repository};

use crate::contended::long_batch;
use crate::job_weights::{Scripted, job, wait_for_shares, write};

fn busy(mount: &Mount) -> Governed {
    mount.load(&long_batch())
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
