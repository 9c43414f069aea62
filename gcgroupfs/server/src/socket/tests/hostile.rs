//! Invalid and hostile input, and what it must not cause.

use super::*;
use crate::socket::connections::MAX_UNREGISTERED_PER_UID;
use crate::socket::live_processes::MAX_PER_SECOND;
use crate::socket::rule_queries::Registrant;
use gcgroupfs_model::rules::Verdict;
use gcgroupfs_sys::UsageMap;
use gcgroupfs_sys::process::Peer;

#[test]
fn invalid_usage_block_is_refused_with_an_errno() {
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
        let (reply, control) = reply(&socket);
        assert_eq!(
            reply.map(|w| w.status),
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
        reply(&socket).0.map(|w| w.status),
        Some(libc::EPROTONOSUPPORT.unsigned_abs())
    );
    assert!(world.pids().is_empty());
    world.assert_well();
}

#[test]
fn invalid_packet_ends_only_its_connection() {
    let world = World::new();
    let usage = good_usage_file();
    let long = vec![0x55; 64 << 10];
    let mut many = Vec::new();
    many.resize(200, usage.as_raw_fd());
    let doorbell = bare(Tag::Doorbell);
    let cut = &Hello::PLAIN.to_bytes()[..20];
    let request: Vec<u8> = Request {
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
        reply(&socket).0.map(|w| w.status),
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
fn descriptor_that_cannot_be_closed_blocks_no_other_client() {
    let world = World::new();
    let (sent, _stuck) = lingering();
    let socket = world.connect();
    transmit(&socket, &Hello::PLAIN.to_bytes(), &[sent.as_raw_fd()]).unwrap();
    close_aside(sent);
    assert_eq!(
        reply(&socket).0.map(|w| w.status),
        Some(libc::EINVAL.unsigned_abs())
    );
    world.assert_well();
    // Unread in a closed connection it is just as harmful.
    let (sent, _stuck) = lingering();
    let socket = world.connect();
    transmit(&socket, b"junk", &[]).unwrap();
    let _ = transmit(&socket, &Hello::PLAIN.to_bytes(), &[sent.as_raw_fd()]);
    drop(socket);
    close_aside(sent);
    world.assert_well();
}

/// Closes on another thread: if the daemon has closed its own copy first, this close waits for the peer.
fn close_aside(sent: std::net::TcpStream) {
    std::thread::spawn(move || drop(sent));
}

/// Returns a TCP socket whose close(2) waits for a peer that does not read, and that peer.
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
fn hook_that_rings_and_never_reads_blocks_no_other_client() {
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
fn registrations_of_one_process_at_once_are_bounded() {
    const NR: usize = 400;
    let world = World::new();
    let sockets: Vec<OwnedFd> = (0..NR).map(|_| world.connect()).collect();
    for socket in &sockets {
        let usage = good_usage_file();
        transmit(socket, &Hello::PLAIN.to_bytes(), &[usage.as_raw_fd()]).unwrap();
    }
    world.assert_well();
    let answers = sockets.iter().map(|socket| reply(socket).0.unwrap().status);
    let (accepted, refused): (Vec<u32>, Vec<u32>) = answers.partition(|status| *status == 0);
    assert!(accepted.len() >= MAX_PER_SECOND as usize, "{}", accepted.len());
    assert!(
        !refused.is_empty()
            && refused
                .iter()
                .all(|status| *status == libc::EAGAIN.unsigned_abs())
    );
    assert_eq!(world.pids(), [me()]);
}

#[test]
fn one_user_cannot_take_all_connections() {
    let world = World::new();
    let held: Vec<OwnedFd> = (0..MAX_UNREGISTERED_PER_UID).map(|_| world.connect()).collect();
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
        let sent = transmit(&socket, &request.to_bytes::<Vec<u8>>(), &[]);
        sent.is_ok() && recv(socket.as_raw_fd(), &mut [0; MAX_ANSWER], MsgFlags::empty()).unwrap_or(0) > 0
    });
}

#[test]
fn one_user_cannot_take_all_directories() {
    use nix::sys::eventfd::EventFd;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let tree = Arc::new(Tree::new(
        Owner { uid: 0, gid: 0 },
        Vec::new(),
        crate::host::this(),
    ));
    let (_, saved) = Journal::open(directory.path(), |_| ()).unwrap();
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap());
    let mut registry = Registry::new(registry::Options {
        tree: tree.clone(),
        bells: Arc::default(),
        epoll,
        grace_msec: 5000,
        device_page: 1,
        records: saved,
        activity_log: Arc::new(ActivityLog::new(&tree)),
    });
    let socket = Arc::new(OwnedFd::from(UnixStream::pair().unwrap().0));
    // Pids that no process has: kernel.pid_max is 2^22 at most.
    let mut next = 1 << 23;
    let mut register = |registry: &mut Registry, uid| {
        next += 1;
        let registrant = Registrant {
            wish: None,
            number: u64::from(next),
            peer: Peer {
                pid: next,
                uid,
                gid: uid,
                groups: Vec::new(),
                is_contained: false,
                stat: process::Stat {
                    comm: "one of many".into(),
                    parent: 0,
                    start_time: 5,
                    image: None,
                    is_ending: false,
                },
                // One that is never readable: it never ends.
                pidfd: EventFd::new().unwrap().into(),
            },
            hello: Hello::PLAIN,
            usage: UsageMap::new(&good_usage_file()).unwrap(),
        };
        let registered = registry.register(registrant, &Verdict::default(), socket.clone());
        registered.map(|registered| registered.number)
    };
    let taken = (0..100_000)
        .map_while(|_| register(&mut registry, 7).ok())
        .count();
    assert!((1000..=1024).contains(&taken), "{taken}");
    assert_eq!(register(&mut registry, 7), Err(Errno::EDQUOT));
    let others = register(&mut registry, 8).unwrap();
    assert_eq!(tree.processes().len(), taken + 1);
    registry.died(others);
    assert_eq!(register(&mut registry, 7), Err(Errno::EDQUOT), "another's room");
    registry.died((1 << 23) + 1);
    assert!(register(&mut registry, 7).is_ok(), "its own");
}
