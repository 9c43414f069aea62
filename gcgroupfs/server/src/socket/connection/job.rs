//! Starts jobs: makes a transient group for the command that a client is about to execute.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use gcgroup_abi::message::{Answer, Request};
use nix::errno::Errno;

use super::request::{refused, refused_by_tree};
use super::{Kind, governs_user};
use crate::socket::Server;
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
        let asked = match check_names(request) {
            Ok(()) => self.queue_job(number, request).map_err(refused),
            Err(error) => Err(refused_by_tree(&error)),
        };
        self.note_request(number, begun);
        match asked {
            Ok(()) => true,
            Err((errno, why)) => self.send_answer(number, &Answer::refusal(errno, &why)),
        }
    }

    fn queue_job(&mut self, number: u64, request: &Request<'_>) -> nix::Result<()> {
        let (name, program) = split(request.value).ok_or(Errno::EINVAL)?;
        let connection = self.connections.get(&number).ok_or(Errno::ENOTCONN)?;
        let peer = process::peer(&*connection.socket)?;
        if peer.is_contained || !governs_user(peer.uid) {
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
        let begun = judged
            .map_err(refused)
            .and_then(|(verdict, users)| (self.registry).begin(request, &verdict, &users, process));
        match begun {
            Ok(path) => self.end_request(number, begun_at, &Answer::part(path.as_bytes(), 0)),
            Err((errno, why)) => self.end_request(number, begun_at, &Answer::refusal(errno, &why)),
        }
    }
}

/// Checks the names in a request before any group is made for it.
fn check_names(request: &Request<'_>) -> Result<()> {
    let group = request.name.trim_matches('/');
    let name = split(request.value).map_or("", |(name, _)| name);
    let check = |text: &str, check: fn(&str) -> Result<()>| match text {
        "" => Ok(()),
        text => check(text),
    };
    check(group, check_group_path).and_then(|()| check(name, check_group_name))
}

/// Splits the value of a request at its NUL, into the job's name and the program's path.
fn split(value: &[u8]) -> Option<(&str, &[u8])> {
    let at = value.iter().position(|byte| *byte == 0)?;
    let (name, program) = (value.get(..at)?, value.get(at + 1..)?);
    Some((str::from_utf8(name).ok()?, program))
}
