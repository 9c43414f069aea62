//! Processes that register, change and end.

use super::*;
use gcgroupfs_model::rules::Verdict;
use gcgroupfs_model::tree::fixture::new_group;
use gcgroupfs_model::tree::{Directory, Notice};

#[test]
fn directory_lasts_from_registration_to_the_programs_end() {
    let world = World::new();
    let hook = world.register();
    assert_eq!(world.pids(), [me()]);
    assert!(hook.control.is_understood());
    assert_eq!(hook.control.pid.load(Relaxed), me());
    assert_eq!(hook.control.grace_msec.load(Relaxed), 5000);
    assert_eq!(world.show("gcgroup.procs"), format!("{}\n", me()));
}

#[test]
fn process_with_a_lost_connection_is_still_governed() {
    let world = World::new();
    let usage = good_usage_file();
    sys::publish_usage(&usage);
    let hook = Hook::register(&world, &Hello::PLAIN, usage);
    let events = format!("{}/gcgroup.events", me());
    assert!(world.show(&events).contains("hook ok\n"));
    drop(hook.socket);
    world.until("hook lost", || world.show(&events).contains("hook lost\n"));
    world.store(&format!("{}/compute.freeze", me()), "1");
    assert_eq!(hook.control.devices[0].gate.load(Relaxed), Gate::Frozen as u32);

    // It registers again: its own settings hold from the start.
    let usage = good_usage_file();
    sys::publish_usage(&usage);
    let hook = Hook::register(&world, &Hello::PLAIN, usage);
    assert_eq!(hook.control.devices[0].gate.load(Relaxed), Gate::Frozen as u32);
    assert_eq!(world.pids(), [me()]);
    assert!(world.show(&events).contains("hook ok\n"));
}

#[test]
fn change_is_in_force_and_rung_before_the_write_returns() {
    let world = World::new();
    let hook = world.register();
    world.store(&format!("{}/0/memory.limit", me()), "4096");
    assert_eq!(hook.control.devices[0].memory_limit.load(Relaxed), 4096);
    world.store(&format!("{}/compute.freeze", me()), "1");
    let mut buffer = [0; 64];
    let length = recv(hook.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).unwrap();
    assert_eq!(buffer[..length], bare(Tag::Doorbell));
}

#[test]
fn requested_settings_hold_until_a_write() {
    let world = World::new();
    let hello = Hello {
        memory_limit: 1 << 20,
        priority: 3,
        ..Hello::PLAIN
    };
    let hook = Hook::register(&world, &hello, good_usage_file());
    assert_eq!(hook.control.memory_limit.load(Relaxed), 1 << 20);
    assert_eq!(world.show(&format!("{}/compute.priority", me())), "3\n");
    world.store(&format!("{}/memory.limit", me()), "2M");
    let again = Hook::register(&world, &hello, good_usage_file());
    assert_eq!(again.control.memory_limit.load(Relaxed), 2 << 20);
}

#[test]
fn restarted_daemon_has_the_settings_of_processes() {
    let world = World::new();
    let _hook = world.register();
    world.store(&format!("{}/memory.limit", me()), "12345");
    world.store(&format!("{}/0/memory.limit", me()), "1234");
    let world = world.restart();
    assert!(world.pids().is_empty());
    let hook = world.register();
    assert_eq!(hook.control.memory_limit.load(Relaxed), 12345);
    assert_eq!(hook.control.devices[0].memory_limit.load(Relaxed), 1234);
}

#[test]
fn new_registration_replaces_the_old_one() {
    let world = World::new();
    let old = world.register();
    let new = world.register();
    assert_eq!(world.pids(), [me()]);
    assert_eq!(
        recv(old.socket.as_raw_fd(), &mut [0; 64], MsgFlags::empty()),
        Ok(0),
        "the old one is hung up on"
    );
    world.store(&format!("{}/memory.limit", me()), "1");
    assert_eq!(new.control.memory_limit.load(Relaxed), 1);
    assert_eq!(old.control.memory_limit.load(Relaxed), NO_LIMIT);
    assert!(
        world
            .show(&format!("{}/gcgroup.events", me()))
            .contains("populated 1")
    );
}

