//! `gcgroupfs mount`: the daemon, from its start to its end.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{error, info, warn};

use super::reload::{InForce, Parts, Reload, apply_groups};
use super::{Socket, gvm, paths, promise, supervise};
use crate::log::{self, Log};
use crate::{config, sever};
use gcgroup_abi::{DEFAULT_CONTEXT, KEEPS_PAGES};
use gcgroupfs_fuse::mount;
use gcgroupfs_fuse::{self as fuse, Connection};
use gcgroupfs_model::arbiter::{POLICIES, Policy, Settings};
use gcgroupfs_model::text::parse_bytes;
use gcgroupfs_model::tree::{Owner, Tree};
use gcgroupfs_server::devices;
use gcgroupfs_server::history::History;
use gcgroupfs_server::host;
use gcgroupfs_server::journal::Journal;
use gcgroupfs_server::socket::{self, Listener, Server};
use gcgroupfs_server::suspend;
use gcgroupfs_server::ticks;
use gcgroupfs_sys as sys;
use gcgroupfs_sys::launch::Launcher;
use gcgroupfs_sys::manager::{self, Stored, Watchdog};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Mount point of the control files; created if missing [default: /gcgroup; for users other than root,
    /// $XDG_RUNTIME_DIR/gcgroup]
    mountpoint: Option<PathBuf>,
    /// Show the files of a running daemon at the mount point as another system shows them, to the calling
    /// user alone
    #[arg(long, value_name = "SYSTEM", requires = "mountpoint")]
    view: Option<Shown>,
    /// Directory of the state file, which keeps settings over a restart [default: the socket's directory]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Let other users see the control files
    #[arg(long)]
    allow_other: bool,
    /// Configuration file; read again on SIGHUP [default: /etc/gcgroupfs.toml; for users other than root,
    /// gcgroupfs.toml in $XDG_CONFIG_HOME; if it exists]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Scheduling policy. Overrides compute.policy and the configuration
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    policy: Option<&'static Policy>,
    /// Behaviour of frozen processes when no daemon runs for longer than the grace time
    #[arg(long, value_name = "WHAT", default_value = "open")]
    on_daemon_loss: OnDaemonLoss,
    /// Grace time without a daemon, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    grace: u32,
    /// Size of a page of device memory, bytes: blocks are charged by the pages that they take
    #[arg(long, value_name = "BYTES", default_value_t = 2 << 20, value_parser = page)]
    device_page: u64,
    /// Charge empty pages that small blocks have shared until their context is destroyed
    #[arg(long)]
    kept_pages: bool,
    /// Bytes that a context of CUDA is expected to take where its user has had none on the GPU
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_CONTEXT, value_parser = parse_bytes)]
    context_size: u64,
    /// Serve only the socket, without a mount
    #[arg(long)]
    no_fuse: bool,
    /// Do what systemd does for the service: keep the mount and the socket while a daemon that has died is
    /// replaced, so that no read fails (Linux 6.9; before, the next daemon mounts again)
    #[arg(long, conflicts_with = "no_fuse")]
    supervise: bool,
    /// Log level: error, warn, info, debug or trace, also by module
    #[arg(long, value_name = "FILTER", env = "RUST_LOG", default_value = "info")]
    log: String,
    /// Socket of systemd-journald
    #[arg(long, hide = true, default_value = "/run/systemd/journal/socket")]
    journal_socket: PathBuf,
}

fn page(text: &str) -> Result<u64, String> {
    let bytes = text.parse().ok().filter(|bytes: &u64| bytes.is_power_of_two());
    bytes.ok_or_else(|| "not a power of two".to_owned())
}

fn policies() -> impl TypedValueParser<Value = &'static Policy> {
    let values = POLICIES
        .iter()
        .map(|policy| PossibleValue::new(policy.name).help(policy.doc));
    PossibleValuesParser::new(values).map(|name| Policy::named(&name).unwrap_or_default())
}

/// Other system whose files are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// As below /sys/kernel/debug/nvidia-uvm; see gcgroupfs gvm --help
    Gvm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnDaemonLoss {
    /// Continue
    Open,
    /// Stay frozen
    Hold,
}

