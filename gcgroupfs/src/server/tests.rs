//! The server on a real socket, with fake hooks, good and hostile.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use gcgroup_abi::message::{Hello, Tag, Welcome, bare};
use gcgroup_abi::{Gate, NO_LIMIT};
use nix::sys::socket::{
    ControlMessage, MsgFlags, SockFlag, UnixAddr, connect, recv, sendmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeVal;

use super::*;
use crate::block::tests::{good_usage_file, usage_file};
use crate::file::{Node, resolve};
use crate::protocol::{Answer, MAX_ANSWER, Operation, Request};
use crate::tree::{Caller, Device, Owner};

const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

/// A daemon without a mount, on a thread; stopped when dropped.
struct World {
    directory: tempfile::TempDir,
    tree: Arc<Tree>,
    stop: Arc<AtomicBool>,
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl World {
    fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    fn at(directory: tempfile::TempDir) -> Self {
        let device = Device {
            index: 0,
            uuid: [7; 16],
            uuid_text: "GPU-07070707-0707-0707-0707-070707070707".into(),
            pci: "00000000:01:00.0".into(),
            total: 1 << 30,
            name: "device".into(),
        };
        let owner = Owner {
            uid: nix::unistd::geteuid().as_raw(),
            gid: 0,
        };
        let tree = Arc::new(Tree::new(owner, vec![device]));
        let alive = |key: Key| process::is_alive(key.pid, key.start_time);
        let (journal, remembered) = Journal::open(directory.path(), alive).unwrap();
        let listener = Listener::bind(&directory.path().join("s")).unwrap();
        let mut server = Server::new(listener, tree.clone(), Arc::new(journal), remembered, 5000).unwrap();
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker().unwrap());
        let asked = stop.clone();
        let thread = std::thread::spawn(move || server.run(|| !asked.load(Relaxed)).unwrap());
        Self {
            directory,
            tree,
            stop,
            waker,
            thread: Some(thread),
        }
    }

    /// Another daemon in its place.
    fn restart(mut self) -> Self {
        self.halt();
        let Self { directory, .. } = &mut self;
        let directory = std::mem::replace(directory, tempfile::tempdir().unwrap());
        drop(self);
        Self::at(directory)
    }

    fn halt(&mut self) {
        self.stop.store(true, Relaxed);
        std::io::Write::write_all(&mut self.waker, &[0]).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn connect(&self) -> OwnedFd {
        let socket = new_socket(SockFlag::empty()).unwrap();
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(60, 0)).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(&self.socket()).unwrap()).unwrap();
        socket
    }

    fn register(&self) -> Hook {
        Hook::register(self.connect(), &Hello::PLAIN, good_usage_file())
    }

    fn pids(&self) -> Vec<u32> {
        self.tree
            .processes()
            .into_iter()
            .map(|(_, identity)| identity.pid)
            .collect()
    }

    fn show(&self, path: &str) -> String {
        let Node::File(place, file) = resolve(&self.tree, path).unwrap() else {
            panic!("{path}")
        };
        file.show(&self.tree, place).unwrap()
    }

    fn store(&self, path: &str, value: &str) {
        let Node::File(place, file) = resolve(&self.tree, path).unwrap() else {
            panic!("{path}")
        };
        file.store(&self.tree, place, ROOT, value.as_bytes()).unwrap();
    }

    /// Waits for the daemon to come to a state. The deadline is for failures only.
    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::yield_now();
        }
    }

    /// The daemon still answers a stranger.
    fn assert_well(&self) {
        let asked = ask(&self.connect(), Operation::Get, "devices", b"");
        assert_eq!(asked.0, 0);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.halt();
        }
    }
}

/// A registered process: this one.
struct Hook {
    socket: OwnedFd,
    control: sys::ControlReader,
}

impl Hook {
    fn register(socket: OwnedFd, hello: &Hello, usage: OwnedFd) -> Self {
        transmit(&socket, &hello.to_bytes(), &[usage.as_raw_fd()]).unwrap();
        let (welcome, control) = welcome(&socket);
        assert_eq!(welcome.unwrap().status, 0);
        Self {
            socket,
            control: sys::ControlReader::new(&control.unwrap()).unwrap(),
        }
    }
}

