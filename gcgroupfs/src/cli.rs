//! The command line: a row for each command, from which dispatch, help, completions and manual entry follow.

mod bars;
mod cdi;
mod check_config;
mod columns;
mod completion;
mod doctor;
mod events;
mod explain;
mod expression;
mod format;
mod freeze;
mod gvm;
mod hold;
mod kill;
mod ls;
mod mount;
mod paths;
mod progress;
mod promise;
mod record;
mod reload;
mod report;
mod retry;
mod row;
mod rows;
mod run;
mod run_options;
mod set;
mod supervise;
mod top;
mod wait;

use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::thread;

use clap::{Args, CommandFactory, Parser, Subcommand};
use gcgroup_abi::environment::GCGROUP_SOCKET;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit};

use self::paths::Named;
use crate::checkpoint_helper;
use crate::manual::{self, Interface};
use crate::message::{self, complain};
use crate::sever;
use gcgroup_client::Client;
use gcgroupfs_server::receive;
use gcgroupfs_sys::launch;

/// Cgroups for GPU processes: memory limits, freezing, scheduling and counts, by control files
#[derive(Debug, Parser)]
#[command(name = "gcgroupfs", version = VERSION.as_str())]
struct Cli {
    /// The daemon's socket [default: the user's own daemon's in $XDG_RUNTIME_DIR/gcgroupfs if it answers,
    /// otherwise /run/gcgroupfs/gcgroup.sock]
    #[arg(long, global = true, value_name = "PATH", env = GCGROUP_SOCKET.name)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// Bytes of stack that suffice to build the command line; a debug build takes 270 KiB.
const BUILDER_STACK: usize = 1 << 20;

/// Version, commit and version of the blocks that hooks and daemon share.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("GCGROUP_COMMIT"));
    format!("{version} (commit {commit}, ABI {})", gcgroup_abi::VERSION)
});

/// The hook's report of coverage. Included as text, since daemon and hook never depend on each other.
const COVERAGE: &str = include_str!("../../hook/COVERAGE.md");

