//! The group of a command that `gcgroupfs run` starts, made by the daemon.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use gcgroup_abi::message::GroupName;
use nix::errno::Errno;

use super::program;
use crate::cli::run_options::Write;
use gcgroup_client::node::{Device, read_devices};
use gcgroup_client::{Answered, Refusal};

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
    /// Makes the group.
    ///
    /// # Errors
    /// As [`Answered`].
    pub(super) fn begin(socket: &Path, request: &Request<'_>, patience: Duration) -> Answered<Self> {
        let mut client = super::connect(socket, patience)?;
        let program = program::find(request.program);
        let [group, name] = [request.group, request.name].map(Option::unwrap_or_default);
        Ok(client.begin(group, name, &program)?.map(|path| Self { path }))
    }

    /// Writes values into control files of the group.
    ///
    /// # Errors
    /// The first write that the daemon refuses; a device that does not exist.
    pub(super) fn write(&self, socket: &Path, writes: &[Write], patience: Duration) -> anyhow::Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut client = super::connect(socket, patience)?;
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
            client.set(&format!("{}/{directory}{file}", self.path), value)??;
        }
        Ok(())
    }
}

impl Request<'_> {
    /// Returns the reason of a refusal, for the user.
    pub(super) fn describe(&self, refusal: &Refusal) -> String {
        let reason = refusal.reason();
        match (refusal.errno, self.group, self.name) {
            (Errno::EEXIST, _, Some(name)) => format!("job {name}: a group of this name exists already"),
            (Errno::EBUSY, ..) => "this process is governed already, and stays in its group".to_owned(),
            (Errno::EPERM, None, _) => "a process in a container cannot have a group of its own".to_owned(),
            (Errno::ENAMETOOLONG, ..) => {
                format!(
                    "the path of the job's group would be longer than {} bytes",
                    GroupName::LONGEST
                )
            }
            (_, Some(group), _) => format!("group {group}: {reason}"),
            (_, None, Some(name)) => format!("job {name}: {reason}"),
            (_, None, None) => format!("the daemon makes no group for the job: {reason}"),
        }
    }
}

fn index_of(name: &str, devices: &[Device]) -> anyhow::Result<usize> {
    let found = devices.iter().find(|device| device.uuid == name);
    let found = found.or_else(|| devices.iter().find(|device| device.index.to_string() == name));
    Ok(found.with_context(|| format!("there is no GPU {name}"))?.index)
}

#[cfg(test)]
mod tests {
    use gcgroup_client::node::devices;

    use super::*;

    #[test]
    fn device_is_named_by_uuid_or_index() {
        let devices = devices("0 GPU-a - 1 A\n1 MIG-b - 1 B\n", "");
        for (device, index) in [("GPU-a", Some(0)), ("1", Some(1)), ("2", None), ("GPU-", None)] {
            assert_eq!(index_of(device, &devices).ok(), index, "{device}");
        }
    }
}