fn transmit(socket: &OwnedFd, packet: &[u8], descriptors: &[RawFd]) -> nix::Result<usize> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let rights = if descriptors.is_empty() {
        &[][..]
    } else {
        &rights[..]
    };
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[std::io::IoSlice::new(packet)],
        rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
}

/// Waits for the answer to a Hello; None for a connection that was ended instead.
fn welcome(socket: &OwnedFd) -> (Option<Welcome>, Option<OwnedFd>) {
    // Waits here, since receiving does not.
    if recv(socket.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_PEEK).unwrap_or(0) == 0 {
        return (None, None);
    }
    let mut buffer = [0; 64];
    let received = sys::receive(socket, &mut buffer).unwrap();
    (
        Welcome::from_bytes(&buffer[..received.length]).ok(),
        received.descriptors.into_iter().next(),
    )
}

fn ask(socket: &OwnedFd, operation: Operation, name: &str, value: &[u8]) -> (u32, Vec<u8>) {
    transmit(
        socket,
        &Request {
            operation,
            offset: 0,
            name,
            value,
        }
        .to_bytes(),
        &[],
    )
    .unwrap();
    let mut buffer = vec![0; MAX_ANSWER];
    let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
    let answer = Answer::from_bytes(&buffer[..length]).unwrap();
    (answer.status, answer.part.to_vec())
}

fn me() -> u32 {
    std::process::id()
}

#[test]
fn a_process_has_a_directory_from_its_registration_to_the_end_of_its_program() {
    let world = World::new();
    let hook = world.register();
    assert_eq!(world.pids(), [me()]);
    assert!(hook.control.is_understood());
    assert_eq!(hook.control.pid.load(Relaxed), me());
    assert_eq!(hook.control.grace_msec.load(Relaxed), 5000);
    assert_eq!(world.show("gcgroup.procs"), format!("{}\n", me()));
}

#[test]
fn a_lost_connection_is_shown_and_the_process_still_governed() {
    let world = World::new();
    let usage = good_usage_file();
    sys::publish_usage(&usage);
    let hook = Hook::register(world.connect(), &Hello::PLAIN, usage);
    let events = format!("{}/gcgroup.events", me());
    assert!(world.show(&events).contains("hook ok\n"));
    drop(hook.socket);
    world.until("hook lost", || world.show(&events).contains("hook lost\n"));
    world.store(&format!("{}/compute.freeze", me()), "1");
    assert_eq!(hook.control.devices[0].gate.load(Relaxed), Gate::Frozen as u32);

    // It connects again: its own settings hold from the start.
    let usage = good_usage_file();
    sys::publish_usage(&usage);
    let hook = Hook::register(world.connect(), &Hello::PLAIN, usage);
    assert_eq!(hook.control.devices[0].gate.load(Relaxed), Gate::Frozen as u32);
    assert_eq!(world.pids(), [me()]);
    assert!(world.show(&events).contains("hook ok\n"));
}

