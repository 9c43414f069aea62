//! Watches for XID errors: the driver's reports that a GPU, or a program on it, has failed. Those that follow
//! from a program's own fault are logged only. Any other is shown in `devices.stat` until the daemon ends,
//! because no event tells that the GPU works again.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gcgroupfs_model::tree::Tree;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device as Handle, EventSet, Nvml};
use tracing::{debug, info, warn};

/// Errors of programs, which do not mean that the GPU is broken: exception of the graphics engine, page fault
/// of GPU memory, GPU stopped processing, preemptive cleanup, exception of the video processor, timeout of a
/// context switch. NVIDIA's device plugin ignores the same ones.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// The GPU has fallen off the bus.
const OFF_THE_BUS: u64 = 79;

/// Number of an error that NVML does not know.
const UNKNOWN: u64 = 999;

/// Time in which each GPU is waited for once.
const PERIOD: Duration = Duration::from_secs(1);

/// Time for which an error of programs is not logged again: a program can cause them at will.
const QUIET: Duration = Duration::from_secs(60);

/// A GPU with a set of its own, so that an event's GPU is known also when it answers no question any more.
struct Watched<'nvml> {
    /// Address, as in [`gcgroupfs_model::tree::Device::pci`].
    pci: String,
    events: EventSet<'nvml>,
    /// Errors of programs, and when each was logged last.
    logged: BTreeMap<u64, Instant>,
}

impl Watched<'_> {
    fn note(&mut self, tree: &Tree, xid: u64) {
        let pci = &self.pci;
        if !OF_PROGRAMS.contains(&xid) {
            warn!("GPU {pci} reports XID error {xid}");
            tree.set_critical_xid(pci, Some(xid));
        } else if self.logged.get(&xid).is_none_or(|when| when.elapsed() >= QUIET) {
            info!("GPU {pci} reports XID error {xid}, of a program");
            self.logged.insert(xid, Instant::now());
        }
    }
}

/// Starts the thread that watches. It ends if no GPU reports errors.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn watch(tree: Arc<Tree>) -> io::Result<()> {
    let watch = move || match Nvml::init() {
        Ok(nvml) => run(&tree, all(&nvml)),
        Err(error) => warn!("XID errors are not watched: {error}"),
    };
    thread::Builder::new().name("xid".to_owned()).spawn(watch)?;
    Ok(())
}

/// Returns the GPUs that report errors.
fn all(nvml: &Nvml) -> Vec<Watched<'_>> {
    let gpus = (0..nvml.device_count().unwrap_or(0)).filter_map(|index| {
        let watched = nvml.device_by_index(index).and_then(|gpu| watched(nvml, &gpu));
        watched
            .inspect_err(|error| debug!("GPU {index} does not report XID errors: {error}"))
            .ok()
    });
    gpus.collect()
}

fn watched<'nvml>(nvml: &'nvml Nvml, gpu: &Handle<'nvml>) -> Result<Watched<'nvml>, NvmlError> {
    let kind = EventTypes::CRITICAL_XID_ERROR;
    if !gpu.supported_event_types()?.contains(kind) {
        return Err(NvmlError::NotSupported);
    }
    let events = gpu.register_events(kind, nvml.create_event_set()?);
    Ok(Watched {
        pci: gpu.pci_info()?.bus_id,
        events: events.map_err(|error| error.error)?,
        logged: BTreeMap::new(),
    })
}

fn run(tree: &Tree, mut gpus: Vec<Watched<'_>>) {
    for gpu in &gpus {
        tree.set_critical_xid(&gpu.pci, Some(0));
    }
    while !gpus.is_empty() {
        let parts = u128::try_from(gpus.len()).unwrap_or(1);
        let patience = u32::try_from((PERIOD.as_millis() / parts).max(1)).unwrap_or(1);
        gpus.retain_mut(|gpu| match gpu.events.wait(patience) {
            Ok(event) => {
                match event.event_data {
                    Some(XidError::Value(xid)) => gpu.note(tree, xid),
                    Some(XidError::Unknown) => gpu.note(tree, UNKNOWN),
                    None => {}
                }
                true
            }
            Err(NvmlError::Timeout) => true,
            Err(NvmlError::GpuLost) => {
                gpu.note(tree, OFF_THE_BUS);
                false
            }
            Err(error) => {
                warn!("GPU {} does not report XID errors any more: {error}", gpu.pci);
                tree.set_critical_xid(&gpu.pci, None);
                false
            }
        });
    }
}
