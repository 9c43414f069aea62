//! Where host memory can be made that a device can use.
//!
//! A driver may refuse the memory of a NUMA node, for a process or for good, with any error: in containers
//! without `CAP_SYS_NICE`, on nodes without processors, in virtual machines. So each location is tried with
//! one small piece before it is used, and left for the next one when it fails although the host has memory.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use gcgroup_abi::MAX_DEVICES;
use gcgroup_abi::environment::GCGROUP_NODES;
use parking_lot::Mutex;

use super::LEAST;
use super::Swap;
use super::block::{Failed, Goal};
use super::physical::Memory;
use super::probe::{Useless, probe};
use crate::driver;
use crate::driver::cuda::{
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA, CUdevice,
    CUerror, CUmemLocation,
};
use crate::shared::device::LocalDevice;
use crate::sys::{self, log};

/// CUDA version of the first driver that maps host memory for devices.
const MAPS_HOST: i32 = 12_050;
/// CUDA version of R595. Older drivers may crash where not all nodes have processors and memory.
const ALL_NODES: i32 = 13_020;
/// Failed attempts to make memory at a location, although the host had it, after which it is left.
const STRIKES: u32 = 3;
/// How long host memory is not tried after every location has failed for lack of memory: a container may be
/// at its limit for a while, though the host has free memory.
const RETRY: Duration = Duration::from_secs(60);
/// Most nodes that are tried.
const MOST: usize = 64;

/// Locations of each device's host memory.
#[derive(Debug)]
pub(super) struct Locations {
    nodes: PathBuf,
    devices: [OfDevice; MAX_DEVICES],
}

#[derive(Debug, Default)]
struct OfDevice {
    /// In the order in which they are tried.
    list: OnceLock<Vec<CUmemLocation>>,
    /// Position in the list of the location in use; those before it have failed.
    at: AtomicUsize,
    /// Number of locations that have been tried with a small piece.
    probed: AtomicUsize,
    strikes: AtomicU32,
    /// Whether memory has been made at any location.
    has_worked: AtomicBool,
    /// Whether a location has failed with an error other than `CUDA_ERROR_OUT_OF_MEMORY`.
    has_other_error: AtomicBool,
    /// When every location had failed for lack of memory.
    refused: Mutex<Option<Instant>>,
    /// Number of locations of which the log says that they have failed.
    told: AtomicUsize,
}

impl Locations {
    pub(super) fn new() -> Self {
        let named = sys::path(&GCGROUP_NODES);
        Self {
            nodes: named.map_or_else(|| "/sys/devices/system/node".into(), PathBuf::from),
            devices: std::array::from_fn(|_| OfDevice::default()),
        }
    }
}

impl Swap {
    /// Makes host memory for a device. Other host memory of at least the same size is claimed or free.
    ///
    /// # Errors
    /// * [`Failed::Refused`]: no location can be used.
    /// * [`Failed::NoRoom`] and [`Failed::Driver`]: this attempt failed.
    pub(super) fn new_host_memory(&self, local: LocalDevice, size: u64) -> Result<Memory, Failed> {
        let device = local.device();
        let known = self.locations.devices.get(usize::from(local.number()));
        let known = known.ok_or(Failed::Driver)?;
        let list = match known.list.get() {
            Some(list) => list,
            None => {
                let list = candidates(&self.locations.nodes, device).map_err(|_| Failed::Driver)?;
                known.list.get_or_init(|| list)
            }
        };
        loop {
            let at = known.at.load(Relaxed);
            let Some(&location) = list.get(at) else {
                match known.begin_again() {
                    true => continue,
                    false => return Err(known.end_of_list()),
                }
            };
            let error = match known.make(at, location, device, size) {
                Ok(memory) => {
                    self.is_host_refused.store(false, Relaxed);
                    return Ok(memory);
                }
                Err(Useless::Stuck) => {
                    known.has_worked.store(false, Relaxed);
                    known.has_other_error.store(true, Relaxed);
                    known.at.store(list.len(), Relaxed);
                    return Err(self.lose_piece(local));
                }
                Err(Useless::Refused(error)) => error,
            };
            if self.host.room() < size {
                return Err(Failed::NoRoom);
            }
            if !known.is_useless(at, location, device) {
                return Err(Failed::of(error, Goal::Device));
            }
            if error != CUerror::OUT_OF_MEMORY {
                known.has_other_error.store(true, Relaxed);
            }
            if known.at.compare_exchange(at, at + 1, Relaxed, Relaxed).is_ok() {
                known.strikes.store(0, Relaxed);
                if known.told.fetch_max(at + 1, Relaxed) <= at {
                    tell(device, location, error, list.get(at + 1));
                }
            }
        }
    }
}

