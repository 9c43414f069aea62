//! Requests of the command line: answered at once, within what a user may take of the loop's time and of memory.

use std::os::fd::AsRawFd;
use std::time::Instant;

use nix::sys::socket::{MsgFlags, send};

use super::Kind;
use crate::protocol::Answer;
use crate::server::Server;
use crate::server::answer::{Credentials, answer};
use crate::sys;

/// Bytes that are held for one user who reads what takes several packets.
const MAX_HELD: usize = 64 << 20;

impl Server {
    /// Answers a request; nobody is waited for, so who does not read the answers is hung up on.
    pub(super) fn take_request(&mut self, number: u64, packet: &[u8]) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        let text = match &mut connection.kind {
            Kind::Client(text) => std::mem::take(text),
            _ => Vec::new(),
        };
        let asker = Credentials {
            uid: connection.uid,
            gid: connection.gid,
            groups: sys::peer_groups(&*connection.socket).unwrap_or_default(),
            is_contained: connection.user().1,
        };
        let begun = Instant::now();
        let Some((mut answered, mut text)) = answer(&self.tree, &asker, text, packet) else {
            return false;
        };
        connection.last = Instant::now();
        let taken = connection.last.duration_since(begun);
        self.shares.take(connection.user(), taken, connection.last);
        if !text.is_empty() && self.held_for(asker.uid).saturating_add(text.len()) > MAX_HELD {
            (answered, text) = (Answer::refusal(libc::EMFILE).to_bytes(), Vec::new());
        }
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        connection.kind = Kind::Client(text);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(connection.socket.as_raw_fd(), &answered, flags).is_ok()
    }

    /// Bytes of the texts that a user is reading.
    fn held_for(&self, uid: u32) -> usize {
        let visitors = self
            .timed
            .iter()
            .filter_map(|number| self.connections.get(number));
        let texts = visitors.filter(|connection| connection.uid == uid);
        texts
            .map(|connection| match &connection.kind {
                Kind::Client(text) => text.len(),
                _ => 0,
            })
            .sum()
    }
}
