//! Requests of other threads to the event loop, which knows the processes: writes to `gcgroup.kill`, and to
//! notice the ends of processes.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::host;
use gcgroupfs_model::tree::{Directory, KillCause, Killer, Listener, Notice};

/// Directories whose processes are to be killed, with the uids of the users that request it, and the last
/// request: why, and when in ticks since boot.
type Requests = HashMap<(Directory, u32), (KillCause, u64)>;

#[derive(Debug, Default)]
pub(super) struct Kills(Mutex<Requests>);

impl Kills {
    /// Removes and returns all requests.
    pub(super) fn take(&self) -> Requests {
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
            Notice::KillAsked(directory, Killer { uid, cause }) => {
                let last = (*cause, host::ticks_since_boot());
                let mut requests = self.kills.0.lock();
                let earlier = requests.entry((*directory, *uid)).or_insert(last);
                // SIGTERM does not take the place of SIGKILL.
                if !matches!(cause, KillCause::Terminate(_)) {
                    *earlier = last;
                }
            }
            Notice::EndsAsked => {}
            _ => return,
        }
        // If the socket is full, the loop has been woken already.
        let _ = (&self.waker).write(&[0]);
    }
}
