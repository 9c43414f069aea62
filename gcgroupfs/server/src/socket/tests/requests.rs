//! Requests of the command line.

use super::*;
use crate::socket::answer::{Credentials, Reading, answer};

#[test]
fn requests_have_the_permissions_of_the_mount() {
    let world = World::new();
    let _hook = world.register();
    let client = world.connect();
    let path = |file: &str| format!("{}/{file}", me());
    assert_eq!(
        ask(&client, Operation::Set, &path("memory.limit"), b"1G\n"),
        (0, vec![])
    );
    assert_eq!(
        ask(&client, Operation::Get, &path("memory.limit"), b""),
        (0, b"1073741824\n".to_vec())
    );
    for (operation, file, value, errno) in [
        (Operation::Set, "memory.limit", &b"much"[..], libc::EINVAL),
        (Operation::Set, "compute.priority", b"16", libc::ERANGE),
        (Operation::Set, "memory.current", b"1", libc::EACCES),
        (Operation::Get, "no.such.file", b"", libc::ENOENT),
        (Operation::Get, "", b"", libc::EISDIR),
        (Operation::Set, "memory.limit", &[b'1'; 5000], libc::E2BIG),
    ] {
        let (status, why) = ask(&client, operation, &path(file), value);
        assert_eq!(status, errno.unsigned_abs(), "{file}");
        assert!(why.len() > 10, "{file}: the refusal is not explained");
    }
    let (status, list) = ask(&client, Operation::List, "memory.limit\nnone", b"");
    let lines = String::from_utf8(list).unwrap();
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (status, lines.lines().count()),
        (0, 2),
        "the process and its device"
    );
    assert_eq!(first["pid"], me().to_string());
    assert_eq!(
        first["files"],
        serde_json::json!({"memory.limit": "1073741824\n"})
    );
}

#[test]
fn groups_are_created_and_entered_without_the_mount() {
    let world = World::new();
    let _hook = world.register();
    let client = world.connect();
    let go = |operation, path: &str, value: &[u8]| ask(&client, operation, path, value).0.cast_signed();
    assert_eq!(go(Operation::Make, "a", b""), 0);
    assert_eq!(go(Operation::Make, "/a/b/", b""), 0);
    for (operation, path, errno) in [
        (Operation::Make, "a", libc::EEXIST),
        (Operation::Make, "7", libc::EINVAL),
        (Operation::Make, "", libc::EINVAL),
        (Operation::Make, "nowhere/b", libc::ENOENT),
        (Operation::Make, "devices/b", libc::ENOTDIR),
        (Operation::Remove, "a", libc::EBUSY),
        (Operation::Remove, "nowhere", libc::ENOENT),
    ] {
        assert_eq!(go(operation, path, b""), errno, "{path}");
    }
    let pid = me().to_string();
    assert_eq!(go(Operation::Set, "a/b/gcgroup.procs", pid.as_bytes()), 0);
    assert_eq!(world.show("a/b/gcgroup.procs"), format!("{pid}\n"));
    assert_eq!(go(Operation::Remove, "a/b", b""), libc::EBUSY);

    // Another daemon finds the groups unchanged, with the process in its group.
    world.store("a/memory.limit", "1G");
    drop(client);
    let world = world.restart();
    assert_eq!(world.show("a/memory.limit"), "1073741824\n");
    assert_eq!(
        world.show("a/gcgroup.events"),
        "populated 1\nfrozen 0\nsuspended 0\n",
        "it lives and will be back"
    );
    assert_eq!(world.show("a/b/gcgroup.procs"), "");
    let hook = world.register();
    assert_eq!(world.show("a/b/gcgroup.procs"), format!("{pid}\n"));
    assert_eq!(
        world.show("a/gcgroup.events"),
        "populated 1\nfrozen 0\nsuspended 0\n"
    );
    drop(hook);
}

#[test]
fn endless_requests_are_throttled_and_texts_released() {
    let world = World::new();
    let _hook = world.register();
    let client = world.connect();
    // More than a quarter of the time: the client is made to wait, and no answer is lost.
    for _ in 0..2000 {
        assert_eq!(
            ask(&client, Operation::List, "memory.stat\ncompute.stat", b"").0,
            0
        );
    }
    let packet = |offset| {
        let request = Request {
            operation: Operation::Get,
            offset,
            name: "devices",
            value: b"",
        };
        request.to_bytes::<Vec<u8>>()
    };
    let (who, tree) = (Credentials::default(), &world.tree);
    let (_, kept) = answer(tree, &who, Reading::default(), &packet(0)).unwrap();
    assert_eq!(kept.size(), 0, "all of it is in one packet");
    let long = || Reading::of_text(vec![b'x'; MAX_ANSWER + 100]);
    let (_, kept) = answer(tree, &who, long(), &packet(50)).unwrap();
    assert_eq!(kept.size(), MAX_ANSWER + 100, "there is more");
    let (_, kept) = answer(tree, &who, long(), &packet(1000)).unwrap();
    assert_eq!(kept.size(), 0, "that was the end");
}

