//! Reads whose contents the processes must be asked for. Such a reader waits, on a thread of ours that keeps nobody
//! else waiting, until they have answered or for as long as an answer may take.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{FileHandle, INodeNo, ReplyData};

use super::long::Long;
use super::nodes::Nodes;
use super::outcome::{guarded, slice};

/// Between two looks for an answer: it takes a process about that long. For as long as a look takes, if that is longer.
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
    /// Answers with what the file shows now.
    pub(super) fn answer(self, nodes: &Nodes) {
        match guarded(|| nodes.read(self.ino, self.handle, self.offset, self.size)) {
            Ok(text) => self.reply.data(slice(text.as_bytes(), self.offset, self.size)),
            Err(errno) => self.reply.error(errno),
        }
    }
}

/// One from the start of a file, and until when it waits.
struct Ask {
    read: Read,
    until: Instant,
}

/// Takes reads that wait for an answer.
#[derive(Debug, Clone)]
pub(super) struct Asks(Sender<Ask>);

impl Asks {
    /// Starts the thread that waits. It sleeps while nobody asks.
    pub(super) fn start(nodes: Arc<Nodes>, long: Arc<Long>) -> io::Result<Self> {
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
                        long.behind(read.uid, |nodes| read.answer(nodes));
                    }
                    pause = begun.elapsed().max(PAUSE);
                }
            })?;
        Ok(Self(sender))
    }

    /// Answers when there is something to show, or when `patience` is over.
    pub(super) fn push(&self, read: Read, patience: Duration) {
        let until = Instant::now() + patience;
        // Without the thread, the read is dropped with its reply, which then says EIO.
        let _ = self.0.send(Ask { read, until });
    }
}
