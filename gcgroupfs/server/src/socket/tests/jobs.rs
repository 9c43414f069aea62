//! Jobs that clients start.

use super::*;

impl World {
    /// Asks for a job in `group` with a name; returns the status and the group's path or the reason.
    fn begin(&self, group: &str, name: &str) -> (u32, String) {
        let (status, text) = ask(&self.connect(), Operation::Begin, group, &value(name));
        (status, String::from_utf8(text).unwrap())
    }
}

/// Returns the value of a request for a job of that name.
fn value(name: &str) -> Vec<u8> {
    format!("{name}\0/bin/true").into_bytes()
}

#[test]
fn malformed_names_are_refused_with_the_reason() {
    let world = World::new();
    for (group, name, reason) in [
        ("", "devices", "control file"),
        ("", "a/b", "slash"),
        ("", "7", "digits"),
        ("a/memory.limit", "", "control file"),
        ("a//b", "c", "slash"),
    ] {
        let (status, why) = world.begin(group, name);
        assert_eq!(status, libc::EINVAL.unsigned_abs(), "{group:?} {name:?}");
        assert!(why.contains(reason), "{why}");
    }
    assert_eq!(world.begin("", "train"), (0, "train".to_owned()));
}

#[test]
fn all_of_many_requests_at_once_are_answered() {
    let world = World::new();
    let clients: Vec<OwnedFd> = (0..4 * MAX_RULE_ANSWERS).map(|_| world.connect()).collect();
    for client in &clients {
        let request = Request {
            operation: Operation::Begin,
            offset: 0,
            name: "",
            value: &value("same"),
        };
        transmit(client, &request.to_bytes(), &[]).unwrap();
    }
    for client in &clients {
        // The receive timeout is for failures only.
        assert!(recv(client.as_raw_fd(), &mut [0; MAX_ANSWER], MsgFlags::empty()).unwrap() > 0);
    }
    world.assert_well();
}
