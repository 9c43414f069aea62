//! Registers processes: has their usage blocks received and the rules evaluated, and answers with a control
//! block or an error.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use gcgroup_abi::message::{self, Hello, RegistrationReply, Tag};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tracing::{debug, info, warn};

use super::{Connection, Kind, governs_user};
use crate::block;
use crate::journal::Key;
use crate::socket::Server;
use crate::socket::rule_queries::Registrant;
use gcgroupfs_model::rules::Verdict;
use gcgroupfs_sys::process::{self, Peer};

impl Server {
    /// Handles a packet that carries descriptors and returns whether it is valid. The packet stays in the
    /// socket, to be read by a receiver.
    pub(super) fn take_with_rights(&mut self, number: u64, packet: &[u8]) -> bool {
        let is_hello = message::tag(packet) == Ok(Tag::Hello);
        if !is_hello
            || !self
                .connections
                .get(&number)
                .is_some_and(|connection| connection.is_new())
        {
            return false;
        }
        let Some(hello) = self.hello(number, packet) else {
            return false;
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        let now = Instant::now();
        if let Some(delay) = self.registry.delay(connection.pid, now) {
            // The packet waits in the socket and costs no more than any connection.
            self.mute(number, now + delay);
            return true;
        }
        // A hook with `GCGROUP_REQUIRED` lets nothing through when it gives up.
        if hello.insists == 0 {
            self.registry.asks(connection.pid);
        }
        let asked = (self.receivers).ask(number, connection.uid, connection.socket.clone());
        if let Err(errno) = asked {
            let uid = connection.uid;
            if self.registry.may_log_of(uid) {
                warn!("user {uid} registers no process: it has sent descriptors whose close does not return");
            }
            self.refuse_unexamined(number, errno);
            return false;
        }
        // Only the receiver reads from the socket until it has answered.
        connection.kind = Kind::Sender(hello);
        true
    }

    /// Parses a registration. If it is malformed or of another version, sends the error and returns `None`.
    pub(super) fn hello(&mut self, number: u64, packet: &[u8]) -> Option<Hello> {
        // The version is checked first: other versions may have other lengths.
        if let Ok(version) = message::version(packet)
            && version != gcgroup_abi::VERSION
        {
            let ours = gcgroup_abi::VERSION;
            let fault =
                format!("is not governed: its hook speaks version {version}, this daemon version {ours}");
            self.complain_of(number, &fault);
            self.refuse_registration(number, Errno::EPROTONOSUPPORT);
            return None;
        }
        let hello = Hello::from_bytes(packet);
        if hello.is_err() {
            self.refuse(number, Errno::EPROTO);
        }
        hello.ok()
    }

    /// Continues the registrations whose usage blocks have been received.
    pub(in crate::socket) fn take_usage_blocks(&mut self) {
        while let Some((number, usage)) = self.receivers.answer() {
            self.take_usage(number, usage);
        }
    }

    /// Continues a registration whose usage block has been received, or sends the process the error.
    pub(in crate::socket) fn take_usage(&mut self, number: u64, usage: nix::Result<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let Kind::Sender(hello) = connection.kind else {
            return;
        };
        connection.kind = Kind::Registrant;
        self.watch(number);
        if let Err(errno) = usage.and_then(|usage| self.register(number, &hello, &usage)) {
            self.refuse_unexamined(number, errno);
            self.hang_up(number);
        }
    }

    /// Registers the process at once, or after the rules have been evaluated. A user's daemon governs only
    /// that user's processes.
    fn register(&mut self, number: u64, hello: &Hello, usage: &OwnedFd) -> nix::Result<()> {
        let Some(connection) = self.connections.get(&number) else {
            return Err(Errno::ENOTCONN);
        };
        let usage = block::map_usage(usage)?;
        let peer: Peer = process::peer(&*connection.socket)?;
        if !governs_user(peer.uid) {
            return Err(Errno::EPERM);
        }
        let is_known = self.registry.is_known(&peer);
        let wish = self.registry.original_wish(hello.group);
        let registrant = Registrant {
            wish,
            number,
            peer,
            hello: *hello,
            usage,
        };
        if is_known || !self.rule_queries.are_needed() {
            return self.admit(registrant, &Verdict::default());
        }
        self.rule_queries.ask(registrant)
    }

    /// Continues a registration after its verdict.
    pub(in crate::socket) fn admit_or_refuse(
        &mut self,
        registrant: Registrant,
        verdict: nix::Result<Verdict>,
    ) {
        let number = registrant.number;
        // A process that cannot be examined may be one that a rule is for.
        let bars_cuda = match &verdict {
            Ok(verdict) => verdict.required,
            Err(_) => self.rule_queries.may_require(),
        };
        if let Err(errno) = verdict.and_then(|verdict| self.admit(registrant, &verdict)) {
            self.refuse_and_bar(number, errno, bars_cuda);
            self.hang_up(number);
        }
    }

    fn admit(&mut self, registrant: Registrant, verdict: &Verdict) -> nix::Result<()> {
        let number = registrant.number;
        let Some(connection) = self.connections.get(&number) else {
            return Err(Errno::ENOTCONN);
        };
        let socket = connection.socket.clone();
        let lacks_helper = registrant.hello.lacks_helper != 0;
        let registered = self.registry.register(registrant, verdict, socket.clone())?;
        if lacks_helper {
            self.complain_of(number, "has no helper thread: its freezes are not confirmed");
        }
        if let Some(superseded) = registered.superseded {
            self.close(superseded);
        }
        let sent = send_reply(&socket, 0, false, Some(&registered.control));
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.kind = Kind::Hook {
                process: registered.number,
                id: registered.id,
                has_drain_error: false,
            };
            self.connections.is_hook_now(number);
        }
        if let Err(error) = sent {
            // The process has ended already; its end is noticed in the usual way.
            debug!("a process left while it registered: {error}");
        }
        Ok(())
    }

