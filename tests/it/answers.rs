//! A daemon that only answers registrations.

use std::fs::{self, File, Permissions};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gcgroup_abi::message::{MAX_LENGTH, RegistrationReply};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept4, bind, listen, recvmsg, sendmsg, socket,
};

/// A socket on which hooks register.
pub(crate) struct Answers {
    listener: OwnedFd,
}

/// A hook that waits for the answer to its registration.
pub(crate) struct Waiting {
    connection: OwnedFd,
    /// Its usage block.
    pub usage: File,
}

impl Answers {
    pub(crate) fn at(path: &Path) -> Self {
        let listener = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        );
        let listener = listener.expect("a socket");
        bind(listener.as_raw_fd(), &UnixAddr::new(path).expect("a path")).expect("the path is free");
        listen(&listener, Backlog::new(16).expect("the backlog is valid")).expect("the socket can listen");
        fs::set_permissions(path, Permissions::from_mode(0o666)).expect("the owner may change the mode");
        Self { listener }
    }

    /// Waits for the next hook.
    pub(crate) fn accept(&self) -> Waiting {
        loop {
            let connection =
                accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).expect("a client connects");
            // SAFETY: accept4(2) has just returned it, and no other owner exists.
            let connection = unsafe { OwnedFd::from_raw_fd(connection) };
            // A new hook does not ask its parent for its devices, and closes that connection.
            if let Some(usage) = usage_of(&connection) {
                return Waiting { connection, usage };
            }
        }
    }
}

impl Waiting {
    /// Answers, with a control block if there is one. Returns the connection.
    pub(crate) fn answer(self, reply: RegistrationReply, control: Option<&OwnedFd>) -> OwnedFd {
        let files: Vec<_> = control.iter().map(|file| file.as_raw_fd()).collect();
        let files = [ControlMessage::ScmRights(&files)];
        let files = if control.is_some() { &files[..] } else { &[] };
        let reply = reply.to_bytes();
        let parts = [IoSlice::new(&reply)];
        sendmsg::<()>(
            self.connection.as_raw_fd(),
            &parts,
            files,
            MsgFlags::MSG_NOSIGNAL,
            None,
        )
        .expect("the client receives");
        self.connection
    }
}

/// Receives the first packet of a hook, and returns the file that it carries; `None` without one, or if the
/// hook has closed the connection.
fn usage_of(connection: &OwnedFd) -> Option<File> {
    let mut buffer = [0; MAX_LENGTH];
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let mut space = nix::cmsg_space!([i32; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(connection.as_raw_fd(), &mut parts, Some(&mut space), flags)
        .expect("the client sends hello");
    let mut files = Vec::new();
    for message in received.cmsgs().expect("the control data is whole") {
        if let ControlMessageOwned::ScmRights(fds) = message {
            // SAFETY: the kernel has just created these descriptors for this process.
            files.extend(fds.into_iter().map(|fd| unsafe { File::from_raw_fd(fd) }));
        }
    }
    files.pop()
}
