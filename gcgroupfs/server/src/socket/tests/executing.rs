//! Processes that execute another program: between the old program's registration and the new one's.

use gcgroup_abi::message::GroupName;
use nix::sys::eventfd::EventFd;

use super::*;
use crate::socket::live_processes::MAX_PER_SECOND;
use crate::socket::rule_queries::Registrant;
use gcgroupfs_model::rules::Verdict;
use gcgroupfs_model::tree::Directory;
use gcgroupfs_model::tree::fixture::new_group;
use gcgroupfs_sys::process::Peer;

/// No process has this pid, because kernel.pid_max is 2^22 at most. So the loss of its connection counts as
/// an exec.
const PID: u32 = 1 << 23;

/// Returns a world with the group `team`, which is frozen.
fn frozen() -> World {
    let world = World::new();
    let (_, made) = world
        .tree
        .make_group(&new_group(Directory::ROOT, "team"))
        .unwrap();
    world.tree.finish(made);
    world.store("team/compute.freeze", "1");
    world
}

/// Returns a second registry over the world's tree, and the directory of its state.
pub(super) fn registry_of(world: &World) -> (Registry, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let (_, records) = Journal::open(state.path(), |_| ()).unwrap();
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap());
    let registry = Registry::new(registry::Options {
        tree: world.tree.clone(),
        bells: Arc::default(),
        epoll,
        grace_msec: 5000,
        device_page: 1,
        records,
        activity_log: Arc::new(ActivityLog::new(&world.tree)),
    });
    (registry, state)
}

/// A process that executes, with a registry over the world's tree.
struct Executing<'w> {
    world: &'w World,
    registry: Registry,
    _state: tempfile::TempDir,
}

impl<'w> Executing<'w> {
    fn new(world: &'w World) -> Self {
        let (registry, state) = registry_of(world);
        Self {
            world,
            registry,
            _state: state,
        }
    }

    /// Registers the program that the process runs now, over the connection of that number; returns the
    /// process's number.
    fn register(&mut self, connection: u64) -> u64 {
        let registrant = Registrant {
            wish: None,
            number: connection,
            peer: Peer {
                pid: PID,
                uid: 0,
                gid: 0,
                groups: Vec::new(),
                is_contained: false,
                stat: process::Stat {
                    comm: "one of several".into(),
                    parent: 0,
                    start_time: 5,
                    image: Some((connection, connection)),
                    is_ending: false,
                },
                // One that is never readable: it never ends.
                pidfd: EventFd::new().unwrap().into(),
            },
            hello: Hello {
                group: GroupName::new("team").unwrap(),
                ..Hello::PLAIN
            },
            usage: sys::UsageMap::new(&good_usage_file()).unwrap(),
        };
        let socket = Arc::new(OwnedFd::from(UnixStream::pair().unwrap().0));
        let registered = self.registry.register(registrant, &Verdict::default(), socket);
        registered.unwrap().number
    }

    fn events(&self) -> String {
        self.world.show("team/gcgroup.events")
    }
}

#[test]
fn group_is_frozen_between_two_programs_until_a_hook_asks() {
    let between = "populated 1\nfrozen 1\nsuspended 0\n";
    let busy = format!("populated 1\nfrozen 0\nsuspended 0\ndraining {PID}\n");
    let world = frozen();
    let mut executing = Executing::new(&world);
    let process = executing.register(1);
    assert_eq!(executing.events(), busy, "it has not acknowledged the freeze");
    executing.registry.lost(process, 1);
    assert_eq!(executing.events(), between);
    executing.registry.asks(PID);
    assert_eq!(executing.events(), busy, "it may have given up waiting");
    executing.registry.asks(PID);
    assert_eq!(executing.register(2), process);
    executing.registry.lost(process, 2);
    assert_eq!(executing.events(), between, "what the last one did is forgotten");
    executing.registry.asks(PID);
    executing.registry.died(process);
    assert_eq!(executing.events(), "populated 0\nfrozen 1\nsuspended 0\n");
}

#[test]
fn hook_that_asks_before_its_predecessor_is_lost_counts() {
    let world = frozen();
    let mut executing = Executing::new(&world);
    let process = executing.register(1);
    executing.registry.asks(PID);
    executing.registry.lost(process, 1);
    assert!(executing.events().contains("frozen 0\n"));
}

#[test]
fn group_is_not_frozen_while_a_restarted_daemon_awaits_members() {
    let world = frozen();
    let hello = Hello {
        group: GroupName::new("team").unwrap(),
        ..Hello::PLAIN
    };
    drop(Hook::register(&world, &hello, good_usage_file()));
    let world = world.restart();
    let busy = format!("populated 1\nfrozen 0\nsuspended 0\ndraining {}\n", me());
    assert_eq!(world.show("team/gcgroup.events"), busy);
    // It has no hook any more, so it does not register again.
    world.until("it is given up", || {
        world.show("team/gcgroup.events") == "populated 1\nfrozen 1\nsuspended 0\n"
    });
}

#[test]
fn registrations_beyond_the_pace_are_delayed_not_refused() {
    const MORE: u32 = 8;
    let world = World::new();
    let begun = Instant::now();
    for _ in 0..MAX_PER_SECOND + MORE {
        world.register();
    }
    assert!(begun.elapsed() > Duration::from_secs(1) / MAX_PER_SECOND * (MORE - 1));
    assert_eq!(world.pids(), [me()]);
}