#[test]
fn a_change_is_in_the_block_and_rung_before_the_write_returns() {
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
fn wishes_hold_until_somebody_writes() {
    let world = World::new();
    let hello = Hello {
        memory_limit: 1 << 20,
        priority: 3,
        ..Hello::PLAIN
    };
    let hook = Hook::register(world.connect(), &hello, good_usage_file());
    assert_eq!(hook.control.memory_limit.load(Relaxed), 1 << 20);
    assert_eq!(world.show(&format!("{}/compute.priority", me())), "3\n");
    world.store(&format!("{}/memory.limit", me()), "2M");
    let again = Hook::register(world.connect(), &hello, good_usage_file());
    assert_eq!(again.control.memory_limit.load(Relaxed), 2 << 20);
}

#[test]
fn a_restarted_daemon_has_the_settings_of_those_who_come_back() {
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
fn a_new_registration_takes_the_place_of_the_old_one() {
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
fn a_killed_process_leaves_no_directory() {
    let world = World::new();
    // A shell cannot send descriptors, so the socket is connected in its name: between fork and exec.
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pidfd = sys::pidfd_open(child.id().try_into().unwrap()).unwrap();
    let stat = process::stat(child.id()).unwrap();
    let bells = Arc::new(Bells::default());
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap());
    let mut registry = Registry::new(world.tree.clone(), bells, epoll.clone(), 0, BTreeMap::new());
    let peer = process::Peer {
        pid: child.id(),
        uid: 0,
        gid: 0,
        stat,
        pidfd,
    };
    let usage = crate::block::map_usage(&good_usage_file()).unwrap();
    let socket = Arc::new(new_socket(SockFlag::empty()).unwrap());
    registry.register(9, peer, &Hello::PLAIN, usage, socket).unwrap();
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
fn blocks_that_are_not_what_they_should_be_are_refused_with_a_reason() {
    let world = World::new();
    let (pipe, _end) = nix::unistd::pipe().unwrap();
    let small = usage_file(
        4096,
        nix::fcntl::SealFlag::all() - nix::fcntl::SealFlag::F_SEAL_FUTURE_WRITE,
    );
    let zero: OwnedFd = File::open("/dev/zero").unwrap().into();
    let (one, other) = (good_usage_file(), good_usage_file());
    let cases: [(&str, Vec<RawFd>); 5] = [
        ("none", vec![]),
        ("a pipe", vec![pipe.as_raw_fd()]),
        ("a small one", vec![small.as_raw_fd()]),
        ("a device", vec![zero.as_raw_fd()]),
        ("two", vec![one.as_raw_fd(), other.as_raw_fd()]),
    ];
    for (what, descriptors) in cases {
        let socket = world.connect();
        transmit(&socket, &Hello::PLAIN.to_bytes(), &descriptors).unwrap();
        let (welcome, control) = welcome(&socket);
        assert_eq!(
            welcome.map(|w| w.status),
            Some(libc::EINVAL.unsigned_abs()),
            "{what}"
        );
        assert!(control.is_none(), "{what}");
    }
    let socket = world.connect();
    transmit(
        &socket,
        &Hello {
            abi: 99,
            ..Hello::PLAIN
        }
        .to_bytes(),
        &[one.as_raw_fd()],
    )
    .unwrap();
    assert_eq!(
        welcome(&socket).0.map(|w| w.status),
        Some(libc::EPROTONOSUPPORT.unsigned_abs())
    );
    assert!(world.pids().is_empty());
    world.assert_well();
}

#[test]
fn senseless_packets_end_the_connection_and_nothing_else() {
    let world = World::new();
    let usage = good_usage_file();
    let long = vec![0x55; 64 << 10];
    let mut many = Vec::new();
    many.resize(200, usage.as_raw_fd());
    let doorbell = bare(Tag::Doorbell);
    let cut = &Hello::PLAIN.to_bytes()[..20];
    let request = Request {
        operation: Operation::Get,
        offset: 0,
        name: "devices",
        value: b"",
    }
    .to_bytes();
    let cases: [(&str, &[u8], &[RawFd]); 8] = [
        ("junk", b"GET / HTTP/1.1\r\n\r\n", &[]),
        ("too long", &long, &[]),
        ("one byte", b"x", &[]),
        ("a doorbell from nobody", &doorbell, &[]),
        ("many descriptors with junk", b"junk", &many),
        ("half a request", &request[..14], &[]),
        ("a request with a descriptor", &request, &[usage.as_raw_fd()]),
        ("nothing", b"", &[usage.as_raw_fd()]),
    ];
    for (what, packet, descriptors) in cases {
        let socket = world.connect();
        transmit(&socket, packet, descriptors).unwrap();
        assert_eq!(
            recv(socket.as_raw_fd(), &mut [0; 64], MsgFlags::empty()),
            Ok(0),
            "{what}"
        );
    }
    let socket = world.connect();
    transmit(&socket, cut, &[usage.as_raw_fd()]).unwrap();
    assert_eq!(
        welcome(&socket).0.map(|w| w.status),
        Some(libc::EPROTO.unsigned_abs())
    );
    let hook = world.register();
    transmit(&hook.socket, &Hello::PLAIN.to_bytes(), &[usage.as_raw_fd()]).unwrap();
    assert_eq!(
        recv(hook.socket.as_raw_fd(), &mut [0; 64], MsgFlags::empty()),
        Ok(0),
        "a second hello"
    );
    world.assert_well();
}

#[test]
fn a_descriptor_that_cannot_be_closed_holds_up_nobody() {
    let world = World::new();
    let (sent, _stuck) = lingering();
    let socket = world.connect();
    transmit(&socket, &Hello::PLAIN.to_bytes(), &[sent.as_raw_fd()]).unwrap();
    close_aside(sent);
    assert_eq!(
        welcome(&socket).0.map(|w| w.status),
        Some(libc::EINVAL.unsigned_abs())
    );
    world.assert_well();
    // Unread in a connection that is closed, it is just as bad.
    let (sent, _stuck) = lingering();
    let socket = world.connect();
    transmit(&socket, b"junk", &[]).unwrap();
    let _ = transmit(&socket, &Hello::PLAIN.to_bytes(), &[sent.as_raw_fd()]);
    drop(socket);
    close_aside(sent);
    world.assert_well();
}

/// Closes on another thread: if the daemon has closed its own first, it is we who wait for the peer.
fn close_aside(sent: std::net::TcpStream) {
    std::thread::spawn(move || drop(sent));
}

/// A TCP socket whose close(2) waits for a peer that does not read, and that peer.
fn lingering() -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sent = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 3600,
    };
    setsockopt(&sent, sockopt::Linger, &linger).unwrap();
    sent.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &sent, &[0; 64 << 10]).is_ok() {}
    (sent, peer)
}