#[test]
fn long_list_is_rendered_part_by_part() {
    const NR: usize = 300;
    let world = gcgroupfs_model::tree::fixture::World::new(1);
    (0..NR).for_each(|number| _ = world.group(&format!("group-{number:03}")));
    let names = "memory.stat\nmemory.current\ncompute.stat\ncompute.priority\nmemory.limit";
    let (who, mut reading, mut text, mut nr_parts) =
        (Credentials::default(), Reading::default(), Vec::new(), 0);
    loop {
        let request = Request {
            operation: Operation::ListGroups,
            offset: u32::try_from(text.len()).unwrap(),
            name: names,
            value: b"",
        };
        let (packet, rest) = answer(&world.tree, &who, reading, &request.to_bytes::<Vec<u8>>()).unwrap();
        let answer = Answer::from_bytes(&packet).unwrap();
        text.extend(answer.part);
        (reading, nr_parts) = (rest, nr_parts + 1);
        assert!(answer.total as usize >= text.len() && reading.size() < MAX_ANSWER * 3);
        if answer.total as usize == text.len() {
            break;
        }
        world.group("zz-made-meanwhile");
    }
    let text = String::from_utf8(text).unwrap();
    assert!(nr_parts > 4, "{nr_parts}");
    assert_eq!(
        text.lines().count(),
        2 * NR,
        "one line each, and one for the device"
    );
    assert!(
        text.lines()
            .is_sorted_by_key(|line| line.get(..24).map(str::to_owned))
    );
}

/// Starts a job of this process in a group, and returns the connection that holds it and the answer.
fn begin(world: &World, group: &str, value: &[u8]) -> (OwnedFd, u32, String) {
    let client = world.connect();
    let (status, path) = ask(&client, Operation::Begin, group, value);
    (client, status, String::from_utf8(path).unwrap())
}

#[test]
fn jobs_of_a_process_nest_until_too_deep() {
    let world = World::new();
    let mut jobs = Vec::new();
    let mut path = String::new();
    for depth in 0..8 {
        let (job, status, made) = begin(&world, "", b"\0/bin/sh");
        assert_eq!(status, 0, "{depth}");
        path = format!("{path}/job-{}", me()).trim_matches('/').to_owned();
        assert_eq!(made, path);
        jobs.push(job);
    }
    let (_, status, _) = begin(&world, "", b"\0/bin/sh");
    assert_eq!(status.cast_signed(), libc::EMLINK);
    assert_eq!(
        world.show(&format!("{path}/gcgroup.events")),
        "populated 1\nfrozen 0\nsuspended 0\n"
    );
    // The process lives, so its groups stay without the connections, and with another daemon.
    drop(jobs);
    world.assert_well();
    let world = world.restart();
    assert_eq!(
        world.show(&format!("{path}/gcgroup.events")),
        "populated 1\nfrozen 0\nsuspended 0\n"
    );
}

#[test]
fn invalid_jobs_are_refused_and_leave_no_group() {
    let world = World::new();
    for (group, value, errno) in [
        ("", &b""[..], libc::EINVAL),
        ("", b"name", libc::EINVAL),
        ("", b"\xff\0", libc::EINVAL),
        ("", b"a/b\0", libc::EINVAL),
        ("", b"7\0", libc::EINVAL),
        ("", b"devices\0", libc::EINVAL),
        ("new/group", b"7\0", libc::EINVAL),
        ("1", b"a\0", libc::EINVAL),
    ] {
        let (_, status, _) = begin(&world, group, value);
        assert_eq!(status.cast_signed(), errno, "{group} {value:?}");
    }
    assert_eq!(world.tree.groups(), []);
    let (_job, status, _) = begin(&world, "", b"taken\0");
    assert_eq!(status, 0);
    let (_, status, path) = begin(&world, "", b"taken\0");
    assert_eq!((status, path.as_str()), (0, "taken/taken"), "inside the first");
    // A governed process stays where it is.
    let _hook = world.register();
    let (_, status, _) = begin(&world, "", b"other\0");
    assert_eq!(status.cast_signed(), libc::EBUSY);
    assert_eq!(world.show("taken/taken/gcgroup.procs"), format!("{}\n", me()));
}
