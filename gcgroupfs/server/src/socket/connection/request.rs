//! Handles requests of the command line: they are answered at once, within the user's shares of loop time and
//! memory.

use std::os::fd::AsRawFd;
use std::time::Instant;

use gcgroup_abi::message::{Answer, Operation, Request};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

use super::{Connection, Kind};
use crate::socket::Server;
use crate::socket::answer::{Credentials, Reading, answer, events as events_text};
use gcgroupfs_model::error::Error;
use gcgroupfs_sys as sys;

impl Server {
    /// Answers a request without waiting: a client that does not read its answers is disconnected.
    pub(super) fn take_request(&mut self, number: u64, packet: &[u8]) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        let (uid, held) = (connection.uid, connection.held());
        let client = Kind::Client(Reading::default());
        let reading = match std::mem::replace(&mut connection.kind, client) {
            Kind::Client(reading) => reading,
            _ => Reading::default(),
        };
        self.connections.note_text(uid, held, 0);
        // Each program that starts waits for this, so nothing else is read of its process before.
        if let Ok(request) = Request::from_bytes(packet)
            && request.operation == Operation::Devices
        {
            return self.ask_for_devices(number, &request);
        }
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        let user = connection.user();
        let asker = Credentials {
            uid: connection.uid,
            gid: connection.gid,
            pid: connection.pid,
            groups: sys::peer_groups(&*connection.socket).unwrap_or_default(),
            is_contained: user.1,
        };
        let begun = Instant::now();
        let answered = match Request::from_bytes(packet) {
            Ok(request) if request.operation == Operation::Begin => {
                return self.ask_for_job(number, &request);
            }
            Ok(request) if request.operation == Operation::Hold => {
                return self.take_hold(number, &request, &asker);
            }
            Ok(request) if request.operation == Operation::Ended && request.offset == 0 => {
                let pid = request.name.parse().ok();
                let reading = Reading::of_ended(self.history.lines(), pid);
                Some(reading.part(&self.tree, &asker, 0))
            }
            Ok(request) if request.operation == Operation::Events && request.offset == 0 => {
                let last = request.name.parse().unwrap_or(0);
                let events = self.registry.activity_log().events_after(last);
                let reading = Reading::of_text(events_text(&self.tree, &asker, events));
                Some(reading.part(&self.tree, &asker, 0))
            }
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
        if !self.connections.has_room_for_text(asker.uid, reading.size()) {
            let why = "the texts that your clients are reading are too large together; read one at a time";
            let refusal = Answer::refusal(libc::EMFILE, why);
            (answered, reading) = (refusal.to_bytes(), Reading::default());
        }
        self.connections.note_text(asker.uid, 0, reading.size());
        if let Some(connection) = self.note_request(number, begun) {
            connection.kind = Kind::Client(reading);
        }
        self.send_packet(number, &answered)
    }

    /// Charges the time since `begun` to the user of a connection, and returns the connection.
    pub(super) fn note_request(&mut self, number: u64, begun: Instant) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(&number)?;
        let now = Instant::now();
        connection.last = now;
        self.shares
            .take(connection.user(), now.duration_since(begun), now);
        Some(connection)
    }

    /// Sends an answer without waiting; returns false for a client that does not read its answers.
    pub(super) fn send_answer(&self, number: u64, answer: &Answer<'_>) -> bool {
        self.send_packet(number, &answer.to_bytes::<Vec<u8>>())
    }

    /// Sends a packet as [`send_answer`](Self::send_answer) does.
    pub(super) fn send_packet(&self, number: u64, packet: &[u8]) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let connection = self.connections.get(&number);
        connection.is_some_and(|connection| send(connection.socket.as_raw_fd(), packet, flags).is_ok())
    }

    /// Answers a request that the rules were asked about. The time since `begun` is charged to the user.
    pub(super) fn end_request(&mut self, number: u64, begun: Instant, answer: &Answer<'_>) {
        let is_answered = self.send_answer(number, answer);
        if let Some(connection) = self.note_request(number, begun) {
            connection.kind = Kind::Client(Reading::default());
        }
        if !is_answered {
            self.hang_up(number);
        }
    }
}

/// Reason of a refusal: the errno, and words. `EAGAIN`: the client may try again, since the reason passes by
/// itself.
pub(in crate::socket) type Refused = (i32, String);

/// Returns the reason for a failure.
pub(in crate::socket) fn refused(errno: Errno) -> Refused {
    let (errno, why) = match errno {
        Errno::ETIMEDOUT => (
            Errno::EAGAIN,
            "the kernel does not tell in time about this process or its parents",
        ),
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => {
            (Errno::EAGAIN, "the daemon has no descriptor or no memory left")
        }
        Errno::EAGAIN => (
            errno,
            "too many processes are starting, or a container's name is not known yet",
        ),
        Errno::EDQUOT => (errno, "too many processes of this user are governed"),
        errno => (errno, ""),
    };
    (errno as i32, why.to_owned())
}

/// Returns the reason for an error of the tree. A bound on numbers does not pass by itself.
pub(in crate::socket) fn refused_by_tree(error: &Error) -> Refused {
    let errno = match error {
        Error::TooMany { .. } | Error::TooManyHolds { .. } => Errno::EDQUOT as i32,
        error => error.errno(),
    };
    (errno, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_passing_reasons_are_worth_another_attempt() {
        for errno in [Errno::ETIMEDOUT, Errno::EMFILE, Errno::ENOMEM, Errno::EAGAIN] {
            assert_eq!(refused(errno).0, libc::EAGAIN, "{errno}");
        }
        let full = Error::TooMany { per_user: 7, all: 9 };
        assert_eq!(refused_by_tree(&full), (libc::EDQUOT, full.to_string()));
        assert_eq!(refused(Errno::EDQUOT).0, libc::EDQUOT);
        assert_eq!(refused_by_tree(&Error::Exists).0, libc::EEXIST);
    }
}
