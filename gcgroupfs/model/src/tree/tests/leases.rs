//! Leases of groups.

use std::time::Duration;

use super::*;
use crate::tree::fixture::set_uptime;
use crate::tree::{KillCause, Killer, ProcessId};

/// Time of the tests' start on the clock since boot, seconds.
const NOW: u64 = 86_400;

fn at(seconds: u64) {
    set_uptime(Duration::from_secs(NOW + seconds));
}

fn expire(world: &World) -> Vec<(String, &'static str)> {
    let (expired, _) = world.tree.expire_leases();
    let expired = expired.into_iter();
    expired.map(|expired| (expired.path, expired.action)).collect()
}

/// Returns a world with a process of the owner in the group `team/job`.
fn world() -> (World, ProcessId) {
    at(0);
    let world = World::new(1);
    world.group("team/job");
    let id = world.join(100);
    world.store("team/job/gcgroup.procs", ROOT, "100").unwrap();
    (world, id)
}

fn is_frozen(world: &World, id: ProcessId) -> bool {
    world.control(id).devices[0].gate.load(Relaxed) == Gate::Frozen as u32
}

#[test]
fn expired_lease_freezes_until_it_is_renewed() {
    let (world, id) = world();
    assert_eq!(world.show("team/gcgroup.lease"), "max\n");
    assert!(!world.show("team/gcgroup.events").contains("lease_expired"));
    world.store("team/gcgroup.lease", ROOT, "60").unwrap();
    assert!(world.show("team/gcgroup.events").contains("lease_expired 0\n"));
    assert_eq!(world.tree.expire_leases(), (vec![], Some(60_000)));
    at(59);
    assert_eq!(world.show("team/gcgroup.lease"), "1\n");
    assert_eq!(expire(&world), []);
    assert!(!is_frozen(&world, id));
    world.take_notices();
    at(60);
    assert_eq!(expire(&world), [("team".to_owned(), "freeze")]);
    assert!(is_frozen(&world, id));
    let group = world.group("team");
    assert!(world.take_notices().contains(&Notice::GroupEvents(group)));
    assert!(world.show("team/gcgroup.events").contains("lease_expired 1\n"));
    assert_eq!(world.show("team/gcgroup.lease"), "0\n");
    assert_eq!(world.show("team/compute.freeze"), "1\n");
    let late = world.join(101);
    world.store("team/gcgroup.procs", ROOT, "101").unwrap();
    assert!(is_frozen(&world, late), "it entered after the end");
    world.store("team/gcgroup.lease", ROOT, "5").unwrap();
    assert!(!is_frozen(&world, id) && !is_frozen(&world, late));
    assert!(world.show("team/gcgroup.events").contains("lease_expired 0\n"));
    at(100);
    assert_eq!(expire(&world).len(), 1);
    world.store("team/gcgroup.lease", ROOT, "max").unwrap();
    assert!(!is_frozen(&world, id));
    assert!(!world.show("team/gcgroup.events").contains("lease_expired"));
    assert_eq!(world.tree.expire_leases(), (vec![], None));
}

#[test]
fn written_freeze_outlives_the_lease() {
    let (world, id) = world();
    world.store("team/gcgroup.lease", ROOT, "0").unwrap();
    assert!(is_frozen(&world, id), "a lease of 0 seconds has expired");
    world.store("team/compute.freeze", ROOT, "1").unwrap();
    world.store("team/gcgroup.lease", ROOT, "max").unwrap();
    assert!(is_frozen(&world, id));
    world.store("team/compute.freeze", ROOT, "0").unwrap();
    assert!(!is_frozen(&world, id));
}

#[test]
fn expired_lease_kills_members_old_and_new() {
    let (world, id) = world();
    world.store("team/gcgroup.lease.action", ROOT, "kill").unwrap();
    world.store("team/gcgroup.lease", ROOT, "1").unwrap();
    world.take_notices();
    at(2);
    assert_eq!(expire(&world), [("team".to_owned(), "kill")]);
    let team = Directory::group(world.group("team"));
    let killer = Killer {
        uid: ROOT.uid,
        cause: KillCause::Lease,
    };
    assert!(world.take_notices().contains(&Notice::KillAsked(team, killer)));
    assert!(!is_frozen(&world, id));
    assert_eq!(expire(&world), [], "once");
    let late = world.join(101);
    world.store("team/job/gcgroup.procs", ROOT, "101").unwrap();
    let asked = Notice::KillAsked(Directory::process(late), killer);
    assert!(world.take_notices().contains(&asked), "it entered after the end");
}

#[test]
fn lease_of_root_is_only_shortened_by_owner() {
    let (world, _) = world();
    let team = Directory::group(world.group("team"));
    let given = (Some(OWNER.uid), Some(OWNER.gid));
    let change = world.tree.set_access(team, ROOT, given, None).unwrap();
    world.tree.finish(change);
    world.store("team/gcgroup.lease", ROOT, "60").unwrap();
    world.store("team/gcgroup.lease.action", ROOT, "freeze").unwrap();
    for looser in ["61", "max"] {
        let refused = world.store("team/gcgroup.lease", OWNER, looser).unwrap_err();
        assert_eq!(refused.errno(), libc::EPERM, "{looser}");
        assert!(refused.to_string().contains("only be shortened"), "{refused}");
    }
    world.store("team/gcgroup.lease", OWNER, "30").unwrap();
    world.store("team/gcgroup.lease.action", OWNER, "kill").unwrap();
    assert_eq!(world.show("team/gcgroup.lease"), "30\n");
    for wrong in ["", "-1", "1h", "4294967296", "0.5"] {
        world.store("team/gcgroup.lease", ROOT, wrong).unwrap_err();
    }
    world
        .store("team/gcgroup.lease.action", ROOT, "resume")
        .unwrap_err();
    assert_eq!(world.show("team/gcgroup.lease"), "30\n");
}

#[test]
fn lease_counts_on_while_no_daemon_runs() {
    for (seconds, has_expired) in [(59, false), (61, true)] {
        let (world, _) = world();
        world.store("team/gcgroup.lease", ROOT, "60").unwrap();
        let groups = ["team", "team/job"].map(|path| {
            let id = world.group(path);
            let text = serde_json::to_string(&world.tree.saved_group(id)).unwrap();
            (id, serde_json::from_str::<Saved>(&text).unwrap())
        });
        let process = world.tree.saved(world.tree.find(100).unwrap()).unwrap();
        at(seconds);
        let after = World::new(1);
        after.tree.restore(Saved::default(), groups.into());
        let id = after.join_with(100, blocks(), process);
        assert_eq!(is_frozen(&after, id), has_expired);
        let left = if has_expired { "0\n" } else { "1\n" };
        assert_eq!(after.show("team/gcgroup.lease"), left);
        at(62);
        assert_eq!(expire(&after).len(), usize::from(!has_expired));
        assert!(is_frozen(&after, id));
    }
}

#[test]
fn removed_group_has_no_lease_any_more() {
    let (world, _) = world();
    world.group("other");
    world.store("other/gcgroup.lease", ROOT, "1").unwrap();
    let change = world.tree.remove_group(Directory::ROOT, "other").unwrap();
    world.tree.finish(change);
    assert_eq!(world.tree.expire_leases(), (vec![], None));
}
