//! The command line's side.

use super::*;

#[test]
fn requests_follow_the_rules_of_the_mount() {
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
        assert_eq!(
            ask(&client, operation, &path(file), value),
            (errno.unsigned_abs(), vec![]),
            "{file}"
        );
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
