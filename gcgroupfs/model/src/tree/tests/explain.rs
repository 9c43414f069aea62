//! Explanations: what is in force, what was refused, and what an asker may see.

use std::collections::BTreeSet;

use super::*;
use crate::file;
use crate::tree::{Explanation, GroupId, ProcessId};

fn explain(world: &World, path: &str, visible: &[GroupId]) -> Explanation {
    let Ok(file::Node::Dir(directory)) = file::resolve(&world.tree, path) else {
        panic!("{path}")
    };
    let visible: BTreeSet<GroupId> = visible.iter().copied().collect();
    world.tree.explain(directory, &visible).unwrap()
}

fn lines<'a>(explanation: &'a Explanation, title: &str) -> Vec<&'a str> {
    let section = explanation.sections.iter().find(|section| section.title == title);
    let lines = section.map_or(&[][..], |section| &section.lines);
    lines.iter().map(|line| line.text.as_str()).collect()
}

/// Lets the process count refusals as the hook does, and ring.
fn refuse(world: &World, id: ProcessId, bytes: u64, by: [u64; 3]) {
    let usage = world.usage(id);
    usage.refused_bytes.store(bytes, Relaxed);
    usage.devices[0].nr_oom.fetch_add(by[0], Relaxed);
    usage.nr_oom.fetch_add(by[1], Relaxed);
    usage.devices[0].nr_alloc_fail.fetch_add(by[2], Relaxed);
    world.tree.rung(id);
}

