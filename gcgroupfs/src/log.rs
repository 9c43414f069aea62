//! The daemon's log, on standard error or in the journal. It never waits for the reader.
//!
//! The loop that serves the socket logs registrations and exits. A reader that stops reading (a pipe that is
//! not emptied, a stopped terminal, a journal that is restarting) would stop that loop and thus all requests.
//! Lines for which the reader has no room are dropped and counted instead.

mod fields;
mod journald;

use std::io::{self, IsTerminal, Stderr, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::write;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use self::fields::TextFields;
use self::journald::Journald;

/// Bytes that a pipe with any room accepts at once: PIPE_BUF, pipe(7).
const PART: usize = 4096;

/// Sends all events that pass `filter` to the journal, if the service manager has connected standard error to
/// it, and to standard error otherwise. `journal` is the path of journald's socket.
///
/// # Errors
/// The filter cannot be parsed.
pub(crate) fn start(filter: &str, journal: PathBuf) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).context("cannot understand --log")?;
    let layer = match Journald::if_it_reads_stderr(journal) {
        Some(journald) => journald.boxed(),
        None => tracing_subscriber::fmt::layer()
            .fmt_fields(TextFields)
            .with_writer(Mutex::new(Log::new()))
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .boxed(),
    };
    tracing_subscriber::registry().with(layer).with(filter).init();
    Ok(())
}

/// A log with one line for each write.
#[derive(Debug)]
pub(crate) struct Log<F> {
    file: F,
    nr_lost: u64,
}

impl Log<Stderr> {
    pub(crate) fn new() -> Self {
        Self::on(io::stderr())
    }
}

impl<F: AsFd> Log<F> {
    fn on(file: F) -> Self {
        Self { file, nr_lost: 0 }
    }

    /// Writes a line. Returns whether the reader has accepted it.
    fn put(&self, line: &[u8]) -> bool {
        line.chunks(PART).all(|part| self.put_part(part))
    }

    fn put_part(&self, part: &[u8]) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(self.file.as_fd().as_raw_fd(), part, flags) {
            Err(Errno::ENOTSOCK) => self.has_room() && write(&self.file, part).is_ok(),
            sent => sent.is_ok(),
        }
    }

    fn has_room(&self) -> bool {
        let mut watched = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        poll(&mut watched, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

impl<F: AsFd> Write for Log<F> {
    /// Never fails: there is nowhere to report it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.nr_lost > 0 {
            let gap = format!(
                "gcgroupfs: {} lines were lost: nobody read the log\n",
                self.nr_lost
            );
            if self.put(gap.as_bytes()) {
                self.nr_lost = 0;
            }
        }
        if self.nr_lost > 0 || !self.put(line) {
            self.nr_lost += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    const LINE: &[u8] = b"a line of some length, as there are many\n";

    /// Logs more than the reader has room for, and then reads. Checks that the reader gets the beginning, the
    /// number of missing lines, and what comes after.
    fn check_unread(near: OwnedFd, far: OwnedFd) {
        let (mut log, mut reader) = (Log::on(near), File::from(far));
        let mut nr_written = 0_u64;
        while log.nr_lost < 1000 {
            log.write_all(LINE).unwrap();
            nr_written += 1;
        }
        let lost = log.nr_lost;
        let mut text = vec![0; usize::try_from(nr_written - lost).unwrap() * LINE.len()];
        reader.read_exact(&mut text).unwrap();
        assert!(text.chunks(LINE.len()).all(|line| line == LINE));
        log.write_all(LINE).unwrap();
        drop(log);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let gap = format!("gcgroupfs: {lost} lines were lost: nobody read the log\n");
        assert_eq!(text.as_bytes(), [gap.as_bytes(), LINE].concat());
    }

    #[test]
    fn log_does_not_wait_for_a_full_pipe() {
        let (far, near) = io::pipe().unwrap();
        check_unread(near.into(), far.into());
    }

    #[test]
    fn log_does_not_wait_for_a_full_socket() {
        let (far, near) = UnixStream::pair().unwrap();
        check_unread(near.into(), far.into());
    }

    #[test]
    fn log_closed_by_the_reader_is_no_error() {
        let (far, near) = io::pipe().unwrap();
        drop(far);
        Log::on(near).write_all(LINE).unwrap();
    }
}
