//! Actions on a row. The daemon decides whether they are permitted; its reason is shown.

use std::fs;
use std::path::Path;
use std::str::FromStr as _;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::explain;
use crate::cli::row::Row;
use gcgroup_client::Client;
use gcgroup_client::node::Target;

/// Longest wait for the daemon's answer, during which the screen stands still.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) target: Target,
    /// The program's name as shown; a signal is sent to no other program.
    pub(super) name: String,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// Writes a value to a control file of the row.
    Write(&'static str, String),
    /// Moves the process into the group of this path; the empty path is the root.
    Move(String),
    /// Sends the signal of this name.
    Kill(String),
    /// Asks what bounds the row.
    Explain,
}

impl Action {
    pub(super) fn of(row: &Row, what: What) -> Self {
        Self {
            target: row.target.clone(),
            name: row.name(),
            what,
        }
    }

    /// Performs the action, and returns what was done.
    ///
    /// # Errors
    /// Why it was not done, in the daemon's or the kernel's words.
    pub(super) fn perform(&self, socket: &Path) -> anyhow::Result<String> {
        let client = || Client::connect_with(socket, PATIENCE);
        match (&self.what, &self.target) {
            (What::Write(file, value), target) => {
                let path = format!("{}/{file}", target.path());
                client()?.set(&path, value)??;
                Ok(format!("{path} is set to {value}"))
            }
            (What::Move(group), Target::Process(pid)) => {
                let group = group.trim_matches('/');
                let file = format!("{group}/gcgroup.procs");
                client()?.set(file.trim_start_matches('/'), &pid.to_string())??;
                Ok(format!("{pid} is moved to /{group}"))
            }
            (What::Kill(signal), Target::Process(pid)) => {
                self.signal(*pid, signal)?;
                Ok(format!("{signal} is sent to {pid}"))
            }
            (What::Explain, target) => {
                let answer = client()?.explain(&target.path())??;
                explain::shown(&answer)
            }
            (What::Move(_), Target::Group(path)) => bail!("/{path}: only processes can be moved"),
            (What::Kill(_), Target::Group(path)) => bail!("/{path}: signals can be sent to processes only"),
        }
    }

    /// Sends a signal by kill(2), if the process is the program that was shown.
    fn signal(&self, pid: u32, name: &str) -> anyhow::Result<()> {
        let signal = Signal::from_str(&format!("SIG{}", name.to_uppercase().trim_start_matches("SIG")));
        let signal =
            signal.map_err(|_| anyhow::anyhow!("{name:?} is no signal: TERM, KILL, INT, STOP, CONT, ..."))?;
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        let comm = comm.with_context(|| format!("{pid} is gone, or runs in another container"))?;
        let comm = gcgroupfs_model::text::word(comm.trim_end_matches('\n')).to_string();
        ensure!(comm == self.name, "{pid} runs another program now: {comm}");
        kill(Pid::from_raw(pid.try_into()?), signal)
            .map_err(|errno| anyhow::anyhow!("{pid}: {}", errno.desc()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(target: Target, what: What) -> Action {
        Action {
            target,
            name: "no-such-program".into(),
            what,
        }
    }

    #[test]
    fn no_signal_reaches_another_program_or_group() {
        let nowhere = Path::new("/nowhere");
        let me = Target::Process(std::process::id());
        let refused = |target: &Target, what| {
            let error = action(target.clone(), what).perform(nowhere).unwrap_err();
            format!("{error:#}")
        };
        let kill = |signal: &str| What::Kill(signal.into());
        assert!(refused(&me, kill("KILL")).contains("runs another program now"));
        assert!(refused(&me, kill("MURDER")).contains("is no signal"));
        assert!(refused(&Target::Group("a".into()), kill("TERM")).contains("processes only"));
        assert!(refused(&Target::Group("a".into()), What::Move("b".into())).contains("only processes"));
        assert!(refused(&me, What::Write("memory.limit", "1G".into())).contains("no daemon at /nowhere"));
    }
}
