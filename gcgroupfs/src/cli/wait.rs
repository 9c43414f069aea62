//! `gcgroupfs wait`: sleeps until a control file says what a script waits for.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::Client;
use super::expression::{Expression, Verdict};
use crate::file::PAGE;
use crate::mount;

/// Between two looks at what does not tell of changes: values that are no events, and everything by the socket.
const PAUSE: Duration = Duration::from_millis(50);

/// Between two looks at an events file that has not told of a change. Only a lost wake-up would need it.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// How long a daemon may be away, and then a process that it governed: both come back after a restart.
const RESTART: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 all expressions hold; 1 the time is over; 2 the command line makes no sense, or not for this file; \
3 the file is gone (its process has ended), or never was there, or there is no daemon.

Events files wake at once; other files, and all files where nothing is mounted, are looked at every 50 ms.")]
pub struct Arguments {
    /// Below the mount point, as 1234/gcgroup.events, or where it is mounted, as /gcgroup/1234/gcgroup.events
    path: PathBuf,
    /// KEY=VALUE of a file of keys, or =VALUE of one with a single value; also != < <= > >=; all must hold
    #[arg(required = true, value_name = "EXPRESSION")]
    expressions: Vec<Expression>,
    /// Give up after so long, as 0.5
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "a number of seconds is expected".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// When so long is over; never, if the clock does not go so far.
pub(super) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Waits. What went wrong is said on standard error.
pub fn run(socket: &Path, arguments: &Arguments) -> ExitCode {
    let deadline = arguments.timeout.and_then(deadline);
    match until(socket, &arguments.path, &arguments.expressions, deadline) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (status, words) = match failure {
                Failure::TimedOut => (1, None),
                Failure::Senseless(words) => (2, Some(words)),
                Failure::Gone(words) | Failure::NoDaemon(words) => (3, Some(words)),
            };
            if let Some(words) = words {
                eprintln!("gcgroupfs: {}: {words}", arguments.path.display());
            }
            ExitCode::from(status)
        }
    }
}

/// Why it does not hold, with the words for it.
#[derive(Debug)]
pub(super) enum Failure {
    TimedOut,
    /// It never can, of this file.
    Senseless(String),
    /// The file is gone, or never was there.
    Gone(String),
    /// Nobody answers.
    NoDaemon(String),
}

/// Waits until all expressions hold of a control file.
pub(super) fn until(
    socket: &Path,
    path: &Path,
    expressions: &[Expression],
    deadline: Option<Instant>,
) -> Result<(), Failure> {
    let mut source = None;
    let mut lost: Option<Instant> = None;
    loop {
        let looked = match &mut source {
            Some(source) => Source::read(source),
            None => Source::open(socket, path).and_then(|open| source.insert(open).read()),
        };
        match looked {
            Ok(text) => {
                lost = None;
                if holds(expressions, &text)? {
                    return Ok(());
                }
            }
            Err(trouble) => {
                // Only who has seen the file once knows that it should come back.
                let was_open = source.take().is_some() || lost.is_some();
                if let Trouble::Senseless(_) = trouble {
                    return Err(trouble.into_failure());
                }
                if let Trouble::Daemon(_) = trouble
                    && was_open
                {
                    lost = lost.or_else(|| Some(Instant::now()));
                }
                if lost.is_none_or(|since| since.elapsed() > RESTART) {
                    return Err(trouble.into_failure());
                }
            }
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Failure::TimedOut);
        }
        match &source {
            Some(source) => source.sleep(left),
            None => std::thread::sleep(left.map_or(PAUSE, |left| left.min(PAUSE))),
        }
    }
}

fn holds(expressions: &[Expression], text: &str) -> Result<bool, Failure> {
    let mut all = true;
    for expression in expressions {
        match expression.judge(text) {
            Verdict::Holds => {}
            Verdict::Not => all = false,
            Verdict::Senseless(why) => return Err(Failure::Senseless(why)),
        }
    }
    Ok(all)
}

/// Why a file cannot be read.
enum Trouble {
    /// It is not there, or not any more.
    File(String),
    /// It is there, and not to be read.
    Senseless(String),
    /// Nobody answers for it: a daemon that is being restarted looks so.
    Daemon(String),
}

impl Trouble {
    fn of(error: &io::Error) -> Self {
        let text = error.to_string();
        let words = text
            .rsplit_once(" (os error")
            .map_or(text.as_str(), |(words, _)| words)
            .to_owned();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR) => Self::File(words),
            Some(libc::EACCES | libc::EISDIR) => Self::Senseless(words),
            _ => Self::Daemon(words),
        }
    }

    fn into_failure(self) -> Failure {
        match self {
            Self::File(words) => Failure::Gone(words),
            Self::Senseless(words) => Failure::Senseless(words),
            Self::Daemon(words) => Failure::NoDaemon(words),
        }
    }
}

/// Where the file is read.
enum Source {
    Mounted { file: File, tells: bool },
    Socket { client: Client, path: String },
}

impl Source {
    /// The mounted file; through the socket where nothing is mounted, or not for us.
    fn open(socket: &Path, path: &Path) -> Result<Self, Trouble> {
        let is_mounted = || mount::has(path) || path.canonicalize().is_ok_and(|path| mount::has(&path));
        let mounted = if path.is_absolute() && is_mounted() {
            Some(path.to_owned())
        } else {
            mount::point_of(socket).map(|point| point.join(path.strip_prefix("/").unwrap_or(path)))
        };
        if let Some(mounted) = mounted {
            let tells = path.extension().is_some_and(|extension| extension == "events");
            match File::open(mounted) {
                Ok(file) => return Ok(Self::Mounted { file, tells }),
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
                    return Err(Trouble::of(&error));
                }
                // Mounted for another user, or by a daemon that is gone.
                Err(_) => {}
            }
        }
        let client = Client::connect(socket).map_err(|error| Trouble::Daemon(format!("{error:#}")))?;
        let path = path.to_str().map(str::to_owned);
        let path = path.ok_or_else(|| Trouble::File("no such name".to_owned()))?;
        Ok(Self::Socket { client, path })
    }

    fn read(&mut self) -> Result<String, Trouble> {
        match self {
            Self::Mounted { file, .. } => read(file).map_err(|error| Trouble::of(&error)),
            Self::Socket { client, path } => {
                let text = client
                    .try_get(path)
                    .map_err(|error| Trouble::Daemon(format!("{error:#}")))?;
                let text = text.map_err(|errno| Trouble::of(&errno.into()))?;
                String::from_utf8(text).map_err(|error| Trouble::File(error.to_string()))
            }
        }
    }

    /// Until there may be something new, and no longer than `left`.
    fn sleep(&self, left: Option<Duration>) {
        let pause = match self {
            Self::Mounted { tells: true, .. } => LONG_PAUSE,
            _ => PAUSE,
        };
        let pause = left.map_or(pause, |left| left.min(pause));
        match self {
            Self::Mounted { file, tells: true } => {
                // Rounded up, or the last millisecond would be spent in a loop.
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

/// All of a mounted file. Reading from the start is what arms the next poll.
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
