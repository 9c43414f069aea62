//! Measurement of device memory that processes hold beyond their own ledgers: contexts, modules, and what the
//! driver keeps for them. No driver call reports it. The same samples show whether processes use the devices
//! as they claim (`evidence`).
//!
//! The hook charges before it calls the driver and uncharges after the driver has freed, so a ledger never
//! has less than the device. A sample counts only if the ledger did not change while it was taken: then no
//! allocation was under way. Otherwise the last result stays in force. A sample can show too little while the
//! driver has not yet made what is charged, so the greater of the last two samples is charged.

mod device_search;
mod evidence;
mod memory_claims;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use self::device_search::DeviceSearch;
use self::samples::Samples;
use gcgroupfs_model::tree::{Device, Listener, Notice, Sight, Tree};

/// Time between samples of all processes, while there are any.
const PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between two samples, and the time to the next one while a process hurries it.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between looks at a device while a process waits for room there.
const PRESSED_PAUSE: Duration = Duration::from_millis(10);

/// Bytes by pid (as the daemon sees pids) on one device; `None` for a process whose bytes are not known.
type Held = HashMap<u32, Option<u64>>;

/// An observer of the devices: NVML.
pub trait Source: Send {
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

    /// Returns the free bytes of a device; `None` if the device cannot be asked.
    fn free(&self, _device: usize) -> Option<u64> {
        None
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
pub fn watch(tree: Arc<Tree>, mut source: impl Source + 'static) -> io::Result<()> {
    let (sender, receiver) = sync_channel(1);
    tree.listen(Arc::new(Ear(sender)));
    thread::Builder::new()
        .name("overhead".to_owned())
        .spawn(move || run(&tree, &mut source, &receiver))?;
    Ok(())
}

/// Wakes the thread when there may be something new to measure: a new context, a process that registered with
/// contexts, or a reader that asked for an audit.
#[derive(Debug)]
struct Ear(SyncSender<()>);

impl Listener for Ear {
    fn notice(&self, notice: &Notice) {
        if matches!(
            notice,
            Notice::Joined { .. } | Notice::Rung(_) | Notice::AuditAsked | Notice::DevicesAsked
        ) {
            // Full: the thread is about to look anyway.
            let _ = self.0.try_send(());
        }
    }
}

fn run(tree: &Tree, source: &mut impl Source, woken: &Receiver<()>) {
    let mut samples = Samples::default();
    let mut search = DeviceSearch::default();
    loop {
        search.run(tree, source);
        let next = samples.take(tree, source);
        if rest(tree, source) {
            continue;
        }
        // The other end lasts as long as the tree.
        match next {
            None => {
                let _ = woken.recv();
            }
            Some(next) => {
                let _ = woken.recv_timeout(next);
            }
        }
        relieve(tree, source);
    }
}

/// Waits [`PAUSE`], or up to [`PERIOD`] while processes wait for room on a device. Returns whether one still
/// waits.
fn rest(tree: &Tree, source: &impl Source) -> bool {
    let began = Instant::now();
    while relieve(tree, source) {
        if began.elapsed() >= PERIOD {
            return true;
        }
        thread::sleep(PRESSED_PAUSE);
    }
    thread::sleep(PAUSE.saturating_sub(began.elapsed()));
    false
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
