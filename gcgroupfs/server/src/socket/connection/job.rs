//! Starts jobs: makes a transient group for the command that a client is about to execute.

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use gcgroup_abi::message::{Answer, Request};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::geteuid;

use super::Kind;
use crate::socket::Server;
use crate::socket::answer::Reading;
use crate::socket::rule_queries::JobRequest;
use gcgroupfs_model::error::Result;
use gcgroupfs_model::file::{check_group_name, check_group_path};
use gcgroupfs_model::rules::{Group, Verdict};
use gcgroupfs_sys::process;

impl Server {
    /// Queues the start of a job, which depends on the rules and on the user's name. Returns whether the
    /// connection stays open.
    pub(super) fn ask_for_job(&mut self, number: u64, request: &Request<'_>) -> bool {
        let begun = Instant::now();
        let checked = check_names(request);
        let asked = match &checked {
            Ok(()) => self
                .queue_job(number, request)
                .map_err(|errno| (refusal_errno(errno) as i32, "")),
            Err((errno, why)) => Err((*errno, why.as_str())),
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        let now = Instant::now();
        connection.last = now;
        let user = connection.user();
        self.shares.take(user, now.duration_since(begun), now);
        match asked {
            Ok(()) => true,
            Err((errno, why)) => self.send_answer(number, &Answer::refusal(errno, why)),
        }
    }

    fn queue_job(&mut self, number: u64, request: &Request<'_>) -> nix::Result<()> {
        let (name, program) = split(request.value).ok_or(Errno::EINVAL)?;
        let connection = self.connections.get_mut(&number).ok_or(Errno::ENOTCONN)?;
        let peer = process::peer(&*connection.socket)?;
        let own = geteuid();
        if peer.is_contained || (!own.is_root() && peer.uid != own.as_raw()) {
            return Err(Errno::EPERM);
        }
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let request = JobRequest {
            number,
            peer,
            group: text(request.name.trim_matches('/')),
            name: text(name),
            program: OsStr::from_bytes(program).into(),
        };
        self.rule_queries.ask_for_job(request)?;
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.kind = Kind::Beginner;
        }
        Ok(())
    }

    /// Makes the job's group after the verdict of the rules, and answers. The time is charged to the user.
    pub(in crate::socket) fn begin_job(
        &mut self,
        request: JobRequest,
        judged: nix::Result<(Verdict, Group)>,
    ) {
        let number = request.number;
        let is_waiting = |connection: &super::Connection| matches!(connection.kind, Kind::Beginner);
        if !self.connections.get(&number).is_some_and(is_waiting) {
            return;
        }
        let begun_at = Instant::now();
        let process = self.new_number();
        let begun =
            judged.and_then(|(verdict, users)| (self.registry).begin(request, &verdict, &users, process));
        let is_answered = match begun {
            Ok(path) => self.send_answer(number, &Answer::part(path.as_bytes(), 0)),
            Err(errno) => self.send_answer(number, &Answer::refusal(refusal_errno(errno) as i32, "")),
        };
        if let Some(connection) = self.connections.get_mut(&number) {
            let now = Instant::now();
            connection.last = now;
            connection.kind = Kind::Client(Reading::default());
            let user = connection.user();
            self.shares.take(user, now.duration_since(begun_at), now);
        }
        if !is_answered {
            self.hang_up(number);
        }
    }

    /// Sends an answer without waiting; returns false for a client that does not read its answers.
    pub(super) fn send_answer(&self, number: u64, answer: &Answer<'_>) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let connection = self.connections.get(&number);
        connection.is_some_and(|connection| {
            send(
                connection.socket.as_raw_fd(),
                &answer.to_bytes::<Vec<u8>>(),
                flags,
            )
            .is_ok()
        })
    }
}

/// Returns the errno of a refusal: a process that cannot be examined yet may ask again.
fn refusal_errno(errno: Errno) -> Errno {
    match errno {
        Errno::ETIMEDOUT => Errno::EAGAIN,
        errno => errno,
    }
}

/// Checks the names in a request before any group is made for it. Returns the errno and the reason of a
/// refusal.
fn check_names(request: &Request<'_>) -> std::result::Result<(), (i32, String)> {
    let group = request.name.trim_matches('/');
    let name = split(request.value).map_or("", |(name, _)| name);
    let check = |text: &str, check: fn(&str) -> Result<()>| match text {
        "" => Ok(()),
        text => check(text),
    };
    check(group, check_group_path)
        .and_then(|()| check(name, check_group_name))
        .map_err(|error| (error.errno(), error.to_string()))
}

/// Splits the value of a request at its NUL, into the job's name and the program's path.
fn split(value: &[u8]) -> Option<(&str, &[u8])> {
    let at = value.iter().position(|byte| *byte == 0)?;
    let (name, program) = (value.get(..at)?, value.get(at + 1..)?);
    Some((str::from_utf8(name).ok()?, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_cannot_be_examined_yet_may_ask_again() {
        assert_eq!(refusal_errno(Errno::ETIMEDOUT), Errno::EAGAIN);
        assert_eq!(refusal_errno(Errno::EBUSY), Errno::EBUSY);
    }
}
