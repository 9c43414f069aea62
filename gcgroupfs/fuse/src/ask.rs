//! Reads for which processes must be asked. They wait on a thread of their own until the processes have
//! answered, for a limited time.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{FileHandle, INodeNo, ReplyData};

use super::deferred::Deferred;
use super::nodes::Nodes;
use super::outcome::{guarded, slice};

/// Least pause between two checks for answers, about the time that a process takes. At least as long as a
/// check takes.
const PAUSE: Duration = Duration::from_micros(100);

/// A read(2).
pub(super) struct Read {
    pub(super) uid: u32,
    pub(super) ino: INodeNo,
    pub(super) handle: FileHandle,
    pub(super) offset: u64,
    pub(super) size: u32,
    pub(super) reply: ReplyData,
}

impl Read {
    /// Replies with the current contents.
    pub(super) fn answer(self, nodes: &Nodes) {
        match guarded(|| nodes.read(self.ino, self.handle, self.offset, self.size)) {
            Ok(text) => self.reply.data(slice(text.as_bytes(), self.offset, self.size)),
            Err(errno) => self.reply.error(errno),
        }
    }
}

/// A waiting read from the start of a file, and its deadline.
struct Ask {
    read: Read,
    until: Instant,
}

/// Queue of reads that wait for answers.
#[derive(Debug, Clone)]
pub(super) struct Asks(Sender<Ask>);

impl Asks {
    /// Starts the waiting thread, which sleeps while no read waits.
    pub(super) fn start(nodes: Arc<Nodes>, deferred: Arc<Deferred>) -> io::Result<Self> {
        let (sender, receiver) = channel::<Ask>();
        thread::Builder::new()
            .name("fuse-ask".to_owned())
            .spawn(move || {
                let (mut waiting, mut pause) = (Vec::new(), PAUSE);
                loop {
                    let next = if waiting.is_empty() {
                        receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
                    } else {
                        receiver.recv_timeout(pause)
                    };
                    match next {
                        Ok(ask) => waiting.push(ask),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    waiting.extend(receiver.try_iter());
                    let begun = Instant::now();
                    let mut found = HashMap::new();
                    let mut is_over = |Ask { read, until }: &mut Ask| {
                        Instant::now() >= *until
                            || *found
                                .entry(read.ino)
                                .or_insert_with(|| nodes.has_answer(read.ino))
                    };
                    for Ask { read, .. } in waiting.extract_if(.., &mut is_over) {
                        deferred.defer(read.uid, |nodes| read.answer(nodes));
                    }
                    pause = begun.elapsed().max(PAUSE);
                }
            })?;
        Ok(Self(sender))
    }

    /// Replies when the processes have answered, or after `patience`.
    pub(super) fn push(&self, read: Read, patience: Duration) {
        let until = Instant::now() + patience;
        // Without the thread, the read is dropped and fuser replies EIO.
        let _ = self.0.send(Ask { read, until });
    }
}