impl Swap {
    /// Returns whether every location has failed, for good or for a while.
    pub(super) fn is_host_refused(&self) -> bool {
        if !self.is_host_refused.load(Relaxed) {
            return false;
        }
        let begin = |begun, device: &OfDevice| device.begin_again() | begun;
        let has_begun = self.locations.devices.iter().fold(false, begin);
        if has_begun {
            self.is_host_refused.store(false, Relaxed);
        }
        !has_begun
    }

    /// Charges a piece that the driver does not unmap, which belongs to no block.
    fn lose_piece(&self, local: LocalDevice) -> Failed {
        let index = self.session.devices.index(local);
        self.charge_swap(index, LEAST);
        Failed::Stuck
    }
}

impl OfDevice {
    /// Makes memory at a location, after a small piece if it is the first there.
    fn make(
        &self,
        at: usize,
        location: CUmemLocation,
        device: CUdevice,
        size: u64,
    ) -> Result<Memory, Useless> {
        if self.probed.load(Relaxed) <= at {
            // Once more, since a single failure may have another reason.
            let probe = || probe(location, device, false);
            probe().or_else(|useless| match useless {
                Useless::Refused(_) => probe(),
                Useless::Stuck => Err(useless),
            })?;
            self.probed.fetch_max(at + 1, Relaxed);
        }
        let made = Memory::new(location, size, false)?;
        self.strikes.store(0, Relaxed);
        self.has_worked.store(true, Relaxed);
        Ok(made)
    }

    /// Returns why no memory is made when every location has failed. If one has worked, the memory that the
    /// process may have is used up: the next attempt begins with the first location.
    fn end_of_list(&self) -> Failed {
        if !self.has_worked.load(Relaxed) {
            // A driver that maps no host memory has no locations.
            if self.at.load(Relaxed) > 0 && !self.has_other_error.load(Relaxed) {
                self.refused.lock().get_or_insert_with(Instant::now);
            }
            return Failed::Refused;
        }
        self.start_over();
        Failed::NoRoom
    }

    /// Starts with the first location again if it is time to. Returns whether it is.
    fn begin_again(&self) -> bool {
        let mut refused = self.refused.lock();
        let is_due = refused.is_some_and(|since| since.elapsed() >= RETRY);
        if is_due {
            *refused = None;
            self.start_over();
        }
        is_due
    }

    fn start_over(&self) {
        self.probed.store(0, Relaxed);
        self.at.store(0, Relaxed);
    }

    /// Returns whether a location that has just failed is to be left.
    fn is_useless(&self, at: usize, location: CUmemLocation, device: CUdevice) -> bool {
        let was_usable = self.probed.load(Relaxed) > at;
        !was_usable
            || self.strikes.fetch_add(1, Relaxed) + 1 >= STRIKES
            || probe(location, device, false).is_err()
    }
}

/// Logs that a location is left. Happens once for each.
fn tell(device: CUdevice, location: CUmemLocation, error: CUerror, next: Option<&CUmemLocation>) {
    log::line(|| {
        let next = match next {
            Some(next) => format!("next is {}", name(*next)),
            None => "memory can move only while the program is frozen".to_owned(),
        };
        let code = error.0;
        format!(
            "host memory of {} cannot be used on device {device}: error {code}; {next}",
            name(location)
        )
    });
}

fn name(location: CUmemLocation) -> String {
    match location.kind {
        CU_MEM_LOCATION_TYPE_HOST_NUMA => format!("node {}", location.id),
        _ => "any node".to_owned(),
    }
}

