//! `gcgroupfs wait`: waits until a control file satisfies expressions.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::expression::{Expression, Verdict};
use super::paths::Named;
use crate::message::complain;
use gcgroup_client::Client;
use gcgroupfs_fuse::mount;
use gcgroupfs_model::file::PAGE;

/// Longest pause between two reads of a file that does not notify of changes: one that is no events file, and
/// any file over the socket.
const PAUSE: Duration = Duration::from_millis(50);

/// First pause; the next ones are twice as long, up to [`PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Pause between two reads of an events file without a notification. Only a lost wake-up needs it.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// How long after the deadline an answer of the daemon is waited for.
const HUNG: Duration = Duration::from_millis(500);

/// How long the daemon, and then a process that it governed, may be absent: both come back after a restart.
const RESTART: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 all expressions hold; 1 timeout, also of a daemon that hangs; 2 usage error, or the expression does not fit the file; \
3 the file does not exist or is gone (its process has ended), or no daemon answers.

Events files notify at once; other files, and all files without a mount, are read every 50 ms.")]
pub(super) struct Arguments {
    /// As 1234/gcgroup.events or /gcgroup/1234/gcgroup.events
    path: PathBuf,
    /// KEY=VALUE for a keyed file, =VALUE for a file with a single value; also != < <= > >=; all must hold
    #[arg(required = true, value_name = "EXPRESSION")]
    expressions: Vec<Expression>,
    /// Give up after this time, as 0.5
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "a number of seconds is expected".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Returns the time at which `timeout` ends; `None` (never) if the clock cannot represent it.
pub(super) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Waits. Errors are printed on standard error.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> ExitCode {
    let deadline = arguments.timeout.and_then(deadline);
    let judge = |text: &str| holds(&arguments.expressions, text);
    match until(socket, &arguments.path, judge, deadline) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (status, words) = match failure {
                Failure::TimedOut(_) => (1, None),
                Failure::Senseless(words) => (2, Some(words)),
                Failure::Gone(words) | Failure::NoDaemon(words) => (3, Some(words)),
            };
            if let Some(words) = words {
                complain!("gcgroupfs: {}: {words}", arguments.path.display());
            }
            ExitCode::from(status)
        }
    }
}

/// Why a wait has ended without success, with the text to print.
#[derive(Debug)]
pub(super) enum Failure {
    /// The text says what was missing at the end.
    TimedOut(String),
    /// The condition cannot come to hold.
    Senseless(String),
    /// The file is gone or never existed.
    Gone(String),
    /// No daemon answers.
    NoDaemon(String),
}

/// Waits until `judge` says that the contents of a control file are as wanted.
///
/// # Errors
/// They are not before the deadline, or cannot come to be.
pub(super) fn until(
    socket: &Path,
    path: &Path,
    judge: impl Fn(&str) -> Verdict,
    deadline: Option<Instant>,
) -> Result<(), Failure> {
    let mut source = None;
    let mut lost: Option<Instant> = None;
    let mut missing = String::new();
    let mut pause = FIRST_PAUSE;
    let _watchdog = deadline.map(|deadline| watch(path, deadline));
    loop {
        let looked = match &mut source {
            Some(source) => Source::read(source),
            None => Source::open(socket, path).and_then(|open| source.insert(open).read()),
        };
        match looked.map(|text| judge(&text)) {
            Ok(Verdict::Holds) => return Ok(()),
            Ok(Verdict::Senseless(why)) => return Err(Failure::Senseless(why)),
            Ok(Verdict::Not(what)) => (missing, lost) = (what, None),
            Err(failure) => {
                // Only a file that was read before is expected to come back.
                let was_open = source.take().is_some() || lost.is_some();
                if let Failure::NoDaemon(_) = failure
                    && was_open
                {
                    lost = lost.or_else(|| Some(Instant::now()));
                }
                let is_over = lost.is_none_or(|since| since.elapsed() > RESTART);
                if is_over || matches!(failure, Failure::Senseless(_)) {
                    return Err(failure);
                }
            }
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Failure::TimedOut(missing));
        }
        match &source {
            Some(source) => source.sleep(pause, left),
            None => std::thread::sleep(left.map_or(PAUSE, |left| left.min(PAUSE))),
        }
        pause = PAUSE.min(2 * pause);
    }
}

