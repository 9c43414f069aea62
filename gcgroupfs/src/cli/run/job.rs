//! The group of a command that `gcgroupfs run` starts, made by the daemon.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use gcgroup_abi::message::GroupName;
use nix::errno::Errno;

use super::program;
use crate::cli::client::{Client, Refusal};
use crate::cli::run_options::Write;

/// A command that is to have a group.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// The group to make it in; `None`: the daemon chooses.
    pub(super) group: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    pub(super) program: &'a OsStr,
}

/// A group that is held for this process.
#[derive(Debug)]
pub(super) struct Job {
    /// Path below the mount point.
    pub(super) path: String,
}

impl Job {
    /// Makes the group; or returns the reason for the daemon's refusal.
    ///
    /// # Errors
    /// No daemon answers within `patience`, or it refuses for now (EAGAIN).
    pub(super) fn begin(
        socket: &Path,
        request: &Request<'_>,
        patience: Duration,
    ) -> anyhow::Result<Result<Self, String>> {
        let mut client = Client::connect_with(socket, patience)?;
        let program = program::find(request.program);
        let begun = client.begin(request.group, request.name, &program)?;
        Ok(match begun {
            Ok(path) => Ok(Self { path }),
            // The daemon could not examine an ancestor in time, or has too much to do.
            Err(refusal) if refusal.errno == Errno::EAGAIN => bail!(describe(request, &refusal)),
            Err(refusal) => Err(describe(request, &refusal)),
        })
    }

    /// Writes values into control files of the group.
    ///
    /// # Errors
    /// The first write that the daemon refuses; a device that does not exist.
    pub(super) fn write(&self, socket: &Path, writes: &[Write], patience: Duration) -> anyhow::Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut client = Client::connect_with(socket, patience)?;
        let mut devices = None;
        for Write { device, file, value } in writes {
            let directory = match device {
                None => String::new(),
                Some(device) => {
                    let known = match &devices {
                        Some(known) => known,
                        None => devices.insert(read_devices(&mut client)?),
                    };
                    format!("{}/", index_of(device, known)?)
                }
            };
            client.set(&format!("{}/{directory}{file}", self.path), value)?;
        }
        Ok(())
    }
}

fn describe(request: &Request<'_>, refusal: &Refusal) -> String {
    match (refusal.errno, request.group, request.name) {
        (Errno::EEXIST, _, Some(name)) => format!("job {name}: a group of this name exists already"),
        (Errno::EBUSY, ..) => "this process is governed already, and stays in its group".to_owned(),
        (Errno::EPERM, None, _) => "a process in a container cannot have a group of its own".to_owned(),
        (Errno::ENAMETOOLONG, ..) => {
            format!(
                "the path of the job's group would be longer than {} bytes",
                GroupName::LONGEST
            )
        }
        (_, Some(group), _) => format!("group {group}: {refusal}"),
        (_, None, Some(name)) => format!("job {name}: {refusal}"),
        (_, None, None) => format!("the daemon makes no group for the job: {refusal}"),
    }
}

/// Returns the indices of the devices by their UUIDs.
fn read_devices(client: &mut Client) -> anyhow::Result<BTreeMap<String, String>> {
    let text = String::from_utf8(client.get("devices")?).context("devices is not text")?;
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (index, uuid) = (words.next()?, words.next()?);
        Some((uuid.to_owned(), index.to_owned()))
    });
    Ok(lines.collect())
}

fn index_of<'a>(device: &'a str, devices: &'a BTreeMap<String, String>) -> anyhow::Result<&'a str> {
    match devices.get(device) {
        Some(index) => Ok(index),
        None if devices.values().any(|index| index == device) => Ok(device),
        None => bail!("there is no GPU {device}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_named_by_uuid_or_index() {
        let devices = [("GPU-a", "0"), ("MIG-b", "1")];
        let devices = devices.map(|(uuid, index)| (uuid.to_owned(), index.to_owned()));
        let devices = BTreeMap::from(devices);
        for (device, index) in [
            ("GPU-a", Some("0")),
            ("1", Some("1")),
            ("2", None),
            ("GPU-", None),
        ] {
            assert_eq!(index_of(device, &devices).ok(), index, "{device}");
        }
    }
}
