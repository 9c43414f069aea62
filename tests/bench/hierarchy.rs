//! A thousand groups of eight processes against ten: an operation on one group must not depend on the number
//! of others.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use support::{Mount, wait_until};

use crate::crowd::{Crowd, list};
use crate::files::{read, samples};
use crate::report::{Report, quantile};

const FEW: usize = 10;
const MANY: usize = 1000;
/// Processes in each group. With ten, two descriptors per process would reach a daemon's usual limit.
const MEMBERS: usize = 8;

pub(crate) fn run(report: &mut Report) {
    let few = measure(FEW);
    let many = measure(MANY);
    type Subject = (&'static str, fn(&Measured) -> f64);
    let subjects: [Subject; 4] = [
        ("cat of a group", |measured| measured.cat),
        ("ls of a group", |measured| measured.ls),
        ("mkdir and rmdir of a group", |measured| measured.mkdir),
        ("moving a process", |measured| measured.moving),
    ];
    for (what, of) in subjects {
        let detail = json!({ "usec_few": of(&few), "usec_many": of(&many) });
        report.add(
            &format!("{what}, {MANY} of {MEMBERS} processes over {FEW}"),
            of(&many) / of(&few),
            "times",
            2.0,
            detail,
        );
    }
    empty_groups(report);
    let detail = json!({ "usec_few": few.moving });
    report.add("moving a process", many.moving, "usec", 1000.0, detail);
}

/// Compares reads of the root's sums with and without empty groups.
fn empty_groups(report: &mut Report) {
    let mount = Mount::new();
    let read_all = || {
        let files = ["memory.current", "memory.stat", "compute.stat"];
        let read_each = || files.iter().for_each(|file| read(&mount.path().join(file)));
        quantile(samples(1000, read_each), 0.5)
    };
    let without = read_all();
    for number in 0..MANY {
        fs::create_dir(mount.path().join(format!("group-{number}"))).expect("a group");
    }
    let with = read_all();
    report.add(
        &format!("cat of three sums of the root, {MANY} empty groups over none"),
        with / without,
        "times",
        1.5,
        json!({ "usec_without": without, "usec_with": with }),
    );
}

/// Medians, microseconds.
struct Measured {
    cat: f64,
    ls: f64,
    mkdir: f64,
    moving: f64,
}

fn measure(count: usize) -> Measured {
    let mount = Mount::new();
    let crowd = Crowd::new(&mount.socket(), count * MEMBERS);
    wait_until("every process is registered", || {
        mount.read(".", "gcgroup.procs").lines().count() == count * MEMBERS
    });
    let pids = crowd.pids();
    let groups: Vec<PathBuf> = (0..count)
        .map(|n| mount.path().join(format!("group-{n}")))
        .collect();
    for (group, members) in groups.iter().zip(pids.chunks(MEMBERS)) {
        fs::create_dir(group).expect("a group");
        members.iter().for_each(|pid| put(group, *pid));
    }
    let mut next = groups.iter().cycle();
    let mut each = || next.next().expect("a cycle has a next element");
    let cat = quantile(samples(2000, || read(&each().join("memory.current"))), 0.5);
    let ls = quantile(samples(1000, || assert!(list(each()) > 5)), 0.5);
    let mkdir = quantile(
        samples(1000, || {
            let path = each().join("child");
            fs::create_dir(&path).expect("the path is free");
            fs::remove_dir(&path).expect("the group is empty");
        }),
        0.5,
    );
    let mut movers = pids.iter().cycle();
    let moving = samples(2000, || {
        put(each(), *movers.next().expect("a cycle has a next element"))
    });
    Measured {
        cat,
        ls,
        mkdir,
        moving: quantile(moving, 0.5),
    }
}

fn put(group: &Path, pid: i32) {
    fs::write(group.join("gcgroup.procs"), format!("{pid}\n")).expect("the process can be moved");
}