/// Ends this program with the status of a timeout if it is still waiting at [`HUNG`] after the deadline: a
/// daemon that hangs answers no read and no poll of its mount. The wait ends when the guard is dropped.
fn watch(path: &Path, deadline: Instant) -> Sender<()> {
    let (guard, end) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let left = deadline.saturating_duration_since(Instant::now());
        if end.recv_timeout(left.saturating_add(HUNG)) == Err(RecvTimeoutError::Timeout) {
            complain!("gcgroupfs: {}: the daemon does not answer", path.display());
            std::process::exit(1);
        }
    });
    guard
}

/// Returns whether all expressions hold.
fn holds(expressions: &[Expression], text: &str) -> Verdict {
    let verdicts = expressions.iter().map(|expression| expression.judge(text));
    verdicts.fold(Verdict::Holds, |all, verdict| match (all, verdict) {
        (Verdict::Senseless(why), _) | (_, Verdict::Senseless(why)) => Verdict::Senseless(why),
        (Verdict::Holds, verdict) => verdict,
        (not, _) => not,
    })
}

/// Returns why a file cannot be read.
fn unreadable(error: &io::Error) -> Failure {
    let text = error.to_string();
    let words = text
        .rsplit_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words)
        .to_owned();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR) => Failure::Gone(words),
        Some(libc::EACCES | libc::EISDIR) => Failure::Senseless(words),
        _ => Failure::NoDaemon(words),
    }
}

fn no_daemon(error: anyhow::Error) -> Failure {
    Failure::NoDaemon(format!("{error:#}"))
}

/// How the file is read.
enum Source {
    Mounted { file: File, tells: bool },
    Socket { client: Client, path: String },
}

impl Source {
    /// Opens the mounted file, or connects to the socket if there is no mount that this user can use.
    fn open(socket: &Path, path: &Path) -> Result<Self, Failure> {
        let is_mounted = || mount::has(path) || path.canonicalize().is_ok_and(|path| mount::has(&path));
        let below = || Named::new(&path.to_string_lossy()).path;
        let mounted = if path.is_absolute() && is_mounted() {
            Some(path.to_owned())
        } else {
            mount::point_of(socket).map(|point| point.join(below()))
        };
        if let Some(mounted) = mounted {
            let tells = path.extension().is_some_and(|extension| extension == "events");
            match File::open(mounted) {
                Ok(file) => return Ok(Self::Mounted { file, tells }),
                // The daemon also finds a job by its name alone.
                Err(error)
                    if path.is_absolute()
                        && matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) =>
                {
                    return Err(unreadable(&error));
                }
                // Mounted for another user, or by a daemon that is gone.
                Err(_) => {}
            }
        }
        let client = Client::connect(socket).map_err(no_daemon)?;
        Ok(Self::Socket {
            client,
            path: below(),
        })
    }

    fn read(&mut self) -> Result<String, Failure> {
        match self {
            Self::Mounted { file, .. } => read(file).map_err(|error| unreadable(&error)),
            Self::Socket { client, path } => {
                let text = client.get(path).map_err(no_daemon)?;
                text.map_err(|refusal| unreadable(&refusal.errno.into()))
            }
        }
    }

    /// Sleeps until the file may have changed, for `left` at most; for `pause` if it does not notify.
    fn sleep(&self, pause: Duration, left: Option<Duration>) {
        let pause = match self {
            Self::Mounted { tells: true, .. } => LONG_PAUSE,
            _ => pause,
        };
        let pause = left.map_or(pause, |left| left.min(pause));
        match self {
            Self::Mounted { file, tells: true } => {
                // Rounded up; otherwise the last millisecond would be a busy loop.
                let timeout = PollTimeout::try_from(pause + Duration::from_millis(1));
                let mut watched = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
                match poll(&mut watched, timeout.unwrap_or(PollTimeout::MAX)) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(_) => std::thread::sleep(PAUSE.min(pause)),
                }
            }
            _ => std::thread::sleep(pause),
        }
    }
}

/// Returns all of a mounted file. Reading from offset 0 arms the next poll.
fn read(file: &File) -> io::Result<String> {
    let mut text = Vec::new();
    let mut buffer = [0; PAGE];
    loop {
        match file.read_at(&mut buffer, text.len() as u64)? {
            0 => break,
            length => text.extend(buffer.get(..length).unwrap_or_default()),
        }
    }
    String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
