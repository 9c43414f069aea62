//! Acceptance of connections, also after the socket was replaced.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::socket::{Shutdown, shutdown};
use tracing::{debug, warn};

use super::connection::Connection;
use super::connections::Admission;
use super::{Server, TICK, Token};
use gcgroupfs_sys as sys;
use gcgroupfs_sys::process;

/// Maximum number of connections that are accepted in one turn of the loop.
const MAX_ACCEPTED: usize = 64;

impl Server {
    /// Accepts the connections that wait, at most [`MAX_ACCEPTED`].
    pub(super) fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTED {
            if !self.accept_one() {
                break;
            }
        }
    }

    /// Accepts a connection. Returns whether there may be more.
    fn accept_one(&mut self) -> bool {
        match sys::accept(&self.listener) {
            Ok(socket) => {
                self.add_connection(socket);
                true
            }
            Err(Errno::EAGAIN) => false,
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                if self.complaints.allows(Instant::now()) {
                    warn!("no room for another connection: clients wait");
                }
                self.pause();
                false
            }
            // The client disconnected before it was accepted.
            Err(error) => {
                debug!("accept: {error}");
                true
            }
        }
    }

    fn add_connection(&mut self, socket: OwnedFd) {
        let Ok((pid, uid, gid)) = process::owner(&socket) else {
            return self.receivers.retire(u32::MAX, Arc::new(socket));
        };
        if sys::is_hung_up(&socket) {
            // This may be a hook that gave up waiting.
            self.registry.asks(pid);
            return self.receivers.retire(uid, Arc::new(socket));
        }
        match self.connections.admission(uid) {
            Admission::Free => {}
            Admission::InPlaceOf(other) => self.hang_up(other),
            Admission::Refused => {
                debug!("user {uid} has too many connections");
                return self.receivers.retire(uid, Arc::new(socket));
            }
        }
        let number = self.new_number();
        let connection = Box::new(Connection::new(socket, pid, uid, gid));
        if let Err(error) = self.epoll.add(connection.socket(), connection.event(number)) {
            warn!("cannot watch a connection: {error}");
            return self.receivers.retire(uid, connection.into_socket());
        }
        self.connections.insert(number, connection);
    }

    /// Stops accepting connections for one [`TICK`].
    fn pause(&mut self) {
        self.full_until = Some(Instant::now() + TICK);
        self.listen(EpollFlags::empty());
    }

    pub(super) fn listen(&self, flags: EpollFlags) {
        let mut event = EpollEvent::new(flags, Token::Listener.into());
        if let Err(error) = self.epoll.modify(&self.listener, &mut event) {
            warn!("cannot watch the socket: {error}");
        }
    }

    /// Listens on the socket that has replaced `old`, after accepting the connections that are queued on
    /// `old`.
    pub(super) fn listen_anew(&mut self, old: OwnedFd) {
        let _ = self.epoll.delete(&old);
        // No further client can connect to the old socket; otherwise this loop might not end.
        let _ = shutdown(old.as_raw_fd(), Shutdown::Both);
        while let Ok(socket) = sys::accept(&old) {
            self.add_connection(socket);
        }
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Listener.into());
        if let Err(error) = self.epoll.add(&self.listener, event) {
            warn!("cannot watch the socket: {error}");
        }
    }
}
