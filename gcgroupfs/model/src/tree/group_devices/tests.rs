//! Tests of lists of devices.

use super::*;
use crate::tree::fixture::{OWNER, ROOT, World, device};

fn visible(world: &World, group: &str, wanted: Option<&str>) -> Option<(Vec<String>, String)> {
    let id = world.group(group);
    let visible = world.tree.visible_devices(Some(id), None, wanted)?;
    Some((visible.allowed, visible.value))
}

#[test]
fn list_is_shown_as_indices_and_bad_entries_change_nothing() {
    let world = World::new(4);
    world.group("a");
    assert_eq!(world.show("a/gcgroup.devices"), "all\n");
    assert_eq!(world.show("a/gcgroup.devices.effective"), "0,1,2,3\n");
    for (text, shown) in [
        ("0,2-3", "0,2,3\n"),
        ("GPU-1 3", "1,3\n"),
        ("none", "none\n"),
        (" 2 ", "2\n"),
        ("1,1,GPU-1", "1\n"),
    ] {
        world.store("a/gcgroup.devices", ROOT, text).unwrap();
        assert_eq!(world.show("a/gcgroup.devices"), shown, "{text:?}");
        assert_eq!(world.show("a/gcgroup.devices.effective"), shown, "{text:?}");
    }
    for bad in [
        "4", "0,4", "3-1", "0-4", "GPU-9", "GPU-", "all,0", "none,1", "-1", "0-", "x", "", ",", "+1",
        "1,000", "00", "0-03",
    ] {
        let error = world.store("a/gcgroup.devices", ROOT, bad).unwrap_err();
        assert_eq!(error.errno(), 22, "{bad}");
        assert_eq!(world.show("a/gcgroup.devices"), "1\n", "{bad}");
    }
    world.store("a/gcgroup.devices", ROOT, "all").unwrap();
    assert_eq!(world.show("a/gcgroup.devices"), "all\n");
    assert_eq!(visible(&world, "a", None), None);
    assert!(!world.tree.has_device_lists());
    world.store("a/gcgroup.devices", ROOT, "none").unwrap();
    assert!(world.tree.has_device_lists());
}

#[test]
fn effective_list_is_within_the_groups_above() {
    let world = World::new(4);
    world.group("a/b/c");
    world.store("a/b/c/gcgroup.devices", ROOT, "1-3").unwrap();
    assert_eq!(world.show("a/b/c/gcgroup.devices.effective"), "1,2,3\n");
    world.store("a/gcgroup.devices", ROOT, "0,1,2").unwrap();
    assert_eq!(world.show("a/b/gcgroup.devices"), "all\n");
    assert_eq!(world.show("a/b/gcgroup.devices.effective"), "0,1,2\n");
    assert_eq!(world.show("a/b/c/gcgroup.devices"), "1,2,3\n");
    assert_eq!(world.show("a/b/c/gcgroup.devices.effective"), "1,2\n");
    world.store("a/b/gcgroup.devices", ROOT, "0").unwrap();
    assert_eq!(world.show("a/b/c/gcgroup.devices.effective"), "none\n");
    assert_eq!(visible(&world, "a/b/c", None), Some((Vec::new(), String::new())));
    world.store("a/b/gcgroup.devices", ROOT, "all").unwrap();
    assert_eq!(world.show("a/b/c/gcgroup.devices.effective"), "1,2\n");
}

#[test]
fn users_cannot_add_devices_to_roots_list() {
    let world = World::new(3);
    world.group("a");
    world.store("a/gcgroup.devices", ROOT, "0,1").unwrap();
    let id = world.group("a");
    let directory = crate::tree::Directory::group(id);
    let given = world
        .tree
        .set_access(directory, ROOT, (Some(OWNER.uid), None), None);
    world.tree.finish(given.unwrap());
    for beyond in ["all", "2", "0-2"] {
        assert_eq!(
            world
                .store("a/gcgroup.devices", OWNER, beyond)
                .unwrap_err()
                .errno(),
            1
        );
    }
    world.store("a/gcgroup.devices", OWNER, "1").unwrap();
    assert_eq!(world.show("a/gcgroup.devices"), "1\n");
}

#[test]
fn list_keeps_devices_that_appear_later() {
    let world = World::new(2);
    world.group("a");
    world.store("a/gcgroup.devices", ROOT, "0-1").unwrap();
    world.tree.add_devices([device(2)]);
    assert_eq!(
        world.show("a/gcgroup.devices.effective"),
        "0,1\n",
        "a new device is not in the list"
    );
}