impl Arguments {
    /// Returns the grace time as stored in the control block: all ones means for ever.
    fn grace_msec(&self) -> u32 {
        match self.on_daemon_loss {
            OnDaemonLoss::Open => self.grace.min(u32::MAX - 1),
            OnDaemonLoss::Hold => u32::MAX,
        }
    }
}

/// Runs the daemon, or shows a view, until SIGTERM, SIGINT or an unmount.
///
/// # Errors
/// The socket, the state file or the mount is not available, or the mount's connection was aborted.
pub(super) fn run(socket: Socket, arguments: &Arguments) -> anyhow::Result<()> {
    match (arguments.view, &arguments.mountpoint) {
        (Some(Shown::Gvm), Some(point)) => gvm::mount(&socket.of_daemon(), point),
        _ => serve(&socket.of_new()?, arguments),
    }
}

fn serve(socket: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    log::start(&arguments.log, arguments.journal_socket.clone())?;
    raise_descriptor_limit();
    sys::raise_priority();
    survive_file_limit()?;
    // Descriptors inherited from the parent process are not passed on (Linux 5.11; our own are closed on exec
    // anyway).
    let _ = sys::close_on_exec_from(3);
    let socket = std::path::absolute(socket)?;
    let point = match &arguments.mountpoint {
        Some(point) => point.clone(),
        None if arguments.no_fuse => PathBuf::new(),
        None => paths::mount_point()?,
    };
    if arguments.supervise {
        return supervise::run(&socket, &point);
    }
    let mut stored = Stored::from_environment();
    let source = config::Source::new(arguments.config.clone(), paths::configuration());
    let in_force = InForce::open(&mut stored).context("cannot store the configuration")?;
    let (config, text) = source.read().or_else(|error| {
        // Processes governed by a predecessor must not lose the daemon because the configuration was damaged
        // since.
        let Some(text) = in_force.get() else {
            return Err(error);
        };
        warn!("the configuration stays as it was: {error:#}");
        source.understand(text)
    })?;
    in_force.put(&text);
    let state_dir = arguments
        .state_dir
        .as_deref()
        .or(socket.parent())
        .unwrap_or(Path::new("/"));
    // The journal creates it as well, once that is possible.
    if let Err(error) = std::fs::create_dir_all(state_dir) {
        warn!("cannot make {}: {error}", state_dir.display());
    }

    // Done before there is any client.
    let launcher = Arc::new(Launcher::start().context("cannot start the launcher of helpers")?);
    // Done first, so that a second daemon changes nothing.
    let listener = Listener::open(&mut stored, &socket)?;
    let stuck = listener.stuck();
    let (holders, found) = devices::find();
    let tree = Arc::new(Tree::new(owner(), found, host::this()));
    let history = Arc::new(History::open(state_dir));
    let sift = |records: &mut _| socket::sift(records, &history);
    let (journal, mut records) = match stuck {
        Some(pid) => {
            sever::start(pid, &socket, &launcher);
            Journal::open_beside_killed(state_dir, sift)?
        }
        None => Journal::open(state_dir, sift)?,
    };
    tree.restore_exited(history.last());
    socket::restore(&tree, &journal, &mut records, arguments.policy.is_some());
    tree.set_default_context(arguments.context_size);
    tree.set_default_policy(arguments.policy.unwrap_or(config.compute.policy));
    tree.set_on_unmanaged(config.on_unmanaged);
    // Registered before the server's listeners, because scheduling should not wait for the disk.
    let arbiter = ticks::Thread::start(tree.clone(), Settings::new(&config.compute))?;
    let grace = arguments.grace_msec();
    let receivers = launcher.clone();
    let receiver = move |socket| receivers.launch_unwatched(&[OsStr::new("receive")], &socket);
    let mut server = Server::new(socket::Options {
        listener,
        tree: tree.clone(),
        journal: Arc::new(journal),
        history,
        records,
        grace_msec: grace,
        device_page: arguments.device_page | if arguments.kept_pages { KEEPS_PAGES } else { 0 },
        receiver: Box::new(receiver),
    })?;
    devices::measure(tree.clone(), holders).context("cannot begin to measure")?;
    tree.set_driver(devices::driver_major());
    suspend::start(tree.clone(), launcher.clone()).context("cannot suspend processes")?;
    let stop = Stop::on_signals(server.waker()?)?;
    promise::keep(&socket, &config.rules);
    server.rules().set(config.rules);
    apply_groups(&tree, &config.groups);
    let parts = Parts {
        source,
        in_force,
        policy: arguments.policy,
        tree: tree.clone(),
        arbiter: arbiter.bell(),
        rules: server.rules(),
        socket: socket.clone(),
    };
    let reload = Reload::new(flag_on(&[SIGHUP], &server.waker()?)?, parts);
    let mut connection = None;
    let place = if arguments.no_fuse {
        String::new()
    } else {
        let cannot = || paths::cannot_mount(&point);
        let opened = Connection::open(&mut stored, &point, &socket, arguments.allow_other);
        let connection = connection.insert(opened.with_context(cannot)?);
        let (point, device) = (connection.mount().point().to_owned(), connection.mount().device());
        let place = format!("{}, ", point.display());
        fuse::serve(tree.clone(), connection, ended(stop.clone(), point, device)).with_context(cannot)?;
        connection.store();
        place
    };
    manager::ready();
    let ready = format!("gcgroupfs: ready: {place}socket {}\n", socket.display());
    Log::new().write_all(ready.as_bytes())?;
    let mut watchdog = Watchdog::from_environment();
    server.run(|| {
        // Whether the lock of the tree can be had.
        watchdog.reset(|| drop(tree.processes()));
        reload.if_asked();
        !stop.is_asked()
    })?;
    info!("stopping");
    manager::stopping();
    if let Some(connection) = &mut connection {
        connection.unmount();
    }
    if stop.has_failed() {
        bail!("the mount has failed");
    }
    Ok(())
}

