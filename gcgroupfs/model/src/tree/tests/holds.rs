//! Values that processes hold on others.

use super::*;
use crate::error::Result;
use crate::file::{Node, resolve};
use crate::tree::{Caller, Holder, NewHold, ProcessId, SETTINGS, Setting, fixture};

const ONE: Holder = Holder {
    pid: 7,
    start_time: 70,
    uid: 0,
};
const TWO: Holder = Holder {
    pid: 8,
    start_time: 80,
    uid: 1000,
};

fn setting(name: &str) -> &'static Setting {
    SETTINGS.iter().find(|setting| setting.name == name).unwrap()
}

/// Holds a value of the file at `path`.
fn hold_by(world: &World, holder: Holder, caller: Caller, path: &str, text: &str) -> Result<()> {
    let Ok(Node::File(directory, file)) = resolve(&world.tree, path) else {
        panic!("{path} is no file")
    };
    let new = NewHold {
        directory,
        setting: setting(file.name),
        text,
    };
    let change = world.tree.hold(holder, caller, &[new])?;
    world.tree.finish(change);
    Ok(())
}

fn hold(world: &World, holder: Holder, path: &str, text: &str) {
    hold_by(world, holder, ROOT, path, text).unwrap();
}

fn is_frozen(world: &World, id: ProcessId, device: usize) -> bool {
    world.control(id).devices[device].gate.load(Relaxed) == Gate::Frozen as u32
}

#[test]
fn strictest_of_several_holders_is_in_force() {
    let world = World::new(1);
    let id = world.join(100);
    let limit = || world.control(id).memory_limit.load(Relaxed);
    world.store("100/memory.limit", OWNER, "4G").unwrap();
    hold(&world, ONE, "100/memory.limit", "2G");
    hold(&world, TWO, "100/memory.limit", "25%");
    assert_eq!(limit(), 2 << 30);
    world.tree.end_holder(ONE.pid, ONE.start_time);
    assert_eq!(
        world.show("100/memory.limit"),
        "2147483648\n",
        "a quarter of the GPU"
    );
    hold(&world, ONE, "100/memory.limit", "6G");
    world.tree.end_holder(TWO.pid, TWO.start_time);
    assert_eq!(limit(), 4 << 30, "the written one is stricter");
    world.store("100/memory.limit", OWNER, "max").unwrap();
    assert_eq!(limit(), 6 << 30);
    world.tree.end_holder(ONE.pid, 1);
    assert_eq!(limit(), 6 << 30, "another process with that pid");
    world.tree.end_holder(ONE.pid, ONE.start_time);
    assert_eq!(limit(), u64::MAX);
    assert!(world.tree.holders().is_empty());
}

#[test]
fn held_freeze_rings_and_ends_with_its_holder() {
    let world = World::new(2);
    let id = world.join(100);
    world.group("team");
    world.store("team/gcgroup.procs", ROOT, "100").unwrap();
    world.take_notices();
    hold(&world, ONE, "100/1/compute.freeze", "1");
    assert_eq!(
        world.take_notices(),
        [Notice::SettingsChanged(id), Notice::Ring(id)]
    );
    assert!(!is_frozen(&world, id, 0) && is_frozen(&world, id, 1));
    hold(&world, TWO, "team/compute.freeze", "1");
    assert!(is_frozen(&world, id, 0));
    assert_eq!(world.show("team/compute.freeze"), "1\n");
    world.store("team/compute.freeze", ROOT, "0").unwrap();
    assert!(is_frozen(&world, id, 0), "a write does not end a hold");
    let late = world.join(101);
    world.store("team/gcgroup.procs", ROOT, "101").unwrap();
    assert!(is_frozen(&world, late, 1));
    world.tree.end_holder(TWO.pid, TWO.start_time);
    assert!(!is_frozen(&world, id, 0) && is_frozen(&world, id, 1) && !is_frozen(&world, late, 1));
    world.tree.end_holder(ONE.pid, ONE.start_time);
    assert!(!is_frozen(&world, id, 1));
}