#[test]
fn a_hook_that_never_reads_and_rings_without_end_holds_up_nobody() {
    let world = World::new();
    let hook = world.register();
    for value in 0..5000 {
        world.store(
            &format!("{}/compute.freeze", me()),
            if value % 2 == 0 { "1" } else { "0" },
        );
    }
    for _ in 0..5000 {
        if sendmsg::<()>(
            hook.socket.as_raw_fd(),
            &[std::io::IoSlice::new(&bare(Tag::Doorbell))],
            &[],
            MsgFlags::MSG_DONTWAIT,
            None,
        )
        .is_err()
        {
            break;
        }
    }
    world.assert_well();
    assert_eq!(world.pids(), [me()]);
}

#[test]
fn a_process_that_registers_without_end_is_refused_and_keeps_its_directory() {
    let world = World::new();
    let refused = (0..1000).find_map(|_| {
        let (socket, usage) = (world.connect(), good_usage_file());
        transmit(&socket, &Hello::PLAIN.to_bytes(), &[usage.as_raw_fd()]).unwrap();
        welcome(&socket)
            .0
            .map(|welcome| welcome.status)
            .filter(|status| *status != 0)
    });
    assert_eq!(refused, Some(libc::EAGAIN.unsigned_abs()));
    assert_eq!(world.pids(), [me()]);
}

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

#[test]
fn one_user_cannot_take_all_connections() {
    let world = World::new();
    let held: Vec<OwnedFd> = (0..MAX_VISITORS_PER_UID).map(|_| world.connect()).collect();
    let more = world.connect();
    assert_eq!(
        recv(more.as_raw_fd(), &mut [0; 8], MsgFlags::empty()),
        Ok(0),
        "hung up on"
    );
    drop(held);
    world.until("room again", || {
        let socket = world.connect();
        let request = Request {
            operation: Operation::Get,
            offset: 0,
            name: "devices",
            value: b"",
        };
        let sent = transmit(&socket, &request.to_bytes(), &[]);
        sent.is_ok() && recv(socket.as_raw_fd(), &mut [0; MAX_ANSWER], MsgFlags::empty()).unwrap_or(0) > 0
    });
}