/// Stops the daemon when the mount has ended: without an error if it was unmounted.
fn ended(stop: Stop, point: PathBuf, device: u64) -> impl FnOnce(io::Result<()>) + Send + 'static {
    move |result| {
        match result {
            Err(error) => {
                error!("the mount has failed: {error}");
                stop.fail();
            }
            // Aborted by the kernel's list of connections, or by `umount -f` of a mount in use.
            Ok(()) if mount::is_listed(&point, device) => {
                error!("the connection of the mount was aborted");
                stop.fail();
            }
            Ok(()) => info!("unmounted"),
        }
        stop.ask();
    }
}

/// Returns the owner of the root directory: the user that runs the daemon.
fn owner() -> Owner {
    Owner {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

/// Maximum number of descriptors: it bounds the number of processes and connections, and so the daemon's
/// memory. Some systems have a hard limit of 10^9.
const MAX_DESCRIPTORS: u64 = 128 << 10;

/// Raises the soft limit of descriptors: each process takes two, and the usual soft limit is for programs
/// that use select(2).
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| {
        let most = hard.min(MAX_DESCRIPTORS);
        setrlimit(Resource::RLIMIT_NOFILE, most, hard)
    });
    if let Err(error) = raised {
        warn!("cannot raise the limit of open descriptors: {error}");
    }
}

/// Makes a write beyond `RLIMIT_FSIZE` fail with `EFBIG` instead of ending the process. Uses a handler,
/// because executed programs would inherit an ignored signal.
fn survive_file_limit() -> io::Result<()> {
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).map(drop)
}

/// Returns a flag that each of the signals sets; they also wake the server.
fn flag_on(signals: &[i32], waker: &UnixStream) -> anyhow::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in signals {
        signal_hook::flag::register(*signal, asked.clone())?;
        signal_hook::low_level::pipe::register(*signal, waker.try_clone()?)?;
    }
    Ok(asked)
}

/// Request to stop, and the means to wake the server.
#[derive(Debug, Clone)]
struct Stop {
    asked: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    waker: Arc<UnixStream>,
}

impl Stop {
    /// Returns a request that SIGTERM and SIGINT set.
    fn on_signals(waker: UnixStream) -> anyhow::Result<Self> {
        Ok(Self {
            asked: flag_on(&[SIGTERM, SIGINT], &waker)?,
            failed: Arc::default(),
            waker: Arc::new(waker),
        })
    }

    fn ask(&self) {
        self.asked.store(true, Relaxed);
        // If it is full, the server has been woken already.
        let _ = (&*self.waker).write(&[0]);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    /// Makes the daemon end with an error.
    fn fail(&self) {
        self.failed.store(true, Relaxed);
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }
}
