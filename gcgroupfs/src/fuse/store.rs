//! Carries out writes, on a thread of its own: a changed setting is put on file before its writer is answered, and
//! nobody who only reads is to wait for a disk. The hand-over costs a write about 8 us.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use fuser::{FileHandle, INodeNo, ReplyWrite};

use super::guarded;
use super::nodes::Nodes;
use crate::tree::Caller;

/// One write(2).
struct Store {
    caller: Caller,
    ino: INodeNo,
    handle: FileHandle,
    data: Box<[u8]>,
    reply: ReplyWrite,
}

/// Takes writes, to be carried out in order. There are never more than there are threads that write.
#[derive(Debug)]
pub(super) struct Stores(Sender<Store>);

impl Stores {
    /// Starts the thread that writes.
    pub(super) fn start(nodes: Arc<Nodes>) -> io::Result<Self> {
        let (sender, receiver) = channel::<Store>();
        thread::Builder::new()
            .name("fuse-store".to_owned())
            .spawn(move || {
                for Store {
                    caller,
                    ino,
                    handle,
                    data,
                    reply,
                } in receiver
                {
                    match guarded(|| nodes.write(caller, ino, handle, &data)) {
                        // Not longer than a page, or it would have been refused.
                        Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(0)),
                        Err(errno) => reply.error(errno),
                    }
                }
            })?;
        Ok(Self(sender))
    }

    pub(super) fn push(
        &self,
        caller: Caller,
        ino: INodeNo,
        handle: FileHandle,
        data: &[u8],
        reply: ReplyWrite,
    ) {
        // Without the thread, the write is dropped with its reply, which then says EIO.
        let _ = self.0.send(Store {
            caller,
            ino,
            handle,
            data: data.into(),
            reply,
        });
    }
}
