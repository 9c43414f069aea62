//! Requests to hold settings for the process that asks.

use std::os::fd::AsRawFd;
use std::time::Instant;

use gcgroup_abi::message::{Answer, Request};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::geteuid;

use super::Kind;
use crate::socket::Server;
use crate::socket::answer::{Credentials, Reading, resolve};
use gcgroupfs_model::error::{Error, Result};
use gcgroupfs_model::file::Node;
use gcgroupfs_model::tree::{NewHold, SETTINGS, Setting, Tree};
use gcgroupfs_sys::process;

/// Reason of a refusal: the errno, and words.
type Refused = (i32, String);

impl Server {
    /// Holds settings for the client's process, and answers. Returns whether the connection stays open.
    pub(super) fn take_hold(&mut self, number: u64, request: &Request<'_>, asker: &Credentials) -> bool {
        let begun = Instant::now();
        let answer: Vec<u8> = match self.hold(number, request, asker) {
            Ok(()) => Answer::part(&[], 0).to_bytes(),
            Err((errno, why)) => Answer::refusal(errno, &why).to_bytes(),
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return false;
        };
        let now = Instant::now();
        connection.last = now;
        connection.kind = Kind::Client(Reading::default());
        let user = connection.user();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = send(connection.socket.as_raw_fd(), &answer, flags);
        self.shares.take(user, now.duration_since(begun), now);
        sent.is_ok()
    }

    fn hold(
        &mut self,
        number: u64,
        request: &Request<'_>,
        asker: &Credentials,
    ) -> std::result::Result<(), Refused> {
        let refused = |error: Error| (error.errno(), error.to_string());
        let errno = |errno: Errno| (errno as i32, String::new());
        if asker.is_contained {
            return Err(refused(Error::Contained));
        }
        let new = parse(&self.tree, asker, request).map_err(refused)?;
        let connection = self.connections.get(&number).ok_or(errno(Errno::ENOTCONN))?;
        let peer = process::peer(&*connection.socket).map_err(|why| match why {
            Errno::ETIMEDOUT => errno(Errno::EAGAIN),
            why => errno(why),
        })?;
        let own = geteuid();
        if !own.is_root() && peer.uid != own.as_raw() {
            return Err(errno(Errno::EPERM));
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