#[test]
fn own_list_of_the_program_is_intersected() {
    let world = World::new(4);
    world.group("a");
    world.store("a/gcgroup.devices", ROOT, "1-2").unwrap();
    for (wanted, value) in [
        (None, "GPU-1,GPU-2"),
        (Some("1,0"), "GPU-2,GPU-1"),
        (Some("1"), "GPU-2"),
        (Some("2"), ""),
        (Some(""), ""),
        (Some("0,9,1"), "GPU-1"),
        (Some("0,-1,1"), "GPU-1"),
        (Some(" 1 , gpu-1"), "GPU-2,GPU-1"),
        (Some("GPU-"), ""),
        (Some("0,0"), ""),
        (Some("1,0,1"), ""),
        (Some("0,gpu-1"), ""),
        (Some("gpu-0,1"), "GPU-2"),
        (Some("1,9,1"), "GPU-2"),
    ] {
        assert_eq!(visible(&world, "a", wanted).unwrap().1, value, "{wanted:?}");
    }
    assert_eq!(world.tree.visible_devices(None, None, Some("0")), None);
}

#[test]
fn list_of_a_group_not_yet_made_is_within_those_above() {
    let world = World::new(4);
    let listed = world.group("a");
    world.store("a/gcgroup.devices", ROOT, "1-2").unwrap();
    let unlisted = world.group("b");
    for (group, ruled, value) in [
        (Some(listed), "2-3", Some("GPU-2")),
        (Some(listed), "all", Some("GPU-1,GPU-2")),
        (Some(listed), "none", Some("")),
        (Some(unlisted), "2-7", Some("GPU-2,GPU-3")),
        (None, "2", Some("GPU-2")),
        (None, "all", None),
    ] {
        let visible = world.tree.visible_devices(group, Some(ruled), None);
        assert_eq!(visible.map(|visible| visible.value).as_deref(), value, "{ruled}");
    }
}

#[test]
fn long_list_of_the_program_has_a_short_answer() {
    let world = World::new(3);
    world.group("a");
    world.store("a/gcgroup.devices", ROOT, "1-2").unwrap();
    for entry in ["0,", "1,", "GPU-2,"] {
        let wanted = entry.repeat(10_000);
        let (allowed, value) = visible(&world, "a", Some(&wanted)).unwrap();
        assert_eq!((allowed.len(), &*value), (2, ""), "{entry}");
    }
}

#[test]
fn list_of_a_rule_keeps_the_devices_that_exist() {
    let world = World::new(4);
    let list = |text: &str| {
        let (list, missing) = existing(text, &world.tree.state.lock().devices);
        let list: Vec<String> = list.into_iter().collect();
        (list.join(","), missing.join(","))
    };
    for (text, known, missing) in [
        ("0-3", "GPU-0,GPU-1,GPU-2,GPU-3", ""),
        ("2-7", "GPU-2,GPU-3", "4-7"),
        ("3-999999999999", "GPU-3", "4-999999999999"),
        ("0,4-7,9,GPU-1", "GPU-0,GPU-1", "4-7,9"),
        ("3-1,GPU-none", "", "3-1,GPU-none"),
    ] {
        assert_eq!(list(text), (known.to_owned(), missing.to_owned()), "{text}");
    }
}

#[test]
fn number_of_a_divided_gpu_means_its_first_instance_in_the_list() {
    let part = |index: usize, gpu: u8, name: &str| Device {
        index,
        pci: format!("00000000:0{gpu}:00.0"),
        uuid_text: name.to_owned(),
        ..device(index)
    };
    let devices = [
        part(0, 1, "MIG-aa"),
        part(1, 1, "MIG-ab"),
        part(2, 2, "GPU-bb"),
        part(3, 1, "MIG-ac"),
    ];
    let list = DeviceSet::from(["MIG-ab", "MIG-ac", "GPU-bb"].map(str::to_owned));
    assert_eq!(intersect("1,0", &list, &devices), ["GPU-bb", "MIG-ab"]);
    assert_eq!(
        intersect("MIG-a,1", &list, &devices),
        [""; 0],
        "more than one begins so"
    );
    assert_eq!(intersect("MIG-aa,MIG-ac", &list, &devices), ["MIG-ac"]);
}
