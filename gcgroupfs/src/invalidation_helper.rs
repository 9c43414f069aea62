//! The helper that writes cache invalidations to the kernel.
//!
//! For such a write the kernel locks a directory, for unbounded time, and the writing process cannot end
//! meanwhile, not even by kill -9; the thread that holds the lock may be waiting for the daemon. So neither
//! the daemon nor its supervisor writes, and both can always be killed. The helper outlives them briefly: if
//! it is blocked then, it aborts the connection, so that all waiting threads get an error instead.

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

use gcgroupfs_fuse as fuse;
use gcgroupfs_fuse::mount;
use gcgroupfs_sys as sys;

/// Interval of the checks whether the writer is blocked.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    point: PathBuf,
    /// The mount's device number
    device: u64,
}

/// Serves until the daemon has ended: writes the messages that arrive on standard input, a socket, to
/// standard output, an open /dev/fuse, and answers each packet with a byte.
///
/// # Errors
/// The daemon's socket is gone.
pub(crate) fn run(Arguments { point, device }: &Arguments) -> anyhow::Result<()> {
    // A service manager signals all processes of a service, but the helper must outlive the daemon.
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    SigSet::from_iter(signals).thread_block()?;
    // Descriptors inherited from the daemon's starter (Linux 5.9).
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

/// Waits for the daemon's end; then aborts the connection whenever the writer is blocked by processes that
/// the daemon has left unanswered. Ends with the process.
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
