//! Requests to the daemon, which may be restarting meanwhile.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use gcgroup_abi::REQUIRED_FILE;
use gcgroup_client::Refusal;
use gcgroup_client::node::{Device, read_devices};
use nix::errno::Errno;
use serde_json::Value;

use crate::spank;

const PROCS: &str = "gcgroup.procs";
const PEAK: &str = "memory.peak";

/// Longest wait for a daemon that is being restarted.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two attempts to reach the daemon.
const RETRY: Duration = Duration::from_millis(50);

/// Longest time that a connection is used: moving the memory of a step takes a minute at most.
const LIFE: Duration = Duration::from_secs(300);

/// Program of a step, for the daemon's rules.
const PROGRAM: &str = "/usr/sbin/slurmstepd";

/// Connection to the daemon. A refused request is an error.
#[derive(Debug)]
pub(crate) struct Client(gcgroup_client::Client);

impl Client {
    /// Connects. The descriptor is closed on exec, so tasks do not inherit it.
    ///
    /// # Errors
    /// No daemon listens there.
    pub(crate) fn connect(path: &Path) -> anyhow::Result<Self> {
        Ok(Self(gcgroup_client::Client::connect(path)?.within(LIFE)))
    }

    /// Connects, for [`PATIENCE`], since the daemon may be restarting.
    ///
    /// # Errors
    /// No daemon listens there.
    pub(crate) fn connect_patiently(path: &Path) -> anyhow::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::connect(path) {
                Err(_) if Instant::now() < deadline => thread::sleep(RETRY),
                connected => return connected,
            }
        }
    }

    /// Returns the text of a control file.
    ///
    /// # Errors
    /// No daemon answers, or the daemon refuses.
    pub(crate) fn get(&mut self, path: &str) -> anyhow::Result<String> {
        Ok(self.0.get(path)??)
    }

    /// Returns the GPUs of the node.
    ///
    /// # Errors
    /// No daemon answers, or the daemon refuses.
    pub(crate) fn devices(&mut self) -> anyhow::Result<Vec<Device>> {
        read_devices(&mut self.0)
    }

    /// Returns whether another group beside a group has used memory of a GPU, and has no processes any more.
    ///
    /// # Errors
    /// No daemon answers, or the daemon refuses.
    pub(crate) fn is_one_ended_beside(&mut self, group: &str) -> anyhow::Result<bool> {
        is_one_ended_beside(&self.0.list_groups(&[PROCS, PEAK])??, group)
    }

    /// Writes a control file.
    ///
    /// # Errors
    /// No daemon answers, or the daemon refuses.
    pub(crate) fn set(&mut self, path: &str, value: &str) -> anyhow::Result<()> {
        let set = self.0.set(path, value)?;
        set.map_err(|refusal| anyhow!("{path} = {value}: {}", refusal.reason()))
    }
}

fn is_one_ended_beside(text: &str, own: &str) -> anyhow::Result<bool> {
    let parent = |group: &str| {
        group
            .trim_matches('/')
            .rsplit_once('/')
            .map(|(parent, _)| parent.to_owned())
    };
    for line in text.lines() {
        let line: Value = serde_json::from_str(line)?;
        let group = line["group"].as_str().unwrap_or_default();
        let is_beside = parent(group) == parent(own) && group.trim_matches('/') != own.trim_matches('/');
        let is = |file: &str, text| line["files"][file].as_str().is_some_and(|it| it.trim() == text);
        if line["device"].is_null() && is_beside && is(PROCS, "") && !is(PEAK, "0") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the file beside the socket that refuses CUDA to new processes while no daemon answers, also where
/// their environment was cleared.
pub(crate) fn promise(socket: &Path) {
    let text =
        "gcgroup_slurm: steps have shares, so while no daemon answers, CUDA is refused to new programs.\n";
    let file = socket.with_file_name(REQUIRED_FILE);
    if let Err(error) = fs::write(&file, text) {
        spank::log_verbose(&format!("{}: {error}", file.display()));
    }
}

/// Makes the group of a step for this process, for [`PATIENCE`]: the daemon may be restarting, and the group
/// of an earlier run of the step exists until the daemon has noticed its end. Returns the group's path.
///
/// # Errors
/// The daemon refuses, or does not answer.
pub(crate) fn begin_patiently(socket: &Path, group: &str, name: &str) -> anyhow::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Client(mut client) = Client::connect_patiently(socket)?;
        match client.begin(group, name, Path::new(PROGRAM))? {
            Ok(begun) => return Ok(begun),
            Err(Refusal {
                errno: Errno::EEXIST | Errno::EAGAIN,
                ..
            }) if Instant::now() < deadline => thread::sleep(RETRY),
            Err(refusal) => bail!("group {group}/{name}: {}", refusal.reason()),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn steps_that_have_used_a_gpu_and_ended_are_found() {
        let line = |group: &str, device: &str, procs: &str, peak: &str| {
            format!(
                "{{\"group\":\"{group}\",\"device\":{device},\
                 \"files\":{{\"gcgroup.procs\":\"{procs}\",\"memory.peak\":\"{peak}\\n\"}}}}\n"
            )
        };
        let is_found = |text: &str| super::is_one_ended_beside(text, "slurm/job_1/step_batch").unwrap();
        let text = [
            line("slurm/job_1", "null", "", "9"),
            line("slurm/job_1/step_batch", "null", "", "9"),
            line("slurm/job_1/step_0", "\"0\"", "", "9"),
            line("slurm/job_1/step_0", "null", "5\\n", "9"),
            line("slurm/job_1/step_1", "null", "", "0"),
            line("slurm/job_2/step_0", "null", "", "9"),
        ];
        assert!(!is_found(&text.concat()));
        assert!(is_found(
            &(text.concat() + &line("slurm/job_1/step_2", "null", "", "9"))
        ));
    }
}
