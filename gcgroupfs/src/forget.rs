//! The helper that writes to the kernel what it is to forget. The kernel locks a directory for that, however long it
//! takes, and keeps what writes from ending meanwhile, also by kill -9; who holds the lock may be waiting for the daemon.
//! So the daemon does not write, nor its supervisor, and can always be killed. The helper outlives them by a moment: should it be held up then, it
//! breaks the connection, so that all who wait for an answer have an error instead.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};

use crate::{fuse, mount, sys};

/// Between two looks whether it is held up.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub struct Arguments {
    point: PathBuf,
    /// The mount's device number
    device: u64,
}

/// Serves until there is no daemon any more: writes what comes over standard input, a socket, to standard output, an
/// open /dev/fuse, and answers each packet with a byte.
///
/// # Errors
/// The daemon's socket is gone.
pub fn run(Arguments { point, device }: &Arguments) -> anyhow::Result<()> {
    // A service manager ends all of a service at once, but the helper is for what the daemon leaves.
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    SigSet::from_iter(signals).thread_block()?;
    // What the daemon was started with is not the helper's to keep open, where the kernel can say so (Linux 5.9).
    let _ = sys::close_from(3);
    let is_writing = Arc::new(AtomicBool::new(false));
    let (of_writer, point, device) = (is_writing.clone(), point.clone(), *device);
    thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || {
            watch(&io::stdin(), &of_writer, || {
                mount::abort(&point, device, &io::stdout());
            })
        })
        .context("cannot watch the daemon")?;
    let (relay, kernel) = (io::stdin(), io::stdout());
    while let Some(messages) = fuse::next(&relay)? {
        is_writing.store(true, Relaxed);
        fuse::deliver(&messages, &kernel);
        is_writing.store(false, Relaxed);
        fuse::done(&relay)?;
    }
    Ok(())
}

/// Waits for the daemon's end, and sees to it that the writer is not held up by those that the daemon has left
/// unanswered. It ends with the process.
fn watch(relay: &impl AsFd, is_writing: &AtomicBool, break_connection: impl Fn()) {
    let mut watched = [PollFd::new(relay.as_fd(), PollFlags::empty())];
    while !matches!(poll(&mut watched, PollTimeout::NONE), Ok(1..)) {}
    loop {
        thread::sleep(PAUSE);
        if is_writing.load(Relaxed) {
            break_connection();
        }
    }
}
