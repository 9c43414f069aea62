//! `gcgroupfs mount`: the daemon, from its start to its end.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use super::reload::{Parts, Reload};
use super::{places, supervise};
use crate::arbiter::{self, Policy};
use crate::config;
use crate::devices;
use crate::fuse;
use crate::journal::Journal;
use crate::keep::Inheritance;
use crate::launch::Launcher;
use crate::log::Log;
use crate::mount::{self, Mount, Watch};
use crate::overhead;
use crate::server::{self, Listener, Server};
use crate::sys;
use crate::tree::{Owner, Tree};

#[derive(Debug, Args)]
pub struct Arguments {
    /// Where the control files are shown; made if it is not there [default: /gcgroup; for other users than
    /// root, $XDG_RUNTIME_DIR/gcgroup]
    mountpoint: Option<PathBuf>,
    /// Where settings are kept over a restart; by default where the socket is
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Let other users see the control files
    #[arg(long)]
    allow_other: bool,
    /// The configuration; read again at SIGHUP [default: /etc/gcgroupfs.toml; for other users than root,
    /// gcgroupfs.toml in $XDG_CONFIG_HOME; if it is there]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// What compute.priority means, in place of what the configuration and compute.policy said
    #[arg(long, value_name = "POLICY")]
    policy: Option<Policy>,
    /// What frozen processes do when the daemon is gone for longer than the grace time
    #[arg(long, value_name = "WHAT", default_value = "open")]
    on_daemon_loss: OnDaemonLoss,
    /// Milliseconds without a daemon before that
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    grace: u32,
    /// Serve the socket alone
    #[arg(long)]
    no_fuse: bool,
    /// Keep mount and socket in a process that starts the daemon again when it dies: nobody's read fails
    /// (Linux 6.9; without effect before)
    #[arg(long, conflicts_with = "no_fuse")]
    supervise: bool,
    #[arg(long, hide = true, conflicts_with = "no_fuse")]
    adopt: Option<Inheritance>,
    /// A predecessor that was killed cannot end
    #[arg(long, hide = true, requires = "adopt")]
    beside_killed: bool,
    /// What is logged: error, warn, info, debug, trace, or by module
    #[arg(long, value_name = "FILTER", env = "RUST_LOG", default_value = "info")]
    log: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnDaemonLoss {
    /// Go on
    Open,
    /// Stay frozen
    Hold,
}

impl Arguments {
    /// As the control block has it: all ones is never.
    fn grace_msec(&self) -> u32 {
        match self.on_daemon_loss {
            OnDaemonLoss::Open => self.grace.min(u32::MAX - 1),
            OnDaemonLoss::Hold => u32::MAX,
        }
    }
}

/// Runs until SIGTERM or SIGINT, or until it is unmounted.
///
/// # Errors
/// The socket, the state file or the mount cannot be had, or the mount has failed: somebody has aborted its
/// connection.
pub fn run(socket: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(&arguments.log).context("cannot understand --log")?)
        .with_writer(Mutex::new(Log::new()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    raise_descriptor_limit();
    survive_file_limit()?;
    // What whoever started us had open is nobody else's (Linux 5.11; what we open is closed on exec anyway).
    let _ = sys::close_on_exec_from(3);
    let socket = std::path::absolute(socket)?;
    let point = match &arguments.mountpoint {
        Some(point) => point.clone(),
        None if arguments.no_fuse => PathBuf::new(),
        None => places::mount_point()?,
    };
    if arguments.supervise && supervise::run(&socket, &point, arguments.allow_other)? {
        return Ok(());
    }
    let kept = arguments.adopt.as_ref().map(Inheritance::take).transpose();
    let mut kept = kept.context("--adopt is the supervisor's to give")?;
    let source = config::Source::new(arguments.config.clone(), places::configuration());
    let note = kept.as_ref().map(|kept| kept.configuration.clone());
    let (config, text) = source.read().or_else(|error| {
        // Whom a predecessor has governed is not to be without a daemon for what somebody has written since.
        let Some(text) = note.as_ref().and_then(|note| note.get()) else {
            return Err(error);
        };
        warn!("the configuration stays as it was: {error:#}");
        source.understand(text)
    })?;
    note.iter().for_each(|note| note.put(&text));
    let state_dir = arguments
        .state_dir
        .as_deref()
        .or(socket.parent())
        .unwrap_or(Path::new("/"));
    // The journal makes it, too, when it can be made.
    if let Err(error) = std::fs::create_dir_all(state_dir) {
        warn!("cannot make {}: {error}", state_dir.display());
    }

    // Before there is any client.
    let launcher = Arc::new(Launcher::start().context("cannot start the launcher of helpers")?);
    // First of all, so that of two daemons the second leaves everything alone.
    let listener = match &mut kept {
        None => Listener::bind(&socket)?,
        Some(kept) => {
            // Without the supervisor nobody would follow us.
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            Listener::kept(kept.listener.try_clone()?)
        }
    };
    let (holders, found) = devices::find();
    let tree = Arc::new(Tree::new(owner(), found));
    let (journal, mut remembered) = if arguments.beside_killed {
        Journal::open_beside_killed(state_dir, server::sift)?
    } else {
        Journal::open(state_dir, server::sift)?
    };
    server::restore(&tree, &journal, &mut remembered, arguments.policy.is_some());
    tree.set_default_policy(arguments.policy.unwrap_or(config.compute.policy));
    // Before the server, so that it is told of changes first: whose turn it is should not wait for the disk.
    let arbiter = arbiter::Thread::start(tree.clone(), arbiter::Settings::new(&config.compute))?;
    let grace = arguments.grace_msec();
    let receivers = launcher.clone();
    let receiver = move |socket| receivers.launch_unwatched(&[OsStr::new("receive")], &socket);
    let mut server = Server::new(
        listener,
        tree.clone(),
        Arc::new(journal),
        remembered,
        grace,
        Box::new(receiver),
    )?;
    if let Some(holders) = holders {
        overhead::watch(tree.clone(), holders).context("cannot begin to measure")?;
    }
    let stop = Stop::on_signals(server.waker()?)?;
    server.rules().set(config.rules);
    let parts = Parts {
        source,
        note,
        policy: arguments.policy,
        tree: tree.clone(),
        arbiter: arbiter.bell(),
        rules: server.rules(),
    };
    let reload = Reload::new(flag_on(SIGHUP, &server.waker()?)?, parts);
    // Dropping it unmounts.
    let mut shown = None;
    let place = if arguments.no_fuse {
        String::new()
    } else if let Some(kept) = kept {
        let spot = fuse::Spot {
            point: std::path::absolute(&point)?,
            device: kept.number,
        };
        server.report_to(kept.line.try_clone()?)?;
        let ended = ended(stop.clone(), spot.clone());
        fuse::serve(tree, fuse::Link::Kept(kept), spot, launcher, ended)?;
        format!("{}, ", point.display())
    } else {
        let mounted = show(
            (&point, &socket),
            arguments.allow_other,
            tree,
            launcher,
            stop.clone(),
        )?;
        format!("{}, ", shown.insert(mounted).mount.point().display())
    };
    tell_ready();
    let ready = format!("gcgroupfs: ready: {place}socket {}\n", socket.display());
    Log::new().write_all(ready.as_bytes())?;
    server.run(|| {
        reload.if_asked();
        if let Some(shown) = &mut shown {
            shown.watch.look(Instant::now());
        }
        !stop.is_asked()
    })?;
    info!("stopping");
    drop(shown);
    if stop.has_failed() {
        bail!("the mount has failed");
    }
    Ok(())
}

/// Shows the tree at `point`.
fn show(
    (point, socket): (&Path, &Path),
    allow_other: bool,
    tree: Arc<Tree>,
    launcher: Arc<Launcher>,
    stop: Stop,
) -> anyhow::Result<Shown> {
    let cannot = || format!("cannot mount at {}", point.display());
    let (mount, device) = Mount::new(point, socket, allow_other).with_context(cannot)?;
    let spot = fuse::Spot {
        point: mount.point().to_owned(),
        device: mount.device(),
    };
    let watch = Watch::new(mount.point(), mount.device())?;
    let ended = ended(stop, spot.clone());
    let forgetter =
        fuse::serve(tree, fuse::Link::Fresh(device), spot, launcher, ended).with_context(cannot)?;
    Ok(Shown {
        forgetter,
        mount,
        watch,
    })
}

/// What is mounted and answered for.
struct Shown {
    forgetter: fuse::Forgetter,
    mount: Mount,
    watch: Watch,
}

impl Drop for Shown {
    fn drop(&mut self) {
        // Then the mount is.
        self.forgetter.stop();
    }
}

/// When the mount has ended, the daemon is to stop: without an error if somebody has unmounted it.
fn ended(stop: Stop, spot: fuse::Spot) -> impl FnOnce(io::Result<()>) + Send + 'static {
    move |result| {
        match result {
            Err(error) => {
                error!("the mount has failed: {error}");
                stop.fail();
            }
            // By the kernel's list of connections, or umount -f of what is in use.
            Ok(()) if mount::is_listed(&spot.point, spot.device) => {
                error!("the connection of the mount was aborted");
                stop.fail();
            }
            Ok(()) => info!("unmounted"),
        }
        stop.ask();
    }
}

/// Whoever runs the daemon owns its root.
fn owner() -> Owner {
    Owner {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

/// Descriptors that the daemon has at most: they bound how many processes and connections there are, and so
/// its memory. Some systems have a hard limit of a thousand millions.
const MAX_DESCRIPTORS: u64 = 128 << 10;

/// Every process costs two descriptors; the usual soft limit is for programs that use select(2).
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| {
        let most = hard.min(MAX_DESCRIPTORS);
        setrlimit(Resource::RLIMIT_NOFILE, most, hard)
    });
    if let Err(error) = raised {
        warn!("cannot raise the limit of open descriptors: {error}");
    }
}

/// Has a write beyond `RLIMIT_FSIZE` fail with `EFBIG` instead of ending the process. By a handler, since
/// programs that are executed would inherit that the signal is ignored.
fn survive_file_limit() -> io::Result<()> {
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).map(drop)
}

/// A flag that the signal sets, waking the server.
fn flag_on(signal: i32, waker: &UnixStream) -> anyhow::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal, asked.clone())?;
    signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
    Ok(asked)
}

/// Whether to stop, and how to make the server look.
#[derive(Debug, Clone)]
struct Stop {
    asked: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
    waker: Arc<UnixStream>,
}

impl Stop {
    /// Asked for by SIGTERM and SIGINT.
    fn on_signals(waker: UnixStream) -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, asked.clone())?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Self {
            asked,
            failed: Arc::default(),
            waker: Arc::new(waker),
        })
    }

    fn ask(&self) {
        self.asked.store(true, Relaxed);
        // If it is full, the server is woken already.
        let _ = (&*self.waker).write(&[0]);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    /// The daemon ends with an error.
    fn fail(&self) {
        self.failed.store(true, Relaxed);
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }
}

/// Tells a service manager that the daemon serves.
pub(super) fn tell_ready() {
    notify("READY=1");
}

/// Tells a service manager that started us, as sd_notify(3) does.
pub(super) fn notify(text: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address));
    if let Err(error) = told {
        warn!("cannot tell {} {text:?}: {error}", path.to_string_lossy());
    }
}
