//! `gcgroupfs doctor`: checks whether this machine can govern GPU programs and whether the daemon does, and
//! says what to do about each fault.

mod checks;
mod report;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use checks::CHECKS;
use gcgroup_client::Client;

/// Longest time of a check. A driver that nothing has used yet takes some seconds per GPU.
const LIMIT: Duration = Duration::from_secs(30);

/// Longest wait for the daemon's answer to one request.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(after_help = "\
Each line is ok, warn or fail, the check, and what was found; the next line says what to do. A line is
printed when its check ends. A check that takes longer than 30 s fails, and so does a daemon that does not
answer within 2 s.

Exit status: 0 if no check failed, 1 if one did or the report cannot be written.")]
pub(super) struct Arguments {
    /// Also write a report for a bug tracker: versions, GPUs, mounts and counts, without names of users,
    /// programs or groups
    #[arg(long, value_name = "FILE")]
    bug_report: Option<PathBuf>,
}

/// Row of the table of checks.
struct Check {
    name: &'static str,
    look: fn(&Machine) -> Vec<Finding>,
}

impl Check {
    /// Runs the check for at most [`LIMIT`].
    fn run(&'static self, machine: &Arc<Machine>) -> Vec<Finding> {
        let (sender, found) = mpsc::channel();
        let machine = Arc::clone(machine);
        // A check that hangs ends with this program.
        thread::spawn(move || sender.send((self.look)(&machine)));
        found.recv_timeout(LIMIT).unwrap_or_else(|_| {
            vec![Finding::fail(
                format!("the check has not ended after {} s", LIMIT.as_secs()),
                "find out what does not answer: dmesg, and nvidia-smi for the driver",
            )]
        })
    }
}

/// The machine that is examined, and its daemon.
struct Machine {
    /// Directory below which /etc, /dev and /proc are looked for: `/`, except in tests.
    root: PathBuf,
    socket: PathBuf,
    is_root: bool,
    daemon: OnceLock<Daemon>,
}

/// State of the daemon at the socket.
enum Daemon {
    /// The error says why none can be reached.
    Absent(anyhow::Error),
    /// Accepts connections and answers no request.
    Hung {
        pid: Option<u32>,
    },
    Answers {
        pid: Option<u32>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// A fact that a check found, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    level: Level,
    text: String,
    /// Recommended action; empty if none.
    remedy: String,
}

impl Finding {
    fn ok(text: impl Into<String>) -> Self {
        Self::new(Level::Ok, text, "")
    }

    fn warn(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Warn, text, remedy)
    }

    fn fail(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Level::Fail, text, remedy)
    }

    fn new(level: Level, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (text, remedy) = (text.into(), remedy.into());
        Self { level, text, remedy }
    }
}

impl Machine {
    /// Returns the path of a file of the machine.
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn new(root: PathBuf, socket: PathBuf, is_root: bool) -> Self {
        Self {
            root,
            socket,
            is_root,
            daemon: OnceLock::new(),
        }
    }

    /// Returns the daemon's state, after a request to it at the first call.
    fn daemon(&self) -> &Daemon {
        self.daemon.get_or_init(|| match self.connect() {
            Err(error) => Daemon::Absent(error),
            Ok(mut client) => {
                let pid = client.daemon();
                match client.get("gcgroup.events") {
                    Ok(_) => Daemon::Answers { pid },
                    Err(_) => Daemon::Hung { pid },
                }
            }
        })
    }

    fn answers(&self) -> bool {
        matches!(self.daemon(), Daemon::Answers { .. })
    }

    fn connect(&self) -> anyhow::Result<Client> {
        Client::connect_with(&self.socket, PATIENCE)
    }

    /// Returns the text of a control file; `None` if no daemon answers or the file cannot be read.
    fn control_file(&self, path: &str) -> Option<String> {
        let mut client = self.answers().then(|| self.connect().ok())??;
        client.get(path).ok()?.ok()
    }
}

/// Runs all checks and prints what they found.
///
/// # Errors
/// The report cannot be written.
pub(super) fn run(socket: PathBuf, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let is_root = nix::unistd::geteuid().is_root();
    let machine = Arc::new(Machine::new("/".into(), socket, is_root));
    let (mut text, mut worst) = (String::new(), Level::Ok);
    for check in CHECKS {
        let found = check.run(&machine);
        let lines = lines(check, &found);
        super::print(lines.as_bytes())?;
        text += &lines;
        worst = found
            .iter()
            .fold(worst, |worst, finding| worst.max(finding.level));
    }
    if let Some(path) = &arguments.bug_report {
        report::write(path, &machine, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(match worst {
        Level::Fail => ExitCode::FAILURE,
        Level::Ok | Level::Warn => ExitCode::SUCCESS,
    })
}

fn lines(check: &Check, found: &[Finding]) -> String {
    let mut out = String::new();
    for Finding { level, text, remedy } in found {
        let level = match level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{level:<5}{:<12}{text}", check.name);
        if !remedy.is_empty() {
            let _ = writeln!(out, "{:17}{remedy}", "");
        }
    }
    out
}