#[test]
fn refusals_are_noted_once_with_their_limit() {
    let world = World::new(1);
    let id = world.join(100);
    world.store("100/memory.limit", ROOT, "3M").unwrap();
    world.store("100/0/memory.limit", ROOT, "2M").unwrap();
    let refusals = || {
        let explanation = explain(&world, "100", &[]);
        lines(&explanation, "Last refusals")
            .iter()
            .map(|line| (*line).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(refusals(), [""; 0]);
    // The count of failures comes last: until then nothing is noted.
    refuse(&world, id, 5 << 20, [1, 0, 0]);
    assert_eq!(refusals(), [""; 0]);
    refuse(&world, id, 5 << 20, [0, 0, 1]);
    let device = "memory.limit of the process on the GPU 2 MiB, used 0 B";
    assert_eq!(refusals(), [format!("refused 5 MiB on GPU 0: {device}")]);
    refuse(&world, id, 4 << 20, [0, 1, 1]);
    assert_eq!(
        refusals()[0],
        "refused 4 MiB on GPU 0: memory.limit of the process 3 MiB, used 0 B"
    );
    refuse(&world, id, 1 << 20, [3, 0, 3]);
    assert_eq!(
        refusals()[0],
        format!("refused 3 allocations, the last of 1 MiB on GPU 0: {device}")
    );
    refuse(&world, id, 1 << 20, [0, 0, 1]);
    assert!(
        refusals()[0].starts_with("refused on GPU 0: not by a limit"),
        "{:?}",
        refusals()
    );
    assert_eq!(refusals().len(), 4);
    for size in 1..40 {
        refuse(&world, id, size, [1, 0, 1]);
    }
    assert_eq!(refusals().len(), 8);
    assert!(refusals()[0].starts_with("refused 39 B"), "{:?}", refusals());
}

#[test]
fn counts_from_before_the_registration_are_no_news() {
    let world = World::new(1);
    let id = world.join(100);
    world.usage(id).devices[0].nr_oom.store(7, Relaxed);
    world.usage(id).devices[0].nr_alloc_fail.store(7, Relaxed);
    let blocks = world.tree.blocks(id).unwrap();
    let identity = world.tree.identity(id).unwrap();
    let saved = world.tree.saved(id).unwrap();
    world.tree.leave(id, 0);
    let id = world.tree.join(identity, blocks, saved);
    world.tree.rung(id);
    assert_eq!(lines(&explain(&world, "100", &[]), "Last refusals"), [""; 0]);
}

#[test]
fn nearest_value_that_inherits_is_in_force() {
    let world = World::new(2);
    world.join(100);
    let (team, job) = (world.group("team"), world.group("team/job"));
    world.store("team/job/gcgroup.procs", ROOT, "100").unwrap();
    for (file, value) in [
        ("team/compute.priority", "9"),
        ("team/job/1/compute.priority", "10"),
        ("team/memory.limit", "8G"),
        ("team/job/memory.limit", "4G"),
        ("100/0/memory.limit", "max"),
        ("team/compute.freeze", "0"),
    ] {
        world.store(file, ROOT, value).unwrap();
    }
    let in_force = |visible: &[GroupId]| {
        let explanation = explain(&world, "100", visible);
        lines(&explanation, "Limits and settings in force").join("\n")
    };
    let by = format!("written by uid 0, pid {}", ROOT.pid);
    assert_eq!(
        in_force(&[team, job]),
        format!(
            "/team/job/memory.limit 4 GiB (used 0 B): {by}\n\
             /team/memory.limit 8 GiB (used 0 B): {by}\n\
             memory.swap.max 0: memory cannot move to the host\n\
             /team/job/1/compute.priority 10: {by}\n\
             /team/compute.priority 9: {by}\n\
             compute.policy weighted: for all processes"
        )
    );
    let hidden = in_force(&[]);
    assert!(
        !hidden.contains("team") && hidden.contains("(hidden group)/memory.limit 8 GiB"),
        "{hidden}"
    );
    // The process's own hides the groups' on all devices.
    world.store("100/compute.priority", OWNER, "12").unwrap();
    let text = in_force(&[team, job]);
    assert_eq!(text.matches("compute.priority").count(), 1, "{text}");
    assert!(text.contains("100/compute.priority 12"), "{text}");
}

#[test]
fn advice_names_the_limits_that_bind_now() {
    let world = World::new(2);
    let id = world.join(100);
    let job = world.group("job");
    world.store("job/gcgroup.procs", ROOT, "100").unwrap();
    world.store("100/memory.limit", OWNER, "3M").unwrap();
    world.store("job/memory.limit", ROOT, "4M").unwrap();
    refuse(&world, id, 5 << 20, [0, 1, 1]);
    let advice = || {
        let explanation = explain(&world, "100", &[job]);
        let lines = lines(&explanation, "What can be done").into_iter();
        let lines = lines.filter(|line| !line.contains("--swap")).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let process = format!(
        "gcgroupfs set 100/memory.limit SIZE   (as uid {} or root)",
        OWNER.uid
    );
    let group = "gcgroupfs set job/memory.limit SIZE   (as root)";
    assert_eq!(advice(), [&process, group]);
    world.store("100/memory.limit", OWNER, "8M").unwrap();
    assert_eq!(advice(), [group]);
    world.store("job/memory.limit", ROOT, "5M").unwrap();
    assert_eq!(advice(), ["5 MiB fits now: try again"]);
    // Another GPU's limit does not bind.
    world.store("100/1/memory.limit", OWNER, "1M").unwrap();
    assert_eq!(advice(), ["5 MiB fits now: try again"]);
    world.store("100/0/memory.limit", ROOT, "1M").unwrap();
    assert_eq!(
        advice(),
        ["gcgroupfs set 100/0/memory.limit SIZE   (as root, because root has set it)"]
    );
}

#[test]
fn explanation_of_forged_counts_is_bounded() {
    let world = World::new(2);
    let id = world.join(100);
    for word in [u64::MAX, 1, 1 << 63, 0, u64::MAX] {
        world.fill_usage(id, word);
        world.usage(id).refused_bytes.store(word, Relaxed);
        world.usage(id).devices[1].nr_waiting.store(u32::MAX, Relaxed);
        world.tree.rung(id);
        let explanation = explain(&world, "100", &[]);
        let text = serde_json::to_string(&explanation).unwrap();
        assert!(text.len() < 8192, "{text}");
    }
}

#[test]
fn root_and_gone_processes_are_not_explained() {
    let world = World::new(1);
    let id = world.join(100);
    let directory = Directory::process(id);
    world.tree.leave(id, 0);
    let none = BTreeSet::new();
    assert_eq!(world.tree.explain(directory, &none), Err(Error::Gone));
    assert!(matches!(
        world.tree.explain(Directory::ROOT, &none),
        Err(Error::NotSupported(_))
    ));
}
