//! `gcgroupfs gvm` and `gcgroupfs mount --view gvm`: the control files where GVM has them. A process of the
//! calling user serves them from the daemon's socket, so nobody reads or writes more than on the mount.

mod files;
mod number;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, ensure};
use clap::Args;
use gcgroup_abi::environment::GCGROUP_SOCKET;
use nix::mount::MsFlags;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::{getegid, geteuid};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::files::Gvm;
use super::run::execute;
use crate::message::complain;
use gcgroup_client::Client;
use gcgroupfs_fuse::mount::Mount;
use gcgroupfs_fuse::view;
use gcgroupfs_sys as sys;

/// Where GVM's kernel module has its files: debugfs, and its directory in it.
const DEBUG: &str = "/sys/kernel/debug";
const DIRECTORY: &str = "/sys/kernel/debug/nvidia-uvm";

/// Returns the source of the mount, where the daemon's has its socket. It differs from that of other views.
fn source() -> PathBuf {
    Path::new("/gvm").join(std::process::id().to_string())
}

/// Longest wait for the process that serves the files, milliseconds.
const PATIENCE: u16 = 5000;

#[derive(Debug, Args)]
#[command(after_help = "\
COMMAND finds GVM's files of both generations in /sys/kernel/debug/nvidia-uvm, in a mount namespace of its own; the \
machine's debugfs is untouched. Without root it runs in a user namespace, in which programs such as sudo do not work. \
The files are the daemon's in GVM's form: a GPU's directory is its index times 8 and there while the process has used the GPU, \
no limit is 18446744073709551615, and values are accepted and refused as by GVM. memory.limit and memory.limit.high are \
memory.limit; memory.limit.low and .min are memory.low and memory.min. Priority 16 is stored as 15. eviction.grace_period_ms is \
memory.notice.grace, at most 3000. memory.watermark.* and eviction.notify_throttle_ms \
keep what is written, as long as the view lives, and have no effect. chmod and chown are accepted and change nothing: only \
the calling user reaches the files, and writes what the daemon lets that user write.

Exit status: the command's; 127 if it is not found, 126 if it cannot be run, 125 if the files cannot be shown.")]
pub(super) struct Arguments {
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct Served {
    /// Serve from a process that is not a child of the caller
    #[arg(long)]
    detach: bool,
}

/// Executes the command where it finds the files. Returns only on failure.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> ExitCode {
    if let Err(error) = enter(socket) {
        complain!("gcgroupfs: {error:#}");
        return ExitCode::from(125);
    }
    let (program, rest) = arguments.command.split_first().unzip();
    let mut command = Command::new(program.unwrap_or(&OsString::new()));
    command.args(rest.unwrap_or_default());
    execute(command)
}

/// Enters a new mount namespace, and mounts the files there.
fn enter(socket: &Path) -> anyhow::Result<()> {
    Client::connect(socket)?;
    // It is started first: in the new namespace it would keep that alive, whose end is its own.
    let server = start_server(socket)?;
    if geteuid().is_root() {
        unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    } else {
        enter_user_namespace().context("cannot make a user namespace, which users other than root need")?;
    }
    let none = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    nix::mount::mount(none, "/", none, private, none).context("cannot make the mounts private")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    nix::mount::mount(Some("none"), DEBUG, Some("tmpfs"), flags, Some("mode=755"))
        .with_context(|| format!("cannot mount at {DEBUG}"))?;
    let mounted = Mount::new(Path::new(DIRECTORY), &source(), false);
    let (mut mounted, device) = mounted.with_context(|| format!("cannot mount at {DIRECTORY}"))?;
    mounted.keep();
    let descriptors = [device.as_raw_fd()];
    sendmsg::<()>(
        server.as_raw_fd(),
        &[IoSlice::new(&[0])],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .context("the process that serves the files has ended")?;
    Ok(())
}

/// Starts the process that serves the files; returns the socket to which it expects the mount's descriptor.
fn start_server(socket: &Path) -> anyhow::Result<OwnedFd> {
    let (ours, theirs) = sys::packet_pair()?;
    let status = Command::new("/proc/self/exe")
        .args(["serve-gvm", "--detach"])
        .env(GCGROUP_SOCKET.name, socket)
        .stdin(theirs)
        .stdout(Stdio::null())
        .status()
        .context("cannot start the process that serves the files")?;
    ensure!(status.success(), "the process that serves the files has failed");
    Ok(ours)
}

/// Enters a user namespace in which this process has its own ids, and a mount namespace of it.
fn enter_user_namespace() -> anyhow::Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    // Without that, a user could drop a group that keeps it from a file.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    Ok(())
}

/// Serves the files of the mount whose descriptor arrives on standard input, until the last process of its
/// namespace has ended.
///
/// # Errors
/// No descriptor arrives.
pub(super) fn serve(socket: &Path, arguments: &Served) -> anyhow::Result<()> {
    // Descriptors that the command's starter had open, which may be pipes that others wait for.
    sys::close_from(3)?;
    let input = io::stdin();
    if arguments.detach {
        let mut again = Command::new("/proc/self/exe");
        again.arg("serve-gvm").env(GCGROUP_SOCKET.name, socket);
        again.stdin(input.as_fd().try_clone_to_owned()?).spawn()?;
        return Ok(());
    }
    // Neither the terminal's signals nor its hang-up are for this process.
    nix::unistd::setsid()?;
    env::set_current_dir("/")?;
    let mut watched = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    let nr_ready = poll(&mut watched, PollTimeout::from(PATIENCE))?;
    ensure!(nr_ready > 0, "no mount arrives");
    let received = sys::receive(&input, &mut [0])?;
    // None: the caller has failed, and says why.
    let Some(device) = received.descriptors.into_iter().next() else {
        return Ok(());
    };
    Ok(view::serve(Gvm::new(socket), device)?)
}

/// Shows the files at a directory until SIGTERM, SIGINT or an unmount.
///
/// # Errors
/// No daemon answers, or the mount fails.
pub(super) fn mount(socket: &Path, point: &Path) -> anyhow::Result<()> {
    Client::connect(socket)?;
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (mut mounted, device) =
        Mount::new(point, &source(), false).with_context(|| super::paths::cannot_mount(point))?;
    complain!("gcgroupfs: ready: {}", mounted.point().display());
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some()
            && let Err(error) = mounted.unmount()
        {
            complain!("gcgroupfs: cannot unmount {}: {error}", mounted.point().display());
        }
    })?;
    Ok(view::serve(Gvm::new(socket), device)?)
}
