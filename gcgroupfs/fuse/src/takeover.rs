//! Takes over a mount that another daemon has served. The kernel's FUSE_INIT was read long ago: it is
//! replayed over a socket pair, and then the device takes the socket pair's place. Requests that the
//! predecessor read and did not answer are sent again by the kernel (Linux 6.9).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Notifier, PollHandle, Session, SessionACL};
use nix::errno::Errno;
use tracing::{debug, warn};

use super::adapter::Adapter;
use crate::connection::Connection;
use crate::slots::Slots;
use gcgroupfs_model::tree::{Listener, Notice, Tree};
use gcgroupfs_sys as sys;
use gcgroupfs_sys::process;

/// Time for processes to register again before requests are answered without them.
const PATIENCE: Duration = Duration::from_secs(5);

/// `FUSE_NOTIFY_RESEND` of the kernel's `include/uapi/linux/fuse.h`: a `struct fuse_out_header`, whose words
/// are its length, the notification's code, and two zeros.
const RESEND: [u32; 4] = [16, 7, 0, 0];

/// Time without a registration after which those that are missing are not awaited any more: all readers wait
/// for them. A hook that has lost its daemon notices at once, and looks for another at least every 500 ms.
const STILL: Duration = Duration::from_millis(1500);

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Makes a session on the device of `connection`. The kernel takes only the first reply to FUSE_INIT.
pub(super) fn session(
    adapter: Adapter,
    Connection { device, init, .. }: &Connection,
    config: Config,
) -> io::Result<Session<Adapter>> {
    let (ours, theirs) = sys::packet_pair()?;
    nix::unistd::write(&ours, init)?;
    let number = theirs.as_raw_fd();
    let session = Session::from_fd(adapter, theirs, SessionACL::All, config)?;
    let mut reply = [0; 512];
    let length = nix::unistd::read(&ours, &mut reply)?;
    // The kernel knows no such request any more, if a predecessor has answered it.
    match nix::unistd::write(device, reply.get(..length).unwrap_or_default()) {
        Ok(_) | Err(Errno::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    sys::replace(number, device)?;
    Ok(session)
}

/// Remaining steps of a takeover, before the first request is answered.
#[derive(Debug)]
pub(super) struct Takeover {
    device: OwnedFd,
    processes: Arc<Slots<24>>,
    pollers: Arc<Slots<8>>,
    /// Processes that the predecessor governed.
    before: Vec<ProcessRecord>,
    /// Poll handles of sleeping pollers.
    sleepers: Vec<[u8; 8]>,
}

impl Takeover {
    pub(super) fn new(connection: &Connection) -> io::Result<Self> {
        let (processes, pollers) = (connection.processes.clone(), connection.pollers.clone());
        Ok(Self {
            device: connection.device.try_clone()?,
            before: processes.inherit()?.into_iter().filter_map(entry).collect(),
            sleepers: pollers.inherit()?,
            processes,
            pollers,
        })
    }

    /// Waits for the processes, and has requests sent again.
    pub(super) fn finish(self, tree: &Tree, notifier: &Notifier) {
        for entry in wait_for(tree, &self.before) {
            self.processes.remove(record(entry));
        }
        if let Err(error) = nix::unistd::write(&self.device, RESEND.map(u32::to_ne_bytes).as_flattened()) {
            warn!("the kernel does not send unanswered requests again: {error}");
        }
        // They poll again and get the current state.
        for sleeper in self.sleepers {
            self.pollers.remove(sleeper);
            let woken = notifier.poll(PollHandle(u64::from_le_bytes(sleeper)));
            debug!(?woken, "woke a poller of the previous daemon");
        }
    }
}

/// Records which processes are governed, so that the next daemon waits for them.
#[derive(Debug)]
pub(super) struct Governed(pub(super) Arc<Slots<24>>);

/// One record: pid, entity, start time.
type ProcessRecord = (u32, u64, u64);

fn record((pid, entity, start_time): ProcessRecord) -> [u8; 24] {
    let mut record = [0; 24];
    let words = [u64::from(pid), entity, start_time];
    for (place, word) in record.as_chunks_mut().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    record
}

fn entry(record: [u8; 24]) -> Option<ProcessRecord> {
    let [pid, entity, start_time] = record.as_chunks().0 else {
        return None;
    };
    let pid = u32::try_from(u64::from_le_bytes(*pid)).ok()?;
    Some((pid, u64::from_le_bytes(*entity), u64::from_le_bytes(*start_time)))
}

impl Listener for Governed {
    fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Joined { id, pid, start_time } => self.0.put(record((*pid, id.0, *start_time))),
            Notice::Left { id, pid, start_time } => self.0.remove(record((*pid, id.0, *start_time))),
            _ => {}
        }
    }
}

