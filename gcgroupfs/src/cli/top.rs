//! `gcgroupfs top`: GPUs, groups and processes on a screen that is drawn again and again.

mod actions;
mod draw;
mod input;
mod keys;
mod question;
mod replay;
mod state;

use std::collections::BTreeSet;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use gcgroupfs_sys::clock::parse_local_time;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::actions::{Action, What};
use self::draw::Style;
use self::keys::BINDINGS;
use self::replay::Replay;
use self::state::{App, Effect, Message, Mode};
use super::columns::{Column, Order, of_top};
use super::report::now;
use super::rows::{Selection, Shape};
use crate::cli::format::{duration, is_dumb};
use gcgroup_client::node::{Reader, Snapshot};

#[derive(Debug, Args)]
#[command(after_help = "\
F1 or h shows the keys. Without a UTF-8 locale the screen is ASCII; with NO_COLOR set it has no colours; under \
TERM=dumb it is text, as with --batch. A screen that is too narrow lacks columns, never the name; a wide one has longer histories.

STATE is what a process or group does: idle, running, throttled (waits to submit without work on a GPU), swapping (memory moved within \
the last 2 s), refused (a limit refused an allocation within the last 10 s), freezing, frozen, or lost (the hook \
does not answer). LIMIT is the smallest limit that applies. PRES% is the part of the last 10 s in which a thread \
waited, to submit or for memory.")]
pub(super) struct Arguments {
    /// Print text again and again instead of drawing a screen
    #[arg(long, short)]
    batch: bool,
    /// Print text once
    #[arg(long, conflicts_with_all = ["batch", "count"])]
    once: bool,
    /// End after so many prints of --batch
    #[arg(long, short = 'n', value_name = "NUMBER", requires = "batch")]
    count: Option<u64>,
    /// Seconds between two looks
    #[arg(long, short, value_name = "SECONDS", default_value = "1.5", value_parser = duration)]
    delay: Duration,
    /// Sort by a column, as memory or usage
    #[arg(long, short, value_name = "COLUMN", default_value = "pid", value_parser = Order::of_top)]
    sort: Order,
    /// Show these columns, as pid,quota,waits_for,name: those of top, or of gcgroupfs ls
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', value_parser = of_top)]
    columns: Vec<&'static Column>,
    /// Show only rows with this text in name, pid, user or group
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Show processes alone, without groups
    #[arg(long)]
    flat: bool,
    /// Show a recording of gcgroupfs record, from its beginning
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Begin at a local time, as 10:31 or "2026-01-31 10:31:05"
    #[arg(long, value_name = "TIME", requires = "replay", value_parser = |text: &str| parse_local_time(text, now()))]
    at: Option<u64>,
}

/// Where the snapshots come from.
#[derive(Debug)]
enum Source {
    Daemon(Reader, PathBuf),
    Recording(Replay),
}

/// Longest time for which a key or a signal waits.
const TICK: Duration = Duration::from_millis(100);

/// Interval between two looks whether the terminal is still there.
const HANGUP_TICK: Duration = Duration::from_millis(500);

/// Returns the lines that explain the keys.
fn help() -> Vec<String> {
    let keys = keys().map(|(names, help)| format!("{names:<27} {help}"));
    ["gcgroupfs top: keys".to_owned()]
        .into_iter()
        .chain(keys)
        .collect()
}

/// Returns names and help of the keys.
pub(super) fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    let shown = BINDINGS.iter().filter(|binding| !binding.names.is_empty());
    shown.map(|binding| (binding.names, binding.help))
}

/// Shows the screen until it is ended, or prints text.
///
/// # Errors
/// The daemon does not answer, or there is no terminal.
pub(super) fn run(socket: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (source, history) = match &arguments.replay {
        Some(file) => {
            let replay = Replay::open(file, arguments.at)?;
            let history = replay.history();
            (Source::Recording(replay), history)
        }
        None => {
            let mut reader = Reader::new(socket);
            reader.with_host();
            let snapshot = reader.read()?;
            (Source::Daemon(reader, socket.to_owned()), vec![snapshot])
        }
    };
    let selection = Selection {
        order: Some(arguments.sort),
        shape: if arguments.flat {
            Shape::Processes
        } else {
            Shape::Tree
        },
        is_per_device: false,
        filter: arguments.filter.to_lowercase(),
        folded: BTreeSet::new(),
    };
    let mut app = App::new(history, selection, arguments.delay);
    if let Source::Recording(replay) = &source {
        app.replay = Some(replay.clock());
    }
    app.columns.clone_from(&arguments.columns);
    if arguments.batch || arguments.once || is_dumb() {
        let count = if arguments.once { Some(1) } else { arguments.count };
        return batch(source, app, count).map(|()| ExitCode::SUCCESS);
    }
    ensure!(
        io::stdout().is_terminal(),
        "the output is not a terminal: use --batch or --once"
    );
    let signal = signals()?;
    thread::spawn(end_with_terminal);
    let terminal = Terminal::new().context("cannot set up the terminal")?;
    let ended = show(terminal, app, source, &signal)?;
    Ok(match ended {
        0 => ExitCode::SUCCESS,
        // As a shell reports a program that the signal ended.
        signal => ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX)),
    })
}

