//! Reports to the supervisor that the daemon serves, and takes over the socket that it sends.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::socket::{MsgFlags, send};

use super::Server;
use super::token::Token;
use gcgroupfs_sys::{self as sys, Received};

impl Server {
    /// Tells the supervisor at the other end of `line` that the daemon serves, and answers each of its later
    /// checks.
    ///
    /// # Errors
    /// The kernel refuses to watch the descriptor.
    pub fn report_to(&mut self, line: OwnedFd) -> anyhow::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Supervisor.into());
        self.epoll
            .add(&line, event)
            .context("cannot watch the supervisor")?;
        self.line = Some(line);
        self.reassure();
        Ok(())
    }

    fn reassure(&self) {
        // Takes the tree's lock, so the answer also proves that the lock is not held for ever.
        let _ = self.tree.processes();
        if let Some(line) = &self.line {
            let _ = send(
                line.as_raw_fd(),
                &[0],
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            );
        }
    }

    /// Handles a packet of the supervisor: a check, or the socket that replaces the listener's.
    pub(super) fn answer_supervisor(&mut self) {
        let Some(line) = &self.line else { return };
        match sys::receive(line, &mut [0]) {
            Ok(Received {
                length: 1..,
                descriptors,
                ..
            }) => match descriptors.into_iter().next() {
                Some(socket) => {
                    let old = self.listener.replace(socket);
                    self.listen_anew(old);
                }
                None => self.reassure(),
            },
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // The supervisor has ended; a signal reports that separately.
            Ok(_) | Err(_) => {
                let _ = self.epoll.delete(line);
                self.line = None;
            }
        }
    }
}