    fn refuse(&mut self, number: u64, errno: Errno) {
        self.refuse_and_bar(number, errno, false);
    }

    /// Refuses a registration for which the rules have not been evaluated. A process that cannot be examined
    /// may be one that a rule is for: a user could otherwise lift the rule by provoking the error.
    fn refuse_unexamined(&mut self, number: u64, errno: Errno) {
        let uid = self.connections.get(&number).map(Connection::uid);
        let bars_cuda = uid.is_some_and(governs_user) && self.rule_queries.may_require();
        self.refuse_and_bar(number, errno, bars_cuda);
    }

    /// Refuses a registration; with `bars_cuda` the process must not use CUDA.
    fn refuse_and_bar(&mut self, number: u64, errno: Errno, bars_cuda: bool) {
        // A process that cannot be examined yet may try again.
        let errno = match errno {
            Errno::ETIMEDOUT => Errno::EAGAIN,
            errno => errno,
        };
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        if self.registry.may_log_of(connection.uid) {
            let by = if bars_cuda { ", and CUDA by a rule" } else { "" };
            info!("a process of user {} was refused{by}: {errno}", connection.uid);
        }
        // A client that does not read it notices the end of the connection.
        let _ = send_reply(&connection.socket, number_of(errno), bars_cuda, None);
    }

    pub(super) fn refuse_registration(&self, number: u64, errno: Errno) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        // A client that does not read it notices the end of the connection.
        let _ = send_reply(&connection.socket, number_of(errno), false, None);
    }

    /// Logs, once for each process, what is wrong with its hook. A hook of another version keeps trying,
    /// because the next daemon may match.
    pub(super) fn complain_of(&mut self, number: u64, fault: &str) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        let Ok(peer) = process::peer(&*connection.socket) else {
            return;
        };
        let key = Key {
            pid: peer.pid,
            start_time: peer.stat.start_time,
        };
        if self.logged_once.insert(key) && self.registry.may_log_of(peer.uid) {
            warn!("{} ({}) of user {} {fault}", peer.pid, peer.stat.comm, peer.uid);
        }
    }
}

fn number_of(errno: Errno) -> u32 {
    (errno as i32).unsigned_abs()
}

/// Answers a registration: with the control block, or with the errno of its refusal.
fn send_reply(
    socket: &OwnedFd,
    status: u32,
    bars_cuda: bool,
    control: Option<&OwnedFd>,
) -> nix::Result<usize> {
    let reply = RegistrationReply {
        abi: gcgroup_abi::VERSION,
        status,
        bars_cuda,
    };
    let rights = control.map(|control| [control.as_raw_fd()]);
    let rights = rights.as_ref().map(|rights| ControlMessage::ScmRights(rights));
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&reply.to_bytes())],
        rights.as_slice(),
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
        None,
    )
}