#[test]
fn held_priority_of_a_group_binds_every_process_in_it() {
    let world = World::new(1);
    let [id, other] = [100, 101].map(|pid| world.join(pid));
    world.group("team/a");
    world.store("team/a/gcgroup.procs", ROOT, "100").unwrap();
    world.store("team/a/gcgroup.procs", ROOT, "101").unwrap();
    world.store("100/compute.priority", ROOT, "3").unwrap();
    world.store("101/compute.priority", ROOT, "14").unwrap();
    let priorities = || [id, other].map(|id| world.control(id).devices[0].priority.load(Relaxed));
    hold(&world, ONE, "team/compute.priority", "12");
    assert_eq!(priorities(), [12, 14]);
    assert_eq!(world.show("100/compute.priority"), "12\n");
    hold(&world, TWO, "100/0/compute.priority", "13");
    assert_eq!(priorities(), [13, 14]);
    world.tree.end_holder(ONE.pid, ONE.start_time);
    assert_eq!(priorities(), [13, 14]);
    world.tree.end_holder(TWO.pid, TWO.start_time);
    assert_eq!(priorities(), [3, 14]);
}

#[test]
fn group_limit_that_is_held_bounds_grants() {
    let world = World::new(1);
    let id = world.join(100);
    world.group("team");
    world.store("team/gcgroup.procs", ROOT, "100").unwrap();
    let limit = || world.control(id).devices[0].group_limit.load(Relaxed);
    hold(&world, ONE, "team/memory.limit", "1G");
    assert_eq!(limit(), 1 << 30);
    world.tree.end_holder(ONE.pid, ONE.start_time);
    assert_eq!(limit(), u64::MAX);
}

#[test]
fn refused_hold_changes_nothing() {
    let world = World::new(1);
    let id = world.join(100);
    world.take_notices();
    for (caller, path, text, errno) in [
        (fixture::OTHER_USER, "100/compute.freeze", "1", libc::EACCES),
        (OWNER, "100/compute.freeze", "2", libc::ERANGE),
        (OWNER, "100/compute.priority", "16", libc::ERANGE),
        (OWNER, "100/compute.max", "50%", libc::EOPNOTSUPP),
    ] {
        let refused = hold_by(&world, TWO, caller, path, text).unwrap_err();
        assert_eq!(refused.errno(), errno, "{path} {text}");
    }
    let whole = Directory::process(id);
    let new = |directory, text| NewHold {
        directory,
        setting: setting("compute.freeze"),
        text,
    };
    for others in [new(Directory::ROOT, "1"), new(whole, "yes")] {
        let refused = world.tree.hold(ONE, ROOT, &[new(whole, "1"), others]);
        assert!(refused.is_err());
    }
    assert_eq!(world.take_notices(), []);
    assert!(!is_frozen(&world, id, 0));
    assert!(world.tree.holders().is_empty());
}

#[test]
fn holders_and_targets_are_bounded() {
    let world = World::new(1);
    for pid in 0..8 {
        world.join(100 + pid);
    }
    let holder = |pid, uid| Holder {
        pid,
        start_time: 1,
        uid,
    };
    let hold = |pid, caller: Caller| {
        let path = format!("{}/compute.freeze", 100 + pid % 8);
        hold_by(&world, holder(pid, caller.uid), caller, &path, "1")
    };
    for pid in 1..=256 {
        hold(pid, OWNER).unwrap();
    }
    assert_eq!(hold(257, OWNER).unwrap_err().errno(), libc::EAGAIN);
    hold(256, OWNER).unwrap();
    hold(258, ROOT).unwrap();
    world.tree.end_holder(1, 1);
    hold(257, OWNER).unwrap();
    for at in 0..256 {
        let path = format!("g{at}");
        world.group(&path);
        hold_by(&world, ONE, ROOT, &format!("{path}/compute.freeze"), "1").unwrap();
    }
    let refused = hold_by(&world, ONE, ROOT, "100/compute.freeze", "1").unwrap_err();
    assert_eq!(refused.errno(), libc::EAGAIN);
    world.tree.end_holder(257, 1);
    for pid in 200..=264 {
        world.join(pid);
        let held = hold_by(&world, TWO, OWNER, &format!("{pid}/compute.freeze"), "1");
        assert_eq!(held.is_ok(), pid < 264, "{pid}");
    }
}

#[test]
fn values_on_one_process_or_group_are_bounded() {
    let world = World::new(1);
    world.join(100);
    let hold = |pid, caller: Caller| {
        let holder = Holder {
            pid,
            start_time: 1,
            uid: caller.uid,
        };
        hold_by(&world, holder, caller, "100/compute.freeze", "1")
    };
    for pid in 1..=48 {
        hold(pid, OWNER).unwrap();
    }
    let refused = hold(49, OWNER).unwrap_err();
    assert_eq!(refused.errno(), libc::EAGAIN);
    assert_eq!(world.tree.holders().len(), 48);
    hold(48, OWNER).unwrap();
    for pid in 49..=64 {
        hold(pid, ROOT).unwrap();
    }
    assert_eq!(hold(65, ROOT).unwrap_err().errno(), libc::EAGAIN);
    world.tree.end_holder(1, 1);
    assert_eq!(hold(49, OWNER).unwrap_err().errno(), libc::EAGAIN);
    hold(65, ROOT).unwrap();
}

