//! Handles requests of the command line: they are answered at once, within the user's shares of loop time and
//! memory.

use std::os::fd::AsRawFd;
use std::time::Instant;

use gcgroup_abi::message::{Answer, Operation, Request};
use nix::sys::socket::{MsgFlags, send};

use super::Kind;
use crate::socket::Server;
use crate::socket::answer::{Credentials, Reading, answer};
use gcgroupfs_sys as sys;

impl Server {
    /// Answers a request without waiting: a client that does not read its answers is disconnected.
    pub(super) fn take_request(&mut self, number: u64, packet: &[u8]) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        let held = connection.held();
        let reading = match &mut connection.kind {
            Kind::Client(reading) => std::mem::take(reading),
            _ => Reading::default(),
        };
        let user = connection.user();
        let asker = Credentials {
            uid: connection.uid,
            gid: connection.gid,
            pid: connection.pid,
            groups: sys::peer_groups(&*connection.socket).unwrap_or_default(),
            is_contained: user.1,
        };
        self.connections.note_text(asker.uid, held, 0);
        if let Ok(request) = Request::from_bytes(packet)
            && request.operation == Operation::Begin
        {
            return self.ask_for_job(number, &request);
        }
        if let Ok(request) = Request::from_bytes(packet)
            && request.operation == Operation::Hold
        {
            return self.take_hold(number, &request, &asker);
        }
        if let Ok(request) = Request::from_bytes(packet)
            && request.operation == Operation::Devices
        {
            return self.ask_for_devices(number, &request);
        }
        let begun = Instant::now();
        let answered = match Request::from_bytes(packet) {
            // A rule may admit a process to a group that its user may not enter: only a registration can
            // tell.
            Ok(request) if request.operation == Operation::MayBegin && self.rule_queries.are_needed() => {
                Some((Answer::part(&[], 0).to_bytes(), Reading::default()))
            }
            _ => answer(&self.tree, &asker, reading, packet),
        };
        let Some((mut answered, mut reading)) = answered else {
            return false;
        };
        let now = Instant::now();
        self.shares.take(user, now.duration_since(begun), now);
        if !self.connections.has_room_for_text(asker.uid, reading.size()) {
            let why = "the texts that your clients are reading are too large together; read one at a time";
            let refusal = Answer::refusal(libc::EMFILE, why);
            (answered, reading) = (refusal.to_bytes(), Reading::default());
        }
        self.connections.note_text(asker.uid, 0, reading.size());
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        connection.last = now;
        connection.kind = Kind::Client(reading);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(connection.socket.as_raw_fd(), &answered, flags).is_ok()
    }
}
