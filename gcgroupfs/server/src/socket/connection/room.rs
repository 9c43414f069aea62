//! Tells processes that have not registered what their groups allow them, for NVML (`calls/nvml` of the
//! hook).

use std::time::Instant;

use gcgroup_abi::message::{RoomQuery, RoomReply};
use nix::errno::Errno;

use super::{Kind, governs_user};
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
        if let Some(connection) = self.note_request(number, begun) {
            // Its end is not that of a hook that gave up its registration.
            connection.kind = Kind::Client(Reading::default());
        }
        if let Ok(reply) = reply {
            // A process that does not read it notices the end of the connection.
            self.send_packet(number, &reply.to_bytes());
        }
        false
    }

    fn room_of(&self, number: u64, query: &RoomQuery) -> nix::Result<RoomReply> {
        let connection = self.connections.get(&number).ok_or(Errno::ENOTCONN)?;
        let peer = process::peer(&*connection.socket)?;
        if !governs_user(peer.uid) {
            return Ok(RoomReply::NO_LIMIT);
        }
        let group = self.registry.group_before_registration(&peer, query.group);
        let (limit, room) = self.tree.group_room(group, query.uuid);
        Ok(RoomReply { limit, room })
    }
}
