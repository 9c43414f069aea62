//! Tells processes that have not registered what their groups allow them, for NVML (`calls/nvml` of the
//! hook).

use std::os::fd::AsRawFd;
use std::time::Instant;

use gcgroup_abi::message::{RoomQuery, RoomReply};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::geteuid;

use super::Kind;
use crate::socket::Server;
use crate::socket::answer::Reading;
use gcgroupfs_sys::process;

impl Server {
    /// Answers a query without waiting. Returns false: the connection has no further use.
    pub(super) fn take_room_query(&mut self, number: u64, packet: &[u8]) -> bool {
        let begun = Instant::now();
        let reply = RoomQuery::from_bytes(packet)
            .map_err(|_| Errno::EPROTO)
            .and_then(|query| self.room_of(number, &query));
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        // Its end is not that of a hook that gave up its registration.
        connection.kind = Kind::Client(Reading::default());
        let user = connection.user();
        let now = Instant::now();
        self.shares.take(user, now.duration_since(begun), now);
        if let (Ok(reply), Some(connection)) = (reply, self.connections.get(&number)) {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            // A process that does not read it notices the end of the connection.
            let _ = send(connection.socket.as_raw_fd(), &reply.to_bytes(), flags);
        }
        false
    }

    fn room_of(&self, number: u64, query: &RoomQuery) -> nix::Result<RoomReply> {
        let connection = self.connections.get(&number).ok_or(Errno::ENOTCONN)?;
        let peer = process::peer(&*connection.socket)?;
        let own = geteuid();
        if !own.is_root() && peer.uid != own.as_raw() {
            return Ok(RoomReply::NO_LIMIT);
        }
        let group = self.registry.group_before_registration(&peer, query.group)?;
        let (limit, room) = self.tree.group_room(group, query.uuid);
        Ok(RoomReply { limit, room })
    }
}
