//! The server on a real socket, with fake hooks, good and hostile.

mod executing;
mod hostile;
mod jobs;
mod registration;
mod requests;
mod rules;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use gcgroup_abi::message::{Answer, Hello, MAX_ANSWER, Operation, RegistrationReply, Request, Tag, bare};
use gcgroup_abi::{Gate, NO_LIMIT};
use nix::sys::socket::{
    ControlMessage, MsgFlags, SockFlag, UnixAddr, connect, recv, sendmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeVal;

use super::listener::new_socket;
use super::*;
use crate::block::theirs::{good_usage_file, usage_file};
use gcgroupfs_model::file::{Node, resolve};
use gcgroupfs_model::tree::{Caller, Device, Owner};
use gcgroupfs_sys::manager::Stored;
use gcgroupfs_sys::process;

const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

/// A daemon without a mount, on a thread; stopped when dropped.
struct World {
    directory: tempfile::TempDir,
    tree: Arc<Tree>,
    rules: CurrentRules,
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
        let tree = Arc::new(Tree::new(owner, vec![device], crate::host::this()));
        let (journal, mut records) = Journal::open(directory.path(), |_| ()).unwrap();
        restore(&tree, &journal, &mut records, false);
        let listener = Listener::open(&mut Stored::default(), &directory.path().join("s")).unwrap();
        let mut server = Server::new(Options {
            listener,
            tree: tree.clone(),
            journal: Arc::new(journal),
            history: Arc::new(History::open(directory.path())),
            records,
            grace_msec: 5000,
            device_page: 1,
            receiver: Box::new(receiver),
        })
        .unwrap();
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker().unwrap());
        let (asked, rules) = (stop.clone(), server.rules());
        let thread = std::thread::spawn(move || server.run(|| !asked.load(Relaxed)).unwrap());
        Self {
            directory,
            tree,
            rules,
            stop,
            waker,
            thread: Some(thread),
        }
    }

    /// Replaces the daemon by another on the same state.
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
        Hook::register(self, &Hello::PLAIN, good_usage_file())
    }

    fn pids(&self) -> Vec<u32> {
        self.tree
            .processes()
            .into_iter()
            .map(|(_, identity)| identity.pid)
            .collect()
    }

    fn show(&self, path: &str) -> String {
        let Node::File(directory, file) = resolve(&self.tree, path).unwrap() else {
            panic!("{path}")
        };
        file.show(&self.tree, directory).unwrap()
    }

    fn store(&self, path: &str, value: &str) {
        let Node::File(directory, file) = resolve(&self.tree, path).unwrap() else {
            panic!("{path}")
        };
        let stored = file.store(&self.tree, directory, ROOT, value.as_bytes());
        self.tree.finish(stored.unwrap());
    }

    /// Waits for a state of the daemon. The deadline is for failures only.
    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::yield_now();
        }
    }

    /// Asserts that the daemon answers a new client.
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

/// Starts a receiver: a thread that does what the process does.
fn receiver(socket: OwnedFd) -> std::io::Result<()> {
    std::thread::spawn(move || crate::receive::serve(&socket));
    Ok(())
}

/// A registered process: this one.
struct Hook {
    socket: OwnedFd,
    control: sys::ControlReader,
}

impl Hook {
    /// Registers; tries again as long as the daemon cannot examine the process in time.
    fn register(world: &World, hello: &Hello, usage: OwnedFd) -> Self {
        let mut registered = None;
        world.until("the process is registered", || {
            let socket = world.connect();
            transmit(&socket, &hello.to_bytes(), &[usage.as_raw_fd()]).unwrap();
            let (reply, control) = reply(&socket);
            let status = reply.unwrap().status.cast_signed();
            assert!(matches!(status, 0 | libc::EAGAIN), "{status}");
            registered = control.map(|control| (socket, control));
            status == 0
        });
        let (socket, control) = registered.unwrap();
        Self {
            socket,
            control: sys::ControlReader::new(&control).unwrap(),
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

/// Waits for the answer to a Hello; `None` if the connection was closed instead.
fn reply(socket: &OwnedFd) -> (Option<RegistrationReply>, Option<OwnedFd>) {
    // Waits here, because `sys::receive` does not.
    if recv(socket.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_PEEK).unwrap_or(0) == 0 {
        return (None, None);
    }
    let mut buffer = [0; 64];
    let received = sys::receive(socket, &mut buffer).unwrap();
    (
        RegistrationReply::from_bytes(&buffer[..received.length]).ok(),
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
        .to_bytes::<Vec<u8>>(),
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
