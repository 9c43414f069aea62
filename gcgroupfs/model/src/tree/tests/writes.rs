//! Writes to a process that registers again or leaves: acknowledged writes stay in force.

use super::*;

#[test]
fn write_between_copy_and_join_stays_in_force() {
    let world = World::new(1);
    let id = world.tree.join(identity(7), blocks(), Settings::default());
    world.store("7/memory.limit", ROOT, "1048576").unwrap();
    let copy = world.tree.saved(id).unwrap();
    world.store("7/memory.limit", ROOT, "2097152").unwrap();
    world.store("7/compute.priority", ROOT, "9").unwrap();
    // The same program, and then another that the process executes.
    for image in [identity(7).image, Some((1, 1))] {
        let identity = Identity { image, ..identity(7) };
        world.tree.join(identity, blocks(), copy.clone());
        assert_eq!(world.show("7/memory.limit"), "2097152\n");
        assert_eq!(world.show("7/compute.priority"), "9\n");
    }
}

#[test]
fn successor_to_a_pid_has_its_own_settings() {
    let world = World::new(1);
    world.tree.join(identity(7), blocks(), Settings::default());
    world.store("7/memory.limit", ROOT, "1048576").unwrap();
    let mut successor = identity(7);
    successor.start_time += 1;
    world.tree.join(successor, blocks(), Settings::default());
    assert_eq!(world.show("7/memory.limit"), "max\n");
}

#[test]
fn leave_returns_settings_in_force_at_the_end() {
    let world = World::new(1);
    let id = world.tree.join(identity(7), blocks(), Settings::default());
    let copy = world.tree.saved(id).unwrap();
    world.store("7/memory.limit", ROOT, "2097152").unwrap();
    let kept = world.tree.leave(id, 0).unwrap();
    assert_ne!(kept.settings, copy.settings);
    assert_eq!(world.tree.leave(id, 0), None, "it has left already");
    world.tree.join(identity(7), blocks(), kept);
    assert_eq!(world.show("7/memory.limit"), "2097152\n");
}