/// Defines the commands: a row is a variant with its arguments, and a handler that is passed the socket and
/// the arguments. The variant's documentation is the command's help and its entry in the manual page.
macro_rules! commands {
    ($( $(#[$meta:meta])* $name:ident($arguments:ty) => $handler:expr; )*) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $( $(#[$meta])* $name($arguments), )*
        }

        impl Command {
            fn run(self, socket: Socket) -> ExitCode {
                match self {
                    $( Self::$name(arguments) => handle($handler, socket, arguments), )*
                }
            }
        }
    };
}

commands! {
    /// Runs the daemon in the foreground and shows its control files at a mount point.
    Mount(mount::Arguments) => |socket, arguments| mount::run(socket, &arguments);
    /// Prints a control file, without the mount.
    Get(File) => |socket, file| {
        let (mut client, path) = socket.client_of(&file.path)?;
        print(client.get(&path)??.as_bytes())
    };
    /// Writes a value to a control file, without the mount.
    Set(set::Set) => |socket, arguments| set::run(socket, &arguments);
    /// Makes a group, without the mount.
    Mkdir(Group) => |socket, group| {
        let (mut client, path) = socket.client_of(&group.path)?;
        Ok(client.make(&path)??)
    };
    /// Removes a group, without the mount.
    Rmdir(Group) => |socket, group| {
        let (mut client, path) = socket.client_of(&group.path)?;
        Ok(client.remove(&path)??)
    };
    /// Waits until a control file satisfies expressions: gcgroupfs wait 1234/gcgroup.events frozen=1
    Wait(wait::Arguments) => |socket, arguments| wait::run(&socket.of_daemon(), &arguments);
    /// Explains what bounds a process or a group, what was refused and why; or why a process is not governed.
    Explain(explain::Arguments) => |socket, arguments| print(explain::explain(&socket, &arguments)?.as_bytes());
    /// Shows what happens to processes and groups: joined, left, refused, frozen, killed, set and by whom.
    Events(events::Arguments) => |socket, arguments| events::run(&socket.of_daemon(), &arguments);
    /// Reports what the processes that have ended used, by user, group, program or process.
    Report(report::Arguments) => |socket, arguments| {
        let mut client = Client::connect(&socket.of_daemon())?;
        print(report::report(&mut client, &arguments)?.as_bytes())
    };
    /// Lists the groups and governed processes.
    Ls(ls::Arguments) => |socket, arguments| ls::run(&socket.of_daemon(), &arguments);
    /// Shows GPUs, groups and processes while they run, and freezes, limits, moves and ends them.
    Top(top::Arguments) => |socket, arguments| top::run(&socket.of_daemon(), &arguments);
    /// Runs a program as a governed process, with settings that hold from its first use of the GPU.
    Run(run::Arguments) => |socket, arguments| run::run(&socket.of_daemon(), &arguments);
    /// Freezes the GPU work of processes and groups, all at once.
    Freeze(freeze::Freeze) => |socket, arguments| freeze::freeze(&socket, &arguments);
    /// Thaws processes and groups.
    Thaw(freeze::Paths) => |socket, arguments| freeze::thaw(&socket, &arguments);
    /// Holds settings of processes and groups while a command runs, and reverts them however it ends.
    Hold(hold::Arguments) => |socket, arguments| hold::run(&socket, &arguments);
    /// Ends processes and jobs as a whole: SIGTERM, and SIGKILL after a time of grace.
    Kill(kill::Arguments) => |socket, arguments| kill::run(&socket, &arguments);
    /// Moves all GPU memory of processes and groups to the host, also of programs not started with --swap.
    Suspend(freeze::Suspend) => |socket, arguments| freeze::suspend(&socket, &arguments);
    /// Moves the memory of suspended processes and groups back, once there is room.
    Resume(freeze::Resume) => |socket, arguments| freeze::resume(&socket, &arguments);
    /// Runs a command that finds the control files where GVM has them, in debugfs.
    Gvm(gvm::Arguments) => |socket, arguments| gvm::run(&socket.of_daemon(), &arguments);
    /// Checks a configuration, and shows which of its rules matches a process.
    CheckConfig(check_config::Arguments) => |_, arguments| check_config::run(&arguments);
    /// Checks the machine, the installation and the daemon, and says what to do about each fault.
    Doctor(doctor::Arguments) => |socket, arguments| doctor::run(socket.of_daemon(), &arguments);
    /// Records what GPUs and processes use, each second, in a file of constant size, and prints the records.
    Record(record::Arguments) => |socket, arguments| record::run(&socket.of_daemon(), &arguments);
    /// Prints a CDI specification for governed containers: podman run --device gcgroupfs/hook=all
    Cdi(cdi::Arguments) => |socket, arguments| cdi::run(&socket.of_daemon(), &arguments);
    /// Prints the table of control files, in Markdown.
    Files(Nothing) => |_, _| print(manual::table().as_bytes());
    /// Prints the manual page of the control files, for man(1): gcgroupfs manual | man -l -
    Manual(Manual) => |_, arguments| print_manual(&arguments);
    /// Prints how each driver function is treated: counted, held, or passed, and why.
    Coverage(Nothing) => |_, _| print(COVERAGE.as_bytes());
    /// Prints completions for a shell.
    Completions(completion::Completions) => |_, arguments| print(&completion::script(&arguments)?);
    /// Suspends and resumes a process by the driver
    #[command(hide = true)]
    Checkpoint(Nothing) => |_, _| checkpoint_helper::run();
    /// Starts the daemon's helpers
    #[command(hide = true)]
    Launch(Nothing) => |_, _| launch::run();
    /// Receives descriptors for the daemon
    #[command(hide = true)]
    Receive(Nothing) => |_, _| receive::run();
    /// Serves GVM's files
    #[command(hide = true)]
    ServeGvm(gvm::Served) => |socket, arguments| gvm::serve(&socket.of_daemon(), &arguments);
    /// Shuts down a killed daemon's connections
    #[command(hide = true)]
    Sever(sever::Arguments) => |_, arguments| sever::run(&arguments);
}

#[derive(Debug, Args)]
struct Nothing {}

#[derive(Debug, Args)]
struct File {
    /// As 1234/memory.current or /gcgroup/1234/memory.current
    #[arg(value_name = "CONTROL-FILE")]
    path: String,
}

#[derive(Debug, Args)]
struct Group {
    /// As team/a or /gcgroup/team/a
    #[arg(value_name = "GROUP")]
    path: String,
}

#[derive(Debug, Args)]
struct Manual {
    /// Write all manual pages below this directory instead, as man1/gcgroupfs.1
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

/// The socket that was given; `None`: a default.
struct Socket(Option<PathBuf>);

impl Socket {
    /// Returns the socket of the daemon that is to be started.
    ///
    /// # Errors
    /// None was given, and there is no path for a user's own daemon.
    fn of_new(self) -> anyhow::Result<PathBuf> {
        self.0.map_or_else(paths::new_socket, Ok)
    }

    /// Returns the socket of the daemon to connect to.
    fn of_daemon(self) -> PathBuf {
        self.0.unwrap_or_else(paths::socket)
    }

    /// Returns the socket of the daemon to connect to for a control file, a process or a group, and its path
    /// below the mount point. Unless a socket was given, a path on a mount leads to that mount's daemon.
    fn of_path(&self, text: &str) -> (PathBuf, String) {
        let Named { path, socket } = Named::new(text);
        let socket = self.0.clone().or(socket).unwrap_or_else(paths::socket);
        (socket, path)
    }

    /// Connects to the daemon of a control file, a process or a group; also returns its path below the mount
    /// point.
    fn client_of(&self, text: &str) -> anyhow::Result<(Client, String)> {
        let (socket, path) = self.of_path(text);
        Ok((Client::connect(&socket)?, path))
    }
}

/// Result of a handler.
trait IntoExitCode {
    fn exit_code(self) -> ExitCode;
}

impl IntoExitCode for ExitCode {
    fn exit_code(self) -> ExitCode {
        self
    }
}

impl IntoExitCode for anyhow::Result<()> {
    fn exit_code(self) -> ExitCode {
        self.map(|()| ExitCode::SUCCESS).exit_code()
    }
}

impl IntoExitCode for anyhow::Result<ExitCode> {
    /// Prints the error on standard error.
    fn exit_code(self) -> ExitCode {
        self.unwrap_or_else(|error| {
            complain!("gcgroupfs: {error:#}");
            ExitCode::FAILURE
        })
    }
}

fn handle<A, O: IntoExitCode>(
    handler: impl FnOnce(Socket, A) -> O,
    socket: Socket,
    arguments: A,
) -> ExitCode {
    handler(socket, arguments).exit_code()
}

/// Runs the command that the arguments name. Errors are printed on standard error.
pub fn main() -> ExitCode {
    // Where this program executes itself through /proc/self/exe, the kernel names it `exe`.
    let _ = prctl::set_name(c"gcgroupfs");
    on_ample_stack(|| completion::answer(Cli::command));
    let parsed = on_ample_stack(Cli::try_parse);
    let Cli { socket, command } = parsed.unwrap_or_else(|error| message::exit(&error));
    command.run(Socket(socket))
}

/// Calls `build`; where the process's stack may not be as large as [`BUILDER_STACK`], in a thread.
fn on_ample_stack<T: Send + 'static>(build: fn() -> T) -> T {
    let is_ample = getrlimit(Resource::RLIMIT_STACK).is_ok_and(|(soft, _)| soft >= BUILDER_STACK as u64);
    let builder = thread::Builder::new().stack_size(BUILDER_STACK);
    match (!is_ample).then(|| builder.spawn(build)) {
        Some(Ok(builder)) => builder.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Some(Err(_)) | None => build(),
    }
}

fn print_manual(arguments: &Manual) -> anyhow::Result<()> {
    match &arguments.write {
        Some(directory) => Ok(manual::pages::write(interface(), directory)?),
        None => print(manual::page(interface()).as_bytes()),
    }
}

/// Returns what the manual pages show of the command line.
pub(crate) fn interface() -> Interface {
    Interface {
        command: on_ample_stack(Cli::command),
        keys: top::keys().collect(),
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

    #[test]
    fn every_command_has_help_and_manual_entry() {
        let page = manual::page(interface());
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name}");
            let entry = format!("\n.TP\n.B gcgroupfs {}", name.replace('-', "\\-"));
            let nr_entries =
                page.matches(&format!("{entry}\n")).count() + page.matches(&format!("{entry} ")).count();
            assert_eq!(nr_entries, usize::from(!command.is_hide_set()), "{name}");
        }
    }

    /// Tests all commands whose first operand is a process or a group.
    #[test]
    fn empty_name_is_a_usage_error() {
        for command in ["explain", "freeze", "thaw", "kill", "suspend", "resume"] {
            for (name, is_valid) in [("", false), ("/", false), ("7", true), ("/team/a", true)] {
                let parsed = Cli::command().try_get_matches_from(["gcgroupfs", command, name]);
                assert_eq!(parsed.is_ok(), is_valid, "{command} {name:?}");
            }
        }
    }
}
