//! Requests of other threads to the event loop, which knows the processes: writes to `gcgroup.kill`, and to
//! notice the ends of processes.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::host;
use gcgroupfs_model::tree::{Directory, Listener, Notice};

/// Directories whose processes are to be killed, with the uids of the users that request it, and when that
/// was last requested, in ticks since boot.
#[derive(Debug, Default)]
pub(super) struct Kills(Mutex<HashMap<(Directory, u32), u64>>);

impl Kills {
    /// Removes and returns all requests.
    pub(super) fn take(&self) -> HashMap<(Directory, u32), u64> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Notes requests and wakes the event loop. Its turn handles every end that the kernel has reported by then.
#[derive(Debug)]
pub(super) struct LoopWaker {
    kills: Arc<Kills>,
    waker: UnixStream,
}

impl LoopWaker {
    pub(super) fn new(kills: Arc<Kills>, waker: UnixStream) -> Self {
        Self { kills, waker }
    }
}

impl Listener for LoopWaker {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::KillAsked(directory, uid) => {
                let asked = (*directory, *uid);
                self.kills.0.lock().insert(asked, host::ticks_since_boot());
            }
            Notice::EndsAsked => {}
            _ => return,
        }
        // If the socket is full, the loop has been woken already.
        let _ = (&self.waker).write(&[0]);
    }
}
