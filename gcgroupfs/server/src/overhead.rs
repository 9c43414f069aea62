//! Measurement of device memory that processes hold beyond their own ledgers: contexts, modules, and what the
//! driver keeps for them. No driver call reports it. The same samples show whether processes use the devices
//! as they claim (`evidence`).
//!
//! The hook charges before it calls the driver and uncharges after the driver has freed, so a ledger never
//! has less than the device. A sample counts only if the ledger did not change while it was taken: then no
//! allocation was under way. Otherwise the last result stays in force. A sample can show too little while the
//! driver has not yet made what is charged, so the greater of the last two samples is charged.

mod device_search;
mod estimate;
mod evidence;
mod memory_claims;
mod samples;
#[cfg(test)]
mod tests;
mod unowned;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use self::device_search::DeviceSearch;
use self::samples::Samples;
use gcgroupfs_model::tree::{Blocks, Device, DeviceSample, Listener, Notice, ProcessId, Sight, Tree};

/// Time between samples of all processes, while there are any.
const PERIOD: Duration = Duration::from_secs(1);
/// Time between looks for processes without a hook, while there are no others.
const AUDIT_PERIOD: Duration = Duration::from_secs(10);
/// Shortest time between two samples, and the time to the next one while a process hurries it.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between looks at a device while a process waits for room there.
const PRESSED_PAUSE: Duration = Duration::from_millis(10);

/// Time between two looks at a device for new contexts.
const CONTEXT_PAUSE: Duration = Duration::from_millis(5);

/// Bytes by pid (as the daemon sees pids) on one device; `None` for a process whose bytes are not known.
type Held = HashMap<u32, Option<u64>>;

/// A governed process: its number, its pid and its shared blocks.
type Governed = (ProcessId, u32, Arc<dyn Blocks>);

/// An observer of the devices: NVML.
pub(crate) trait Source: Send {
    /// Returns what each process holds on a device; `None` if the device cannot be asked, or its answer
    /// cannot be trusted.
    fn held(&self, device: usize) -> Option<Held>;

    /// Tells whether `held` lists either all processes on a device or none.
    fn sees_everybody(&self) -> bool {
        false
    }

    /// Returns the pids of the processes that have worked on a device within the last `_since`; `None` if the
    /// device does not say.
    fn active(&self, _device: usize, _since: Duration) -> Option<HashSet<u32>> {
        None
    }

    /// Returns the bytes of a device that are in use; `None` if the device cannot be asked.
    fn used(&self, _device: usize) -> Option<u64> {
        None
    }

    /// Returns the free bytes of a device; `None` if the device cannot be asked.
    fn free(&self, _device: usize) -> Option<u64> {
        None
    }

    /// Returns what the device reports about itself.
    fn sample(&self, _device: usize) -> DeviceSample {
        DeviceSample::default()
    }

    /// Returns the devices that have appeared since the last call, in the order of their numbers.
    fn new_devices(&mut self) -> Vec<Device> {
        Vec::new()
    }
}

/// Starts the thread that measures. It lasts as long as the daemon.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn watch(tree: Arc<Tree>, mut source: impl Source + 'static) -> io::Result<()> {
    let (sender, receiver) = sync_channel(1);
    let (asker, asked) = sync_channel(1);
    tree.listen(Arc::new(Ear {
        woken: sender,
        asked: asker,
    }));
    thread::Builder::new()
        .name("overhead".to_owned())
        .spawn(move || {
            let ears = Ears {
                woken: receiver,
                asked,
            };
            run(&tree, &mut source, &ears);
        })?;
    Ok(())
}

/// Wakes the thread when there may be something new to measure: a new context, a process that registered with
/// contexts, one that has ended and whose memory others may hold, or a reader that asked for an audit.
#[derive(Debug)]
struct Ear {
    woken: SyncSender<()>,
    /// Sent to if a process requests the measurement of contexts; so is `woken`.
    asked: SyncSender<()>,
}

/// The receiving ends of [`Ear`]. The other ends last as long as the tree.
#[derive(Debug)]
struct Ears {
    woken: Receiver<()>,
    asked: Receiver<()>,
}

impl Listener for Ear {
    fn notice(&self, notice: &Notice) {
        if matches!(
            notice,
            Notice::Joined { .. }
                | Notice::Left { .. }
                | Notice::Rung(_)
                | Notice::AuditAsked
                | Notice::DevicesAsked
                | Notice::ContextMade
        ) {
            // Full: the thread is about to look anyway.
            let _ = self.woken.try_send(());
        }
        if matches!(notice, Notice::ContextMade) {
            let _ = self.asked.try_send(());
        }
    }
}

fn run(tree: &Tree, source: &mut impl Source, ears: &Ears) {
    let mut samples = Samples::default();
    let mut search = DeviceSearch::default();
    loop {
        search.run(tree, source);
        let next = samples.take(tree, source);
        if rest(tree, source, (&mut samples, &ears.asked)) {
            continue;
        }
        let _ = ears.woken.recv_timeout(next);
        samples.measure_contexts(tree, source);
        relieve(tree, source);
    }
}

/// Waits [`PAUSE`], or up to [`PERIOD`] while processes wait for room on a device, and measures new contexts
/// meanwhile. Returns whether a process still waits for room, or for its contexts to be measured.
fn rest(tree: &Tree, source: &impl Source, (samples, asked): (&mut Samples, &Receiver<()>)) -> bool {
    let began = Instant::now();
    loop {
        let is_pressed = relieve(tree, source);
        let is_asked = samples.measure_contexts(tree, source);
        let left = if is_pressed { PERIOD } else { PAUSE }.saturating_sub(began.elapsed());
        if left.is_zero() {
            return is_pressed || is_asked;
        }
        let pause = match (is_asked, is_pressed) {
            (true, _) => CONTEXT_PAUSE,
            (false, true) => PRESSED_PAUSE,
            (false, false) => PAUSE,
        };
        if asked.recv_timeout(pause.min(left)).is_ok() {
            thread::sleep(CONTEXT_PAUSE);
        }
    }
}

/// Serves the requests for room by what the devices report now. Returns whether there were any.
fn relieve(tree: &Tree, source: &impl Source) -> bool {
    let devices = tree.pressed_devices();
    for device in &devices {
        let sight = Sight {
            device: *device,
            at: Instant::now(),
            free: source.free(*device),
            held: source.held(*device),
        };
        tree.relieve(&sight);
    }
    !devices.is_empty()
}