#[test]
fn suspension_is_held_on_the_whole_only() {
    let world = World::new(1);
    let id = world.join(100);
    let Ok(Node::Dir(device)) = resolve(&world.tree, "100/0") else {
        panic!("no directory of the device")
    };
    let held = |directory| {
        let new = NewHold {
            directory,
            setting: setting("gcgroup.suspend"),
            text: "1",
        };
        let change = world.tree.hold(ONE, ROOT, &[new])?;
        world.tree.finish(change);
        Ok::<_, crate::error::Error>(())
    };
    assert_eq!(held(device).unwrap_err().errno(), libc::EOPNOTSUPP);
    assert!(!world.tree.is_suspend_wanted(id));
    held(device.whole()).unwrap();
    assert!(world.tree.is_suspend_wanted(id));
}

#[test]
fn holds_survive_a_restart_but_not_their_holder() {
    for is_alive in [true, false] {
        let world = World::new(1);
        let id = world.join(100);
        let team = world.group("team");
        hold(&world, ONE, "100/0/compute.freeze", "1");
        hold(&world, TWO, "team/memory.limit", "1G");
        let stored = |saved: &Saved| {
            let text = serde_json::to_string(saved).unwrap();
            serde_json::from_str::<Saved>(&text).unwrap()
        };
        let process = stored(&world.tree.saved(id).unwrap());
        assert!(!process.is_default());
        let after = World::new(1);
        let groups = [(team, stored(&world.tree.saved_group(team)))];
        after.tree.restore(Saved::default(), groups.into());
        after.tree.know_holders(&process);
        assert_eq!(after.tree.holders(), [(7, 70), (8, 80)].into());
        if !is_alive {
            after.tree.end_holder(ONE.pid, ONE.start_time);
            after.tree.end_holder(TWO.pid, TWO.start_time);
        }
        let id = after.join_with(100, blocks(), process);
        assert_eq!(is_frozen(&after, id, 0), is_alive);
        let limit = if is_alive { "1073741824\n" } else { "max\n" };
        assert_eq!(after.show("team/memory.limit"), limit);
        after.tree.end_holder(ONE.pid, ONE.start_time);
        assert!(!is_frozen(&after, id, 0));
    }
}

#[test]
fn process_that_executes_another_program_stays_held() {
    let world = World::new(1);
    let id = world.join(100);
    hold(&world, ONE, "100/compute.freeze", "1");
    let saved = world.tree.leave(id, 9).unwrap();
    let again = world.join_with(100, blocks(), saved.clone());
    assert!(is_frozen(&world, again, 0));
    let saved = world.tree.leave(again, 9).unwrap();
    world.tree.end_holder(ONE.pid, ONE.start_time);
    let again = world.join_with(100, blocks(), saved);
    assert!(!is_frozen(&world, again, 0), "the holder ended meanwhile");
}

#[test]
fn explain_lists_holders_and_expired_leases() {
    let world = World::new(1);
    world.join(100);
    let team = world.group("team");
    world.store("team/gcgroup.procs", ROOT, "100").unwrap();
    hold(&world, TWO, "100/compute.freeze", "1");
    hold(&world, ONE, "team/compute.priority", "12");
    world.store("team/gcgroup.lease", ROOT, "0").unwrap();
    let id = world.tree.find(100).unwrap();
    let told = world
        .tree
        .explain(Directory::process(id), &[team].into())
        .unwrap();
    let lines: Vec<&str> = (told.sections.iter())
        .flat_map(|section| section.lines.iter().map(|line| line.text.as_str()))
        .collect();
    for wanted in [
        "100/compute.freeze 1: held by pid 8 of uid 1000, until it ends",
        "/team/compute.priority 12: held by pid 7 of uid 0, until it ends",
        "/team/compute.freeze 1: the lease of /team has expired",
        "/team/gcgroup.lease has expired: freeze: written by uid 0, pid 1",
        "gcgroupfs set team/gcgroup.lease SECONDS   (as root)",
    ] {
        assert!(lines.contains(&wanted), "{wanted}: {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("compute.freeze 0")));
}