/// Waits for the processes that the predecessor governed, while any of them registers within [`STILL`].
/// Returns those that do not register again.
fn wait_for(tree: &Tree, before: &[ProcessRecord]) -> Vec<ProcessRecord> {
    let deadline = Instant::now() + PATIENCE;
    let mut missing = before.to_vec();
    let mut gone = Vec::new();
    let (mut still, mut looked) = (Duration::ZERO, Instant::now());
    while !missing.is_empty() && Instant::now() < deadline && still < STILL {
        let nr_missing = missing.len();
        missing.retain(|entry| {
            let (pid, entity, start_time) = *entry;
            // One lookup: a process that registers between two would seem to be another.
            let is_over = match tree.find(pid) {
                Some(found) if found.0 == entity => return false,
                // It runs another program now, with another directory.
                Some(_) => true,
                None => !process::is_alive(pid, start_time),
            };
            if is_over {
                gone.push(*entry);
            }
            !is_over
        });
        if !missing.is_empty() {
            thread::sleep(PAUSE);
        }
        // A daemon that is held up itself has not let them register.
        let passed = looked.elapsed().min(PAUSE * 4);
        still = if missing.len() == nr_missing {
            still + passed
        } else {
            Duration::ZERO
        };
        looked = Instant::now();
    }
    gone.extend(missing);
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcgroupfs_model::tree::Settings;
    use gcgroupfs_model::tree::fixture::{World, blocks, identity};

    #[test]
    fn process_that_registers_during_wait_is_not_gone() {
        let me = std::process::id();
        let start_time = process::stat(me).unwrap().start_time;
        for _ in 0..200 {
            let world = World::new(1);
            let mut identity = identity(me);
            identity.start_time = start_time;
            let join = || world.tree.join(identity.clone(), blocks(), Settings::default());
            let id = join();
            let before = [(me, id.0, start_time)];
            assert!(wait_for(&world.tree, &before).is_empty(), "registered");
            world.tree.leave(id, 0);
            thread::scope(|scope| {
                let found = scope.spawn(|| wait_for(&world.tree, &before));
                assert_eq!(join(), id);
                assert_eq!(found.join().unwrap(), [], "registered again");
            });
            identity.image = Some((1, 1));
            let join = || world.tree.join(identity.clone(), blocks(), Settings::default());
            join();
            assert_eq!(wait_for(&world.tree, &before), before, "runs another program");
        }
    }

    #[test]
    fn process_that_does_not_return_is_given_up_before_the_longest_wait() {
        let world = World::new(1);
        let me = std::process::id();
        let before = [(me, 7, process::stat(me).unwrap().start_time)];
        let begun = Instant::now();
        assert_eq!(wait_for(&world.tree, &before), before);
        assert!(begun.elapsed() >= STILL);
    }

    #[test]
    fn dead_process_is_not_waited_for() {
        let world = World::new(1);
        // No process has this pid: kernel.pid_max is 2^22 at most.
        let before = [(u32::MAX, 7, 5)];
        assert_eq!(wait_for(&world.tree, &before), before);
    }

    #[test]
    fn entry_reads_back_its_record() {
        let one = (4711, 1 << 47, 123_456);
        assert_eq!(entry(record(one)), Some(one));
    }
}
