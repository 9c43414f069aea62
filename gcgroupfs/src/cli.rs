//! The command line: one enum of commands, from which help and completions are generated.

mod cdi;
mod check_config;
mod client;
mod expression;
mod freeze;
mod ls;
mod mount;
mod places;
mod reload;
mod run;
mod set;
mod supervise;
mod wait;
mod wishes;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use gcgroup_abi::environment::GCGROUP_SOCKET;

use self::client::Client;
use crate::forget;
use crate::manual;
use crate::sever;
use gcgroupfs_fuse::touch;
use gcgroupfs_server::receive;
use gcgroupfs_sys::launch;

/// Cgroups for GPU processes: memory limits, freezing, scheduling and counts, by control files
#[derive(Debug, Parser)]
#[command(name = "gcgroupfs", version)]
struct Cli {
    /// The daemon's socket [default: the user's own daemon's in $XDG_RUNTIME_DIR/gcgroupfs if it answers,
    /// otherwise /run/gcgroupfs/gcgroup.sock]
    #[arg(long, global = true, value_name = "PATH", env = GCGROUP_SOCKET.name)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// The hook's report of coverage. Included as text, since daemon and hook never depend on each other.
const COVERAGE: &str = include_str!("../../hook/COVERAGE.md");

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the daemon in the foreground and shows its control files at a mount point.
    Mount(mount::Arguments),
    /// Prints a control file, without the mount.
    Get {
        /// Below the mount point, as 1234/memory.current
        path: String,
    },
    /// Writes a value to a control file, without the mount.
    Set(set::Set),
    /// Makes a group, without the mount.
    Mkdir {
        /// Below the mount point, as team/a
        path: String,
    },
    /// Removes a group, without the mount.
    Rmdir {
        /// Below the mount point, as team/a
        path: String,
    },
    /// Waits until a control file satisfies expressions: gcgroupfs wait 1234/gcgroup.events frozen=1
    Wait(wait::Arguments),
    /// Lists the governed processes.
    Ls {
        /// Print everything, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Runs a program as a governed process, with settings that hold from its first use of the GPU.
    Run(run::Arguments),
    /// Freezes the GPU work of processes and groups, all at once.
    Freeze(freeze::Freeze),
    /// Thaws processes and groups.
    Thaw(freeze::Thaw),
    /// Checks a configuration, and shows which of its rules matches a process.
    CheckConfig(check_config::Arguments),
    /// Prints a CDI specification for governed containers: podman run --device gcgroupfs/hook=all
    Cdi,
    /// Prints the table of control files, in Markdown.
    Files,
    /// Prints the manual page of the control files, for man(1): gcgroupfs manual | man -l -
    Manual,
    /// Prints how each driver function is treated: counted, held, or passed, and why.
    Coverage,
    /// Prints completions for a shell.
    Completions { shell: Shell },
    /// Replays changes through the mount, for inotify
    #[command(hide = true)]
    Touch {
        point: PathBuf,
        /// The mount's device number
        device: u64,
    },
    /// Invalidates cached names
    #[command(hide = true)]
    Forget(forget::Arguments),
    /// Starts the daemon's helpers
    #[command(hide = true)]
    Launch,
    /// Receives descriptors for the daemon
    #[command(hide = true)]
    Receive,
    /// Shuts down a killed daemon's connections
    #[command(hide = true)]
    Sever(sever::Arguments),
}

/// Runs the command that the arguments name. Errors are printed on standard error.
pub fn main() -> ExitCode {
    let Cli { socket, command } = Cli::parse();
    let socket = match socket {
        Some(socket) => Ok(socket),
        None if matches!(command, Command::Mount(_)) => places::new_socket(),
        None => Ok(places::socket()),
    };
    match socket {
        Ok(socket) => run(&socket, command),
        Err(error) => finish(Err(error)),
    }
}

fn run(socket: &Path, command: Command) -> ExitCode {
    finish(match command {
        Command::Mount(arguments) => mount::run(socket, &arguments),
        Command::Get { path } => Client::connect(socket).and_then(|mut client| print(&client.get(&path)?)),
        Command::Mkdir { path } => Client::connect(socket).and_then(|mut client| client.make(&path)),
        Command::Rmdir { path } => Client::connect(socket).and_then(|mut client| client.remove(&path)),
        Command::Set(arguments) => return set::run(socket, &arguments),
        Command::Wait(arguments) => return wait::run(socket, &arguments),
        Command::Ls { json } => {
            Client::connect(socket).and_then(|mut client| print(&ls::list(&mut client, json)?))
        }
        Command::Run(arguments) => return run::run(socket, &arguments),
        Command::Freeze(arguments) => return freeze::freeze(socket, &arguments),
        Command::Thaw(arguments) => return freeze::thaw(socket, &arguments),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Cdi => cdi::specification(socket).and_then(|text| print(text.as_bytes())),
        Command::Files => print(manual::table().as_bytes()),
        Command::Manual => print(manual::page().as_bytes()),
        Command::Coverage => print(COVERAGE.as_bytes()),
        Command::Touch { point, device } => touch::run(&point, device),
        Command::Forget(arguments) => forget::run(&arguments),
        Command::Launch => launch::run(),
        Command::Receive => receive::run(),
        Command::Sever(arguments) => sever::run(&arguments),
        Command::Completions { shell } => {
            let mut out = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "gcgroupfs", &mut out);
            print(&out)
        }
    })
}

fn finish(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gcgroupfs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints to standard output. A closed pipe (`| head -1`) is not an error.
fn print(bytes: &[u8]) -> anyhow::Result<()> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
