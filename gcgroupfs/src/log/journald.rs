//! Sends events to systemd-journald by its native protocol: one datagram of fields for each.
//!
//! The socket does not block. What journald does not take goes to standard error, which is its stream.

use std::env;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Stderr, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::Log;
use super::fields::{Text, is_for_journal};

/// Longest value in bytes. A datagram that exceeded the socket's buffer would be refused.
const LONGEST: usize = 4096;

/// Layer that sends events to journald.
#[derive(Debug)]
pub(super) struct Journald<F> {
    socket: UnixDatagram,
    path: PathBuf,
    otherwise: Mutex<Log<F>>,
}

impl Journald<Stderr> {
    /// Returns a layer that sends to the socket at `path`, if standard error is journald's stream; otherwise
    /// `None`.
    pub(super) fn if_it_reads_stderr(path: PathBuf) -> Option<Self> {
        is_journal_stream(&env::var("JOURNAL_STREAM").ok()?, &io::stderr()).then_some(())?;
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self {
            socket,
            path,
            otherwise: Mutex::new(Log::new()),
        })
    }
}

/// Returns whether `stream`, the value of `$JOURNAL_STREAM` (device and inode number, systemd.exec(5)),
/// names this file.
fn is_journal_stream(stream: &str, file: &impl AsFd) -> bool {
    let found = file.as_fd().try_clone_to_owned().map(File::from);
    let Ok(file) = found.and_then(|file| file.metadata()) else {
        return false;
    };
    stream == format!("{}:{}", file.dev(), file.ino())
}

/// Returns the level as syslog(3) numbers it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

impl<S: Subscriber, F: AsFd + Send + 'static> Layer<S> for Journald<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let priority = priority(*event.metadata().level());
        let mut text = Text::default();
        event.record(&mut text);
        let mut entry = Entry::default();
        entry.push("MESSAGE", text.0.trim_start());
        entry.push("PRIORITY", &priority.to_string());
        entry.push("SYSLOG_IDENTIFIER", "gcgroupfs");
        event.record(&mut entry);
        if self.socket.send_to(&entry.0, &self.path).is_err() {
            // One line: an escaped newline keeps what a process chose from looking like another line.
            let line = format!("<{priority}>{}\n", text.0.trim_start().replace('\n', "\\n"));
            // Never fails.
            let _ = self.otherwise.lock().write_all(line.as_bytes());
        }
    }
}

/// A datagram: `NAME=VALUE` lines, or for values with a newline the name, the length and the value.
#[derive(Debug, Default)]
struct Entry(Vec<u8>);

impl Entry {
    fn push(&mut self, name: &str, value: &str) {
        let value = &value.as_bytes()[..value.len().min(LONGEST)];
        self.0.extend(name.as_bytes());
        if value.contains(&b'\n') {
            self.0.push(b'\n');
            self.0.extend((value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend(value);
        self.0.push(b'\n');
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        if is_for_journal(field) {
            self.push(field.name(), value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if is_for_journal(field) {
            self.push(field.name(), &format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn stream_of_another_file_is_not_the_journals() {
        let (one, other) = UnixStream::pair().unwrap();
        let name = |stream: &UnixStream| {
            let file = File::from(stream.as_fd().try_clone_to_owned().unwrap());
            let metadata = file.metadata().unwrap();
            format!("{}:{}", metadata.dev(), metadata.ino())
        };
        assert!(is_journal_stream(&name(&one), &one));
        for stream in [&name(&other), "", "0:0", "x"] {
            assert!(!is_journal_stream(stream, &one), "{stream:?}");
        }
    }

    #[test]
    fn value_with_a_newline_is_sent_with_its_length() {
        let mut entry = Entry::default();
        entry.push("A", "b\nMESSAGE=c");
        entry.push("D", &"e".repeat(2 * LONGEST));
        let wanted = format!("A\n\x0b\0\0\0\0\0\0\0b\nMESSAGE=c\nD={}\n", "e".repeat(LONGEST));
        assert_eq!(entry.0, wanted.as_bytes());
    }

    /// The queue of a datagram socket that is not read holds few datagrams: net.unix.max_dgram_qlen.
    #[test]
    fn socket_that_is_not_read_does_not_block() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let layer = Journald {
            socket,
            path,
            otherwise: Mutex::new(Log::on(writer)),
        };
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(PID = 7, error = 8, GPU = None::<u8>, "{}", "a line");
            (0..2000).for_each(|_| tracing::trace!(PID = 7, "x"));
        });
        // The subscriber has been dropped, and the pipe with it.
        let mut otherwise = String::new();
        reader.read_to_string(&mut otherwise).unwrap();
        assert!(otherwise.starts_with("<7>x\n<7>x\n"), "{otherwise}");
        let mut buffer = [0; 1000];
        let length = journal.recv(&mut buffer).unwrap();
        let told = std::str::from_utf8(&buffer[..length]).unwrap();
        let wanted = "MESSAGE=a line error=8\nPRIORITY=7\nSYSLOG_IDENTIFIER=gcgroupfs\nPID=7\n";
        assert_eq!(told, wanted);
    }
}