/// Returns the locations to try: the device's own node, other nodes with memory and
/// processors, any node.
fn candidates(nodes: &Path, device: CUdevice) -> Result<Vec<CUmemLocation>, CUerror> {
    let mut version = 0;
    driver::cuDriverGetVersion(&mut version)?;
    if version < MAPS_HOST {
        log::line(|| {
            format!("the driver is older than CUDA 12.5 ({version}): memory moves only while frozen")
        });
        return Ok(Vec::new());
    }
    let mut own = -1;
    driver::cuDeviceGetAttribute(&mut own, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device)?;
    let plain = CUmemLocation {
        kind: CU_MEM_LOCATION_TYPE_HOST,
        id: 0,
    };
    let own = (own >= 0).then_some(own);
    let nodes = Nodes::read(nodes);
    let numa = match version >= ALL_NODES || nodes.are_alike() {
        true => nodes.in_order(own),
        false => {
            log::line(|| {
                "NUMA nodes are not tried for host memory: drivers before R595 may crash where a node has no \
                 processors or no memory"
                    .to_owned()
            });
            Vec::new()
        }
    };
    let at_node = |id| CUmemLocation {
        kind: CU_MEM_LOCATION_TYPE_HOST_NUMA,
        id,
    };
    Ok(numa.into_iter().map(at_node).chain([plain]).collect())
}

/// NUMA nodes of the host; empty lists where the host does not tell.
#[derive(Debug, Default, PartialEq, Eq)]
struct Nodes {
    online: Vec<i32>,
    with_memory: Vec<i32>,
    with_processors: Vec<i32>,
}

impl Nodes {
    fn read(directory: &Path) -> Self {
        let list = |file: &str| {
            let text = std::fs::read_to_string(directory.join(file));
            text.map_or(Vec::new(), |text| numbers(&text))
        };
        Self {
            online: list("online"),
            with_memory: list("has_memory"),
            with_processors: list("has_cpu"),
        }
    }

    /// Returns whether each node has processors and memory.
    fn are_alike(&self) -> bool {
        self.online == self.with_memory && self.online == self.with_processors
    }

    /// Returns the device's own node, then the other nodes with memory and processors. A node without
    /// processors may be the memory of a GPU (Grace Hopper), of this one or of another.
    fn in_order(&self, own: Option<i32>) -> Vec<i32> {
        let is_host = |node: &i32| self.with_processors.is_empty() || self.with_processors.contains(node);
        let others = self.with_memory.iter().copied().filter(is_host);
        let own_or_first = own.or_else(|| self.with_memory.is_empty().then_some(0));
        let others = others.filter(|node| Some(*node) != own_or_first);
        own_or_first.into_iter().chain(others).take(MOST).collect()
    }
}

/// Parses a list of the kernel, such as `0-2,5`. Returns at most [`MOST`] numbers.
fn numbers(text: &str) -> Vec<i32> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<i32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_lists_are_parsed() {
        assert_eq!(numbers("0\n"), [0]);
        assert_eq!(numbers("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(numbers("0-2147483647").len(), MOST);
        for text in ["", "\n", "x", "3-", "-1"] {
            assert_eq!(numbers(text), [], "{text}");
        }
    }

    #[test]
    fn lack_of_memory_is_no_refusal_for_good() {
        let device = OfDevice::default();
        device.at.store(2, Relaxed);
        assert_eq!(device.end_of_list(), Failed::Refused);
        assert!(!device.begin_again(), "too early");
        *device.refused.lock().as_mut().unwrap() -= RETRY;
        assert!(device.begin_again());
        assert_eq!(device.at.load(Relaxed), 0);
        assert!(!device.begin_again(), "once");
        device.has_other_error.store(true, Relaxed);
        assert_eq!(device.end_of_list(), Failed::Refused);
        assert!(device.refused.lock().is_none(), "it is for good");
    }

    #[test]
    fn own_node_is_first() {
        let nodes = |memory: &[i32]| Nodes {
            online: vec![0, 1],
            with_memory: memory.to_vec(),
            with_processors: vec![0, 1],
        };
        assert_eq!(nodes(&[0, 1]).in_order(Some(1)), [1, 0]);
        assert_eq!(nodes(&[0, 1]).in_order(None), [0, 1]);
        assert_eq!(nodes(&[]).in_order(None), [0]);
        assert_eq!(nodes(&[0]).in_order(Some(1)), [1, 0]);
        // The memory of GPUs.
        assert_eq!(nodes(&[0, 1, 2, 10]).in_order(Some(1)), [1, 0]);
        assert_eq!(nodes(&[0, 1, 2, 10]).in_order(Some(2)), [2, 0, 1]);
        let unknown = Nodes {
            with_processors: Vec::new(),
            ..nodes(&[0, 1])
        };
        assert_eq!(unknown.in_order(None), [0, 1]);
        assert!(nodes(&[0, 1]).are_alike());
        assert!(!nodes(&[0]).are_alike());
        assert!(Nodes::default().are_alike(), "a host without NUMA");
    }
}