#[test]
fn killed_process_leaves_no_directory() {
    let world = World::new();
    // A shell cannot send descriptors, so the socket is connected in its name between fork and exec.
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pidfd = sys::pidfd_open(child.id().try_into().unwrap()).unwrap();
    let stat = process::stat(child.id()).unwrap();
    let bells = Arc::new(Bells::default());
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap());
    let state = tempfile::tempdir().unwrap();
    let (_, records) = Journal::open(state.path(), |_| ()).unwrap();
    let mut registry = Registry::new(registry::Options {
        tree: world.tree.clone(),
        bells,
        epoll: epoll.clone(),
        grace_msec: 0,
        device_page: 1,
        records,
        activity_log: Arc::new(ActivityLog::new(&world.tree)),
    });
    let peer = process::Peer {
        pid: child.id(),
        uid: 0,
        gid: 0,
        groups: Vec::new(),
        is_contained: false,
        stat,
        pidfd,
    };
    let usage = crate::block::map_usage(&good_usage_file()).unwrap();
    let socket = Arc::new(new_socket(SockFlag::empty()).unwrap());
    let registrant = rule_queries::Registrant {
        wish: None,
        number: 9,
        peer,
        hello: Hello::PLAIN,
        usage,
    };
    registry
        .register(registrant, &Verdict::default(), socket)
        .unwrap();
    assert_eq!(world.pids(), [child.id()]);

    child.kill().unwrap();
    let mut events = [EpollEvent::empty()];
    assert_eq!(epoll.wait(&mut events, 60_000_u16), Ok(1));
    assert_eq!(Token::from(events[0].data()), Token::Process(9));
    registry.died(9);
    assert!(world.pids().is_empty());
    child.wait().unwrap();
}

#[test]
fn hook_of_another_version_is_always_told_so() {
    let world = World::new();
    let hello = Hello {
        abi: gcgroup_abi::VERSION + 1,
        ..Hello::PLAIN
    }
    .to_bytes();
    let longer = [&hello[..], &[7; 24]].concat();
    for packet in [&hello[..12], &hello, &longer] {
        let socket = world.connect();
        transmit(&socket, packet, &[good_usage_file().as_raw_fd()]).unwrap();
        let (reply, control) = reply(&socket);
        let reply = reply.unwrap();
        assert_eq!(reply.abi, gcgroup_abi::VERSION);
        assert_eq!(reply.status, libc::EPROTONOSUPPORT.unsigned_abs());
        assert!(control.is_none());
    }
    assert!(world.pids().is_empty());
    world.assert_well();
}

/// Moves the joining process out of the group "team" and removes the group.
struct Remover {
    tree: std::sync::Weak<Tree>,
    removed: parking_lot::Mutex<Option<gcgroupfs_model::error::Result<()>>>,
}

impl gcgroupfs_model::tree::Listener for Remover {
    fn notice(&self, notice: &Notice) {
        let Notice::Joined { pid, .. } = notice else {
            return;
        };
        let tree = self.tree.upgrade().unwrap();
        let Ok(Node::File(directory, file)) = resolve(&tree, "gcgroup.procs") else {
            panic!("the root has no gcgroup.procs")
        };
        let moved = file.store(&tree, directory, ROOT, pid.to_string().as_bytes());
        let removed = moved.and_then(|change| {
            tree.finish(change);
            tree.remove_group(Directory::ROOT, "team")
        });
        let removed = removed.map(|change| tree.finish(change));
        *self.removed.lock() = Some(removed);
    }
}

#[test]
fn group_of_a_returned_process_can_be_emptied_at_once() {
    let world = World::new();
    let hook = world.register();
    let (_, made) = world
        .tree
        .make_group(&new_group(Directory::ROOT, "team"))
        .unwrap();
    world.tree.finish(made);
    world.store("team/gcgroup.procs", &me().to_string());
    drop(hook);
    let world = world.restart();
    let remover = Arc::new(Remover {
        tree: Arc::downgrade(&world.tree),
        removed: parking_lot::Mutex::default(),
    });
    world.tree.listen(remover.clone());
    let _hook = world.register();
    assert_eq!(*remover.removed.lock(), Some(Ok(())));
}
