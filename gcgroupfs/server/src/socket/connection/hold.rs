//! Requests to hold settings for the process that asks.

use std::time::Instant;

use gcgroup_abi::message::{Answer, Request};
use nix::errno::Errno;

use super::governs_user;
use super::request::{Refused, refused, refused_by_tree};
use crate::socket::Server;
use crate::socket::answer::{Credentials, resolve};
use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file::Node;
use gcgroupfs_model::tree::{NewHold, SETTINGS, Setting, Tree};
use gcgroupfs_sys::process;

impl Server {
    /// Holds settings for the client's process, and answers. Returns whether the connection stays open.
    pub(super) fn take_hold(&mut self, number: u64, request: &Request<'_>, asker: &Credentials) -> bool {
        let begun = Instant::now();
        let held = self.hold(number, request, asker);
        self.note_request(number, begun);
        match held {
            Ok(()) => self.send_answer(number, &Answer::part(&[], 0)),
            Err((errno, why)) => self.send_answer(number, &Answer::refusal(errno, &why)),
        }
    }

    fn hold(
        &mut self,
        number: u64,
        request: &Request<'_>,
        asker: &Credentials,
    ) -> std::result::Result<(), Refused> {
        if asker.is_contained {
            return Err(refused_by_tree(&Error::Contained));
        }
        let new = parse(&self.tree, asker, request).map_err(|error| refused_by_tree(&error))?;
        let connection = self.connections.get(&number);
        let connection = connection.ok_or_else(|| refused(Errno::ENOTCONN))?;
        let peer = process::peer(&*connection.socket).map_err(refused)?;
        if !governs_user(peer.uid) {
            return Err(refused(Errno::EPERM));
        }
        let process = self.new_number();
        self.registry.hold(process, peer, &new)
    }
}

/// Parses a request: `FILE VALUE` lines, and paths of directories, one a line.
fn parse<'a>(tree: &Tree, asker: &Credentials, request: &Request<'a>) -> Result<Vec<NewHold<'a>>> {
    let wanted: Vec<(&'static Setting, &str)> = request.name.lines().map(setting).collect::<Result<_>>()?;
    let paths = str::from_utf8(request.value).map_err(|_| Error::bad("paths", "bytes that are not UTF-8"))?;
    let mut new = Vec::new();
    for path in paths.lines() {
        let Node::Dir(directory) = resolve(tree, asker, path)? else {
            return Err(Error::NotDirectory);
        };
        new.extend(wanted.iter().map(|(setting, text)| NewHold {
            directory,
            setting,
            text,
        }));
    }
    match new.is_empty() {
        true => Err(Error::bad("settings to hold, and where", "")),
        false => Ok(new),
    }
}

fn setting(line: &str) -> Result<(&'static Setting, &str)> {
    let (name, value) = line.split_once(' ').unwrap_or((line, ""));
    let found = SETTINGS.iter().find(|setting| setting.name == name);
    Ok((found.ok_or(Error::NotFound)?, value))
}
