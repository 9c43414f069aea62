//! Answers requests of the command line from the same table as the mount, by the same rules.

use gcgroup_abi::message::Malformed;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::file::{self, Node};
use crate::protocol::{Answer, Operation, Request};
use crate::tree::{Caller, Place, Tree};

/// The most files one may ask for of each directory.
const MAX_FILES: usize = 64;

/// Who asks, according to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    pub uid: u32,
    pub gid: u32,
}

/// One line of the answer to a list.
#[derive(Debug, Serialize)]
struct Line<'a> {
    pid: &'a str,
    /// None for the process as a whole.
    device: Option<&'a str>,
    uid: u32,
    comm: &'a str,
    /// Each name with what the file shows; without those that are not there.
    files: serde_json::Map<String, serde_json::Value>,
}

/// Answers one packet. `text` is what the connection has been reading, and returned is what it reads now. Nothing, if
/// the packet is no request.
pub fn answer(tree: &Tree, asker: Asker, text: Vec<u8>, packet: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let request = match Request::from_bytes(packet) {
        Ok(request) => request,
        Err(Malformed::Tag | Malformed::Length | Malformed::Protocol) => return None,
    };
    let text = match (request.operation, request.offset) {
        (Operation::Get, 0) => get(tree, request.name),
        (Operation::List, 0) => list(tree, request.name),
        (Operation::Get | Operation::List, _) => Ok(text),
        (Operation::Set, _) => set(tree, asker, &request).map(|()| Vec::new()),
    };
    Some(match text {
        Ok(text) => (Answer::part(&text, request.offset).to_bytes(), text),
        Err(error) => (Answer::refusal(error.errno()).to_bytes(), Vec::new()),
    })
}

fn get(tree: &Tree, path: &str) -> Result<Vec<u8>> {
    match file::resolve(tree, path)? {
        Node::File(place, file) => {
            // Nobody is kept waiting here: what is found is for who asks next.
            file.ask(tree, place)?;
            Ok(file.show(tree, place)?.into_bytes())
        }
        Node::Dir(_) => Err(Error::IsDirectory),
    }
}

fn set(tree: &Tree, asker: Asker, request: &Request<'_>) -> Result<()> {
    match file::resolve(tree, request.name)? {
        Node::File(place, file) => {
            let caller = Caller {
                uid: asker.uid,
                gid: asker.gid,
                pid: 0,
            };
            file.store(tree, place, caller, request.value)
        }
        Node::Dir(_) => Err(Error::IsDirectory),
    }
}

/// Processes come and go meanwhile: of one that is gone, what is gone is left out.
fn list(tree: &Tree, names: &str) -> Result<Vec<u8>> {
    let names: Vec<&str> = names.lines().take(MAX_FILES).collect();
    let mut out = Vec::new();
    for (id, identity) in tree.processes() {
        let (pid, whole) = (identity.pid.to_string(), Place::process(id));
        let mut push = |place, device: Option<&str>| {
            let files = names.iter().filter_map(|name| show(tree, place, name)).collect();
            let line = Line {
                pid: &pid,
                device,
                uid: identity.uid,
                comm: &identity.comm,
                files,
            };
            if let Ok(line) = serde_json::to_vec(&line) {
                out.extend(line);
                out.push(b'\n');
            }
        };
        push(whole, None);
        for (device, place) in tree.directories(whole).unwrap_or_default() {
            push(place, Some(&device));
        }
    }
    Ok(out)
}

fn show(tree: &Tree, place: Place, name: &str) -> Option<(String, serde_json::Value)> {
    match file::lookup(tree, place, name) {
        Ok(Node::File(place, file)) => Some((name.to_owned(), file.show(tree, place).ok()?.into())),
        _ => None,
    }
}
