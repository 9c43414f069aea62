//! Reads whose contents the processes must be asked for. Such a reader waits, on a thread of ours that keeps nobody
//! else waiting, until they have answered or for as long as an answer may take.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{FileHandle, INodeNo, ReplyData};

use super::adapter::{guarded, slice};
use super::nodes::Nodes;

/// Between two looks for an answer: it takes a process about that long.
const PAUSE: Duration = Duration::from_micros(100);

/// One read(2) from the start of a file.
struct Ask {
    ino: INodeNo,
    handle: FileHandle,
    size: u32,
    until: Instant,
    reply: ReplyData,
}

/// Takes reads that wait for an answer.
#[derive(Debug)]
pub(super) struct Asks(Sender<Ask>);

impl Asks {
    /// Starts the thread that waits. It sleeps while nobody asks.
    pub(super) fn start(nodes: Arc<Nodes>) -> io::Result<Self> {
        let (sender, receiver) = channel::<Ask>();
        thread::Builder::new()
            .name("fuse-ask".to_owned())
            .spawn(move || {
                let mut waiting = Vec::new();
                loop {
                    let next = if waiting.is_empty() {
                        receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
                    } else {
                        receiver.recv_timeout(PAUSE)
                    };
                    match next {
                        Ok(ask) => waiting.push(ask),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                    let is_over = |ask: &mut Ask| Instant::now() >= ask.until || nodes.has_answer(ask.ino);
                    for ask in waiting.extract_if(.., is_over) {
                        answer(&nodes, ask.ino, ask.handle, 0, ask.size, ask.reply);
                    }
                }
            })?;
        Ok(Self(sender))
    }

    /// Answers when there is something to show, or when `patience` is over.
    pub(super) fn push(
        &self,
        ino: INodeNo,
        handle: FileHandle,
        size: u32,
        patience: Duration,
        reply: ReplyData,
    ) {
        let until = Instant::now() + patience;
        // Without the thread, the read is dropped with its reply, which then says EIO.
        let _ = self.0.send(Ask {
            ino,
            handle,
            size,
            until,
            reply,
        });
    }
}

/// Answers a read with what the file shows now.
pub(super) fn answer(
    nodes: &Nodes,
    ino: INodeNo,
    handle: FileHandle,
    offset: u64,
    size: u32,
    reply: ReplyData,
) {
    match guarded(|| nodes.read(ino, handle, offset, size)) {
        Ok(text) => reply.data(slice(text.as_bytes(), offset, size)),
        Err(errno) => reply.error(errno),
    }
}
