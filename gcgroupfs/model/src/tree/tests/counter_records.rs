//! Counts of processes that end while no daemon runs.

use std::collections::BTreeMap;

use super::lasting::kept;
use super::*;
use crate::tree::add_to_ancestors;

fn again(saved: &Saved) -> Saved {
    serde_json::from_str(&serde_json::to_string(saved).unwrap()).unwrap()
}

fn launches(world: &World, path: &str) -> String {
    let stat = world.show(format!("{path}/compute.stat").trim_start_matches('/'));
    stat.lines()
        .find(|line| line.starts_with("nr_launches "))
        .unwrap()
        .to_owned()
}

#[test]
fn counts_of_dead_process_stay_in_groups_and_root() {
    let world = World::new(2);
    world.group("a/b");
    let id = world.join(100);
    world.submit(id, 1, 3);
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    world.submit(id, 1, 4);
    assert_eq!(
        launches(&world, "a"),
        "nr_launches 4",
        "counts from before the move are not the group's"
    );
    let (mut root, mut groups) = kept(&world, &["a", "a/b"]);
    let dead = again(&world.tree.saved(id).unwrap());
    add_to_ancestors(&dead, |id, add| match id {
        Some(id) => add(groups.get_mut(&id).unwrap()),
        None => add(&mut root),
    });
    let after = World::new(2);
    after.tree.restore(root, groups);
    let found = ["a", "a/b", "a/1", "a/b/1", "a/0"].map(|path| launches(&after, path));
    assert_eq!(found, [4, 4, 4, 4, 0].map(|count| format!("nr_launches {count}")));
    assert_eq!(launches(&after, ""), "nr_launches 7", "the root has all counts");
}

#[test]
fn process_that_never_returns_leaves_its_counts() {
    let world = World::new(1);
    let id = world.join(100);
    world.group("a/b");
    world.store("a/b/gcgroup.procs", ROOT, "100").unwrap();
    world.submit(id, 0, 4);
    let (root, groups) = kept(&world, &["a", "a/b"]);
    let mut saved = again(&world.tree.saved(id).unwrap());
    let after = World::new(1);
    after.tree.restore(root, groups);
    after.take_notices();
    let saved_before = saved.clone();
    after.tree.pass_to_groups((100, 7), &mut saved, 0);
    let notices = after.take_notices();
    let sums = saved_before.counts.get("").copied().unwrap();
    let mut departed = saved.clone();
    departed.exited = saved_before.exited("a/b".to_owned(), 0.into()).map(Box::new);
    assert_eq!(departed.exited.as_ref().unwrap().sums, sums);
    let departed = Notice::Departed {
        pid: 100,
        start_time: 7,
        saved: Box::new(departed),
    };
    assert_eq!(
        (&notices[0], notices.last()),
        (&departed, Some(&Notice::RootChanged))
    );
    assert_eq!(launches(&after, "a"), "nr_launches 4");
    assert_eq!(launches(&after, "a/b/0"), "nr_launches 4");
    after.tree.pass_to_groups((100, 7), &mut saved, 0);
    assert_eq!(launches(&after, "a"), "nr_launches 4", "not counted twice");
    assert_eq!(launches(&after, ""), "nr_launches 4");
}

#[test]
fn changed_counts_are_written_longest_wait_first() {
    const BUSY: u32 = 150;
    let world = World::new(1);
    world.group("a");
    let ids: Vec<_> = (1..=BUSY).map(|pid| world.join(pid)).collect();
    for pid in 1..BUSY {
        world.store("a/gcgroup.procs", ROOT, &pid.to_string()).unwrap();
    }
    let written = || {
        world.take_notices();
        world.tree.write_some_counts();
        let notices = world.take_notices().into_iter();
        let written = notices.filter_map(|notice| match notice {
            Notice::SettingsChanged(id) => Some(id),
            _ => None,
        });
        written.collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for expected in [64, 64, 22, 0] {
        let some = written();
        assert_eq!(some.len(), expected);
        all.extend(some);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 150, "including the one in no group");
    ids.iter().for_each(|id| world.submit(*id, 0, 1));
    let first = written();
    first.iter().for_each(|id| world.submit(*id, 0, 1));
    let second = written();
    assert!(
        second.iter().all(|id| !first.contains(id)),
        "those that waited come first"
    );
    world.take_notices();
    world.tree.write_all_counts();
    let rest = world.take_notices();
    assert_eq!(rest.len(), 150 - second.len());
}

#[test]
fn root_keeps_counts_of_processes_in_no_group() {
    let world = World::new(2);
    let (gone, id) = (world.join(100), world.join(101));
    world.submit(gone, 0, 3);
    world.submit(id, 1, 4);
    world.take_notices();
    world.tree.leave(gone, 0);
    assert!(
        world.take_notices().contains(&Notice::RootChanged),
        "the root's record must be written"
    );
    let mut root = again(&world.tree.saved_root());
    let dead = again(&world.tree.saved(id).unwrap());
    add_to_ancestors(&dead, |place, add| {
        assert_eq!(place, None);
        add(&mut root);
    });
    let after = World::new(1);
    after.tree.restore(root, BTreeMap::new());
    assert_eq!(launches(&after, ""), "nr_launches 7");
    after.take_notices();
    let idle = after.join(102);
    after.tree.leave(idle, 0);
    assert!(
        !after.take_notices().contains(&Notice::RootChanged),
        "there is nothing new"
    );
    assert_eq!(again(&after.tree.saved_root()), after.tree.saved_root());
}