/// Prints text after each look; of the daemon's state not after the first, which has no rates.
fn batch(mut source: Source, mut app: App, count: Option<u64>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let mut nr_printed = 0;
    while count.is_none_or(|count| nr_printed < count) {
        match &mut source {
            Source::Daemon(reader, _) => {
                thread::sleep(app.delay);
                app.update(Ok(reader.read()?));
            }
            Source::Recording(replay) => {
                if nr_printed > 0 && !replay.pass(&mut app)? {
                    return Ok(());
                }
            }
        }
        match out
            .write_all(draw::text(&app).as_bytes())
            .and_then(|()| out.flush())
        {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        nr_printed += 1;
    }
    Ok(())
}

/// The terminal while it shows the screen: restored when dropped, and at a panic.
#[derive(Debug)]
struct Terminal(ratatui::DefaultTerminal);

impl Terminal {
    fn new() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        // The panic hook has restored it: a second time would move the cursor onto the message.
        if !thread::panicking() {
            ratatui::restore();
        }
    }
}

/// Ends the program when the terminal is gone, as SIGHUP would: reading keys from it would never return,
/// and takes a CPU, also where no SIGHUP is sent.
fn end_with_terminal() {
    let stdout = io::stdout();
    loop {
        let mut terminal = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        let _ = poll(&mut terminal, PollTimeout::ZERO);
        if terminal[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLHUP))
        {
            process::exit(128 + SIGHUP);
        }
        thread::sleep(HANGUP_TICK);
    }
}

/// Returns a number that a signal to end sets to the signal's.
fn signals() -> io::Result<Arc<AtomicUsize>> {
    let received = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&received), number)?;
    }
    Ok(received)
}

/// Draws and obeys keys until the end. Returns the number of the signal that ended it, or 0.
fn show(mut terminal: Terminal, mut app: App, source: Source, signal: &AtomicUsize) -> anyhow::Result<usize> {
    let style = Style::of(|name| env::var(name).ok());
    let mut shown = Shown::new(source, app.delay);
    loop {
        match signal.load(Ordering::Relaxed) {
            0 => {}
            signal => return Ok(signal),
        }
        shown.update(&mut app)?;
        terminal.0.draw(|frame| draw::draw(frame, &mut app, style))?;
        if !event::poll(TICK)? {
            continue;
        }
        let Event::Key(key) = event::read()? else {
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match app.key(key) {
            Effect::None => {}
            Effect::Quit => return Ok(0),
            Effect::Interrupt => return Ok(usize::try_from(SIGINT)?),
            Effect::Act(action) => shown.act(&action, &mut app),
            Effect::Replay(step) => {
                if let Shown::Recording(replay) = &mut shown {
                    replay.step(step, &mut app)?;
                }
            }
        }
    }
}

/// Source of the screen's contents, while it is shown.
#[derive(Debug)]
enum Shown {
    Daemon {
        snapshots: Receiver<anyhow::Result<Snapshot>>,
        look: Sender<()>,
        socket: PathBuf,
    },
    Recording(Replay),
}

impl Shown {
    fn new(source: Source, delay: Duration) -> Self {
        match source {
            Source::Daemon(reader, socket) => {
                let (snapshots, look) = read_on(reader, delay);
                Self::Daemon {
                    snapshots,
                    look,
                    socket,
                }
            }
            Source::Recording(replay) => Self::Recording(replay),
        }
    }

    fn update(&mut self, app: &mut App) -> anyhow::Result<()> {
        match self {
            Self::Daemon { snapshots, .. } => {
                if let Some(read) = snapshots.try_iter().last() {
                    app.update(read);
                }
                Ok(())
            }
            Self::Recording(replay) => replay.play(app),
        }
    }

    fn act(&self, action: &Action, app: &mut App) {
        let Self::Daemon { look, socket, .. } = self else {
            return;
        };
        let done = action.perform(socket);
        if let (What::Explain, Ok(text)) = (&action.what, &done) {
            app.mode = Mode::Text(text.lines().map(str::to_owned).collect(), 0);
            return;
        }
        app.message = Some(Message {
            is_error: done.is_err(),
            text: done.unwrap_or_else(|error| format!("{error:#}")),
        });
        // Ends with the program; an error would only mean that it has.
        let _ = look.send(());
    }
}

/// Reads snapshots in a thread of its own, since the daemon may need seconds to answer. A message makes it
/// read at once.
fn read_on(mut reader: Reader, delay: Duration) -> (Receiver<anyhow::Result<Snapshot>>, Sender<()>) {
    let (send, snapshots) = mpsc::sync_channel(1);
    let (look, asked) = mpsc::channel();
    thread::spawn(move || {
        while !matches!(asked.recv_timeout(delay), Err(RecvTimeoutError::Disconnected)) {
            if send.send(reader.read()).is_err() {
                break;
            }
        }
    });
    (snapshots, look)
}
