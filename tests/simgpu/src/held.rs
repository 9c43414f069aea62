//! Kinds of memory that a process holds, for ground truth.

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Memory of contexts.
    Context,
    /// Linear memory: `cuMemAlloc` and similar calls.
    Linear,
    /// `cuMemAllocManaged`.
    Managed,
    /// Arrays and mipmapped arrays.
    Array,
    /// Memory reserved by pools.
    Pool,
    /// Memory reserved by graphs.
    Graph,
    /// `cuMemCreate` on a device.
    Physical,
    /// Page-locked host memory allocated by the driver.
    HostPinned,
    /// Host memory reserved by pools.
    HostPool,
    /// `cuMemCreate` on the host.
    HostPhysical,
    /// Device memory that a checkpoint has moved.
    HostCheckpoint,
}

impl Held {
    /// All kinds, device memory first.
    pub const ALL: [Held; 11] = [
        Held::Context,
        Held::Linear,
        Held::Managed,
        Held::Array,
        Held::Pool,
        Held::Graph,
        Held::Physical,
        Held::HostPinned,
        Held::HostPool,
        Held::HostPhysical,
        Held::HostCheckpoint,
    ];

    /// Number of kinds of device memory.
    pub(crate) const ON_DEVICE: usize = Held::Physical as usize + 1;
    /// Number of kinds of host memory.
    pub(crate) const ON_HOST: usize = Held::ALL.len() - Held::ON_DEVICE;

    /// Returns whether it is device memory.
    pub fn is_on_device(self) -> bool {
        (self as usize) < Held::ON_DEVICE
    }

    /// Returns the index among the kinds of device or of host memory.
    pub(crate) fn index(self) -> usize {
        let index = self as usize;
        index.checked_sub(Held::ON_DEVICE).unwrap_or(index)
    }
}

const _: () = {
    let mut index = 0;
    while index < Held::ALL.len() {
        assert!(Held::ALL[index] as usize == index);
        index += 1;
    }
};
