//! What kinds of memory a process holds, for those who want to know the truth about it.

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// What contexts cost.
    Context,
    /// `cuMemAlloc` and the like.
    Linear,
    /// `cuMemAllocManaged`.
    Managed,
    /// Arrays and mipmapped arrays.
    Array,
    /// What pools reserve.
    Pool,
    /// What graphs reserve.
    Graph,
    /// `cuMemCreate` on a device.
    Physical,
    /// Page-locked host memory of the driver's.
    HostPinned,
    /// What pools reserve on the host.
    HostPool,
    /// `cuMemCreate` on the host.
    HostPhysical,
}

impl Held {
    /// All kinds, those of device memory first.
    pub const ALL: [Held; 10] = [
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
    ];

    /// How many kinds of device memory there are.
    pub(crate) const ON_DEVICE: usize = Held::Physical as usize + 1;
    /// How many kinds of host memory there are.
    pub(crate) const ON_HOST: usize = Held::ALL.len() - Held::ON_DEVICE;

    /// Whether it is device memory.
    pub fn is_on_device(self) -> bool {
        (self as usize) < Held::ON_DEVICE
    }

    /// Its place among the kinds of its memory.
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
