//! Requests of the command line.

use super::*;

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
        let (status, reason) = ask(&client, operation, &path(file), value);
        assert_eq!(status, errno.unsigned_abs(), "{file}");
        assert!(!reason.is_empty(), "{file}");
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
        "populated 1\nfrozen 0\n",
        "it lives and will be back"
    );
    assert_eq!(world.show("a/b/gcgroup.procs"), "");
    let hook = world.register();
    assert_eq!(world.show("a/b/gcgroup.procs"), format!("{pid}\n"));
    assert_eq!(world.show("a/gcgroup.events"), "populated 1\nfrozen 0\n");
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
        request.to_bytes()
    };
    let (who, tree) = (super::super::answer::Credentials::default(), &world.tree);
    let (_, kept) = super::super::answer::answer(tree, &who, Vec::new(), &packet(0)).unwrap();
    assert!(kept.is_empty(), "all of it is in one packet");
    let long = vec![b'x'; MAX_ANSWER + 100];
    let (_, kept) = super::super::answer::answer(tree, &who, long.clone(), &packet(50)).unwrap();
    assert_eq!(kept, long, "there is more");
    let (_, kept) = super::super::answer::answer(tree, &who, long, &packet(1000)).unwrap();
    assert!(kept.is_empty(), "that was the end");
}
