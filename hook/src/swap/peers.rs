//! Devices that may use the memory of another one, because the program has enabled that
//! (`cuCtxEnablePeerAccess`). It holds for all memory of `cuMemAlloc`, of past and future; for mapped memory
//! access is given to each range, which takes time for each device.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gcgroup_abi::MAX_DEVICES;

use super::Swap;
use super::allocation::Allocation;
use super::physical::Access;
use crate::shared::device::LocalDevice;

/// The peers of each device, a bit for each.
#[derive(Debug)]
pub(super) struct Peers([AtomicU64; MAX_DEVICES]);

impl Peers {
    pub(super) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_DEVICES])
    }

    pub(super) fn of(&self, local: LocalDevice) -> u64 {
        let peers = self.0.get(usize::from(local.number()));
        peers.map_or(0, |peers| peers.load(Relaxed))
    }
}

impl Swap {
    /// Lets `peer` use the memory of a device from now on.
    pub(crate) fn enable_peer(&self, local: LocalDevice, peer: LocalDevice) {
        let Some(peers) = self.peers.0.get(usize::from(local.number())) else {
            return;
        };
        let bit = 1 << peer.number();
        if local == peer || peers.fetch_or(bit, Relaxed) & bit != 0 {
            return;
        }
        // A block that is mapped anew meanwhile has the peer already.
        for block in self.all().iter().filter(|block| block.local == local) {
            block.allow(peer);
        }
    }

    /// Gives access to the peers that were enabled while the allocation was made with `access`. Called once
    /// the allocation is entered: [`Self::enable_peer`] finds it from then on.
    pub(super) fn allow_new_peers(&self, allocation: &Allocation, access: Access) {
        let now = self.access(allocation.local);
        for peer in now.peers_since(access).filter_map(LocalDevice::of) {
            allocation.blocks().for_each(|block| block.allow(peer));
        }
    }
}

const _: () = assert!(MAX_DEVICES <= u64::BITS as usize);
