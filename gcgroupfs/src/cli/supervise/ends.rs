//! The mount and the socket, and the detection of what other processes do to them.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use anyhow::bail;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tracing::warn;

use gcgroupfs_fuse::mount::{self, Mount, Watch};
use gcgroupfs_fuse::supervisor_state::SupervisorState;
use gcgroupfs_server::socket::Listener;

pub(super) struct Ends {
    pub(super) mount: Mount,
    listener: Listener,
    watch: Watch,
    next_look: Option<Instant>,
    /// The previous socket. Its last reference is dropped long after the daemon has accepted the clients
    /// queued there.
    old: Option<OwnedFd>,
    /// Whether the daemon has the present socket, or will inherit it.
    is_told: bool,
}

impl Ends {
    /// # Errors
    /// Out of descriptors.
    pub(super) fn new(mount: Mount, listener: Listener) -> std::io::Result<Self> {
        Ok(Self {
            watch: Watch::new(mount.point(), mount.device())?,
            mount,
            next_look: listener.next_look(Instant::now()),
            listener,
            old: None,
            is_told: true,
        })
    }

    /// Returns when to [look](Self::look) next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Checks, if due, that the mount is visible and the socket's file exists. A new socket is kept and sent
    /// to the daemon over `line`.
    pub(super) fn look(&mut self, state: &mut SupervisorState, line: Option<&OwnedFd>) {
        let now = Instant::now();
        if self.next_look.is_none_or(|when| now < when) {
            return;
        }
        self.next_look = self.listener.next_look(now);
        self.watch.look(now);
        if let Some(old) = self.listener.look() {
            self.old = Some(old);
            self.is_told = false;
            match self.listener.share() {
                Ok(socket) => state.listener = socket,
                Err(error) => warn!("the next daemon does not listen on the new socket: {error}"),
            }
        }
        if let (false, Some(line)) = (self.is_told, line) {
            let raw = [state.listener.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&raw)];
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let sent = sendmsg::<()>(line.as_raw_fd(), &[IoSlice::new(&[0])], &rights, flags, None);
            self.is_told = sent.is_ok();
        }
    }

    /// Notes that a daemon starts with the present socket.
    pub(super) fn begins(&mut self) {
        self.is_told = true;
    }

    /// Returns whether the mount is gone, so that a daemon has nothing to serve.
    ///
    /// # Errors
    /// The mount's connection was aborted.
    pub(super) fn is_unmounted(&self, state: &SupervisorState) -> anyhow::Result<bool> {
        if mount::is_connected(&state.device) {
            return Ok(false);
        }
        if mount::is_listed(self.mount.point(), self.mount.device()) {
            bail!("the connection of the mount was aborted");
        }
        Ok(true)
    }
}
