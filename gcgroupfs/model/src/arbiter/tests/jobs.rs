//! Weights of groups and jobs in a tree, and what is told of them.

use std::collections::BTreeSet;

use super::world::{MSEC, Play};
use crate::file;
use crate::tree::fixture::{ROOT, identity, new_group};
use crate::tree::{Directory, GroupId, Job, Origins, Owner, ProcessId, Settings, Transient};

/// Makes the group of a job whose command is the process with this pid.
fn job(play: &Play, name: &str, pid: u32) -> GroupId {
    job_in(play, Directory::ROOT, name, pid)
}

fn job_in(play: &Play, parent: Directory, name: &str, pid: u32) -> GroupId {
    let transient = Transient {
        owner: Owner { uid: 0, gid: 0 },
        settings: Settings::default(),
        origins: Origins::default(),
        job: Some(Job {
            pid,
            start_time: identity(pid).start_time,
            wish: None,
            is_inherited: false,
            has_ended: false,
        }),
        is_requested: true,
    };
    let tree = &play.world.tree;
    tree.make_job_group(&new_group(parent, name), transient).unwrap()
}

/// Registers a process with work and moves it into a group.
fn member(play: &Play, group: &str, pid: u32) -> ProcessId {
    let id = play.join(pid, 8);
    play.world
        .store(&format!("{pid}/compute.priority"), ROOT, "default")
        .unwrap();
    let procs = format!("{group}/gcgroup.procs");
    play.world
        .store(procs.trim_start_matches('/'), ROOT, &pid.to_string())
        .unwrap();
    play.begins(id);
    id
}

/// Returns the shares that `compute.stat` shows, percent.
fn shares<const N: usize>(play: &mut Play, pids: [u32; N]) -> [u64; N] {
    play.after(MSEC);
    pids.map(|pid| {
        let stat = play.world.show(&format!("{pid}/compute.stat"));
        let share = stat.lines().find_map(|line| line.strip_prefix("share_percent "));
        share.unwrap().parse().unwrap()
    })
}

#[test]
fn priority_of_a_jobs_command_is_the_groups_weight() {
    let mut play = Play::new(1);
    job(&play, "job", 100);
    member(&play, "job", 100);
    member(&play, "", 200);
    assert_eq!(shares(&mut play, [100, 200]), [50, 50]);
    let set = |play: &Play, path: &str, value| play.world.store(path, ROOT, value).unwrap();
    set(&play, "100/compute.priority", "6");
    assert_eq!(shares(&mut play, [100, 200]), [80, 20]);
    let shown = |play: &Play| {
        ["100", "job", "job/0"].map(|path| play.world.show(&format!("{path}/compute.priority")))
    };
    assert_eq!(shown(&play), ["6\n"; 3]);
    set(&play, "100/compute.priority", "default");
    assert_eq!(shown(&play), ["8\n"; 3]);
    set(&play, "job/compute.priority", "9");
    assert_eq!(shares(&mut play, [100, 200]), [33, 67]);
    set(&play, "job/compute.priority", "default");
    // Another process of the job: its priority counts in the job only.
    member(&play, "job", 101);
    set(&play, "101/compute.priority", "9");
    assert_eq!(shares(&mut play, [100, 101, 200]), [33, 17, 50]);
    set(&play, "100/compute.priority", "9");
    assert_eq!(shares(&mut play, [100, 101, 200]), [17, 17, 67]);
}

#[test]
fn priority_of_a_job_in_a_job_is_the_weight_of_both() {
    let mut play = Play::new(1);
    let outer = job(&play, "outer", 90);
    job_in(&play, Directory::of(Some(outer)), "inner", 100);
    member(&play, "outer/inner", 100);
    member(&play, "", 200);
    let set = |play: &Play, path: &str, value| play.world.store(path, ROOT, value).unwrap();
    set(&play, "100/compute.priority", "7");
    assert_eq!(shares(&mut play, [100, 200]), [67, 33]);
    // Beside another process of the outer job it counts there only.
    member(&play, "outer", 101);
    assert_eq!(shares(&mut play, [100, 101, 200]), [33, 17, 50]);
    // A group that is no job's has a priority of its own.
    play.world.group("outer/team");
    set(&play, "outer/team/gcgroup.procs", "101");
    set(&play, "101/compute.priority", "9");
    assert_eq!(shares(&mut play, [100, 101, 200]), [44, 22, 33]);
    assert_eq!(play.world.show("outer/compute.priority"), "7\n");
}

#[test]
fn common_priority_of_a_jobs_processes_is_the_groups_weight() {
    let mut play = Play::new(1);
    // The command itself does not use the GPU.
    job(&play, "job", 100);
    member(&play, "job", 101);
    member(&play, "job", 102);
    member(&play, "", 200);
    let set = |play: &Play, pid: u32, value: &str| {
        let file = format!("{pid}/compute.priority");
        play.world.store(&file, ROOT, value).unwrap();
    };
    set(&play, 101, "9");
    assert_eq!(shares(&mut play, [101, 102, 200]), [17, 33, 50]);
    set(&play, 102, "9");
    assert_eq!(shares(&mut play, [101, 102, 200]), [17, 17, 67]);
}

#[test]
fn process_in_another_group_has_its_priority_among_its_members_only() {
    let mut play = Play::new(1);
    play.world.group("team/inner");
    member(&play, "team", 100);
    member(&play, "team/inner", 101);
    member(&play, "", 200);
    play.world.store("100/compute.priority", ROOT, "7").unwrap();
    assert_eq!(shares(&mut play, [100, 101, 200]), [33, 17, 50]);
    play.world.store("compute.policy", ROOT, "strict").unwrap();
    assert_eq!(shares(&mut play, [100, 101, 200]), [50, 0, 50]);
}

#[test]
fn explanation_names_the_levels_that_decide_the_share() {
    let mut play = Play::new(1);
    let team = play.world.group("team");
    let inner = play.world.group("team/inner");
    member(&play, "team/inner", 100);
    member(&play, "team", 101);
    member(&play, "", 200);
    assert_eq!(shares(&mut play, [100, 101, 200]), [25, 25, 50]);
    let told = |play: &Play, pid: &str| {
        let Ok(file::Node::Dir(directory)) = file::resolve(&play.world.tree, pid) else {
            panic!("{pid}")
        };
        let explanation = play.world.tree.explain(directory, &BTreeSet::from([team, inner]));
        let lines = explanation
            .unwrap()
            .sections
            .into_iter()
            .flat_map(|section| section.lines);
        let mut texts = lines.map(|line| line.text);
        texts.find(|text| text.starts_with("share of ")).unwrap()
    };
    assert_eq!(
        told(&play, "100"),
        "share of GPU 0 25 %: in the root /team has 50 % by priority 8 beside 1 with work, \
         in /team /team/inner has 50 % by priority 8 beside 1 with work"
    );
    assert_eq!(
        told(&play, "200"),
        "share of GPU 0 50 %: in the root the process has 50 % by priority 8 beside 1 with work"
    );
}
