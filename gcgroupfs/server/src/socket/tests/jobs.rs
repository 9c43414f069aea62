//! Jobs that clients start.

use super::executing::registry_of;
use super::*;
use gcgroupfs_model::tree::fixture::new_group;
use gcgroupfs_model::tree::{Directory, Job, Origins, Settings, Transient};

impl World {
    /// Asks for a job in `group` with a name; returns the status and the group's path or the reason.
    fn begin(&self, group: &str, name: &str) -> (u32, String) {
        let mut answer = (0, Vec::new());
        // Refused as long as the daemon cannot examine the process in time.
        self.until("the daemon answers", || {
            answer = ask(&self.connect(), Operation::Begin, group, &value(name));
            answer.0 != libc::EAGAIN.unsigned_abs()
        });
        (answer.0, String::from_utf8(answer.1).unwrap())
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
        transmit(client, &request.to_bytes::<Vec<u8>>(), &[]).unwrap();
    }
    for client in &clients {
        // The receive timeout is for failures only.
        assert!(recv(client.as_raw_fd(), &mut [0; MAX_ANSWER], MsgFlags::empty()).unwrap() > 0);
    }
    world.assert_well();
}

#[test]
fn unwatched_job_is_checked_until_it_ends() {
    let world = World::new();
    let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let transient = Transient {
        is_requested: false,
        owner: Owner { uid: 0, gid: 0 },
        settings: Settings::default(),
        origins: Origins::default(),
        job: Some(Job {
            pid: process.id(),
            start_time: process::stat(process.id()).unwrap().start_time,
            wish: None,
            is_inherited: false,
            has_ended: false,
        }),
    };
    let group = new_group(Directory::ROOT, "job");
    world.tree.make_job_group(&group, transient).unwrap();
    // A daemon that starts and has no descriptor to watch the process.
    let (mut registry, _state) = registry_of(&world);
    let was_left = [registry.tend_unregistered(), registry.tend_unregistered()];
    let nr_groups = world.tree.groups().len();
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!((was_left, nr_groups), ([true; 2], 1));
    assert!(!registry.tend_unregistered());
    assert_eq!(world.tree.groups(), []);
}
