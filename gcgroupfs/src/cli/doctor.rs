//! `gcgroupfs doctor`: checks whether this machine can govern GPU programs and whether the daemon does, and
//! says what to do about each fault.

mod checks;
mod report;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use checks::CHECKS;
use gcgroup_client::Client;

#[derive(Debug, Args)]
#[command(after_help = "\
Each line is ok, warn or fail, the check, and what was found; the next line says what to do.

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
    look: fn(&mut Machine) -> Vec<Finding>,
}

/// The machine that is examined, and its daemon.
struct Machine {
    /// Directory below which /etc, /dev and /proc are looked for: `/`, except in tests.
    root: PathBuf,
    socket: PathBuf,
    /// The error says why there is none.
    client: anyhow::Result<Client>,
    is_root: bool,
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

    /// Returns the text of a control file; `None` if no daemon answers or the file cannot be read.
    fn control_file(&mut self, path: &str) -> Option<String> {
        let client = self.client.as_mut().ok()?;
        client.get(path).ok()?.ok()
    }
}

/// Runs all checks and prints what they found.
///
/// # Errors
/// The report cannot be written.
pub(super) fn run(socket: PathBuf, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut machine = Machine {
        root: "/".into(),
        client: Client::connect(&socket),
        socket,
        is_root: nix::unistd::geteuid().is_root(),
    };
    let found: Vec<_> = CHECKS
        .iter()
        .map(|check| (check, (check.look)(&mut machine)))
        .collect();
    let text = print(&found);
    if let Some(path) = &arguments.bug_report {
        report::write(path, &mut machine, &text)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    super::print(text.as_bytes())?;
    let worst = found.iter().flat_map(|(_, found)| found);
    let worst = worst.map(|finding| finding.level).max();
    Ok(match worst {
        Some(Level::Fail) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn print(found: &[(&Check, Vec<Finding>)]) -> String {
    let mut out = String::new();
    for (check, findings) in found {
        for Finding { level, text, remedy } in findings {
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
    }
    out
}
