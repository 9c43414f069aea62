//! Resources: subsets of a device's multiprocessors for green contexts, and the descriptors created from
//! them.
//!
//! A resource is a structure in the program's memory. The driver's private fields in it are marked by a magic
//! number; a structure without it is not trusted.

use crate::abi::{CUcontext, CUdevice, CUerror, CUgreenCtx, CUresult, CUstream, In, Out};
use crate::call::{Call, driver};
use crate::error::{INVALID_RESOURCE_CONFIGURATION, INVALID_RESOURCE_TYPE, INVALID_VALUE};

/// `CU_DEV_RESOURCE_TYPE_INVALID` and `CU_DEV_RESOURCE_TYPE_SM`.
const NOTHING: u32 = 0;
const MULTIPROCESSORS: u32 = 1;
/// `CUdevSmResourceSplitByCount_flags`.
const IGNORE_COSCHEDULING: u32 = 1;
const SPLIT_FLAGS: u32 = 3;

const MAGIC: u32 = u32::from_le_bytes(*b"sim\x05");
/// Multiprocessors per group, and the minimum with the flag that ignores grouping.
const TOGETHER: u32 = 8;
const FEWEST: u32 = 2;

/// `CUdevResource`, since CUDA 12.4.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Resource {
    kind: u32,
    /// Private to the driver.
    magic: u32,
    device: CUdevice,
    /// The split that created it; 0: none.
    split: u32,
    internal: [u32; 20],
    count: u32,
    fewest: u32,
    together: u32,
    rest: [u32; 7],
    next: usize,
}

const _: () = assert!(size_of::<Resource>() == 144);

/// `CU_DEV_SM_RESOURCE_GROUP_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GroupParams {
    count: u32,
    together: u32,
    preferred: u32,
    flags: u32,
    rest: [u32; 12],
}

const _: () = assert!(size_of::<GroupParams>() == 64);

/// Resource descriptor from which a green context is created.
pub(crate) struct Description {
    pub(crate) device: CUdevice,
    pub(crate) count: u32,
}

impl Resource {
    pub(crate) fn of(device: CUdevice, count: u32) -> Resource {
        Resource {
            kind: if count == 0 { NOTHING } else { MULTIPROCESSORS },
            magic: MAGIC,
            device,
            split: 0,
            internal: [0; 20],
            count,
            fewest: TOGETHER,
            together: TOGETHER,
            rest: [0; 7],
            next: 0,
        }
    }

    /// Checks that this is a valid resource of multiprocessors.
    fn check(&self) -> CUresult {
        match (self.kind, self.magic) {
            (MULTIPROCESSORS, MAGIC) => Ok(()),
            (MULTIPROCESSORS, _) => Err(INVALID_VALUE),
            _ => Err(INVALID_RESOURCE_TYPE),
        }
    }

    /// Checks that it can be split.
    fn check_whole(&self) -> CUresult {
        self.check()?;
        match self.split {
            0 => Ok(()),
            _ => Err(INVALID_RESOURCE_CONFIGURATION),
        }
    }

    fn part(&self, split: u32, count: u32, together: u32) -> Resource {
        Resource {
            split,
            fewest: together,
            together,
            ..Resource::of(self.device, count)
        }
    }
}

/// Returns a unique number for a split.
fn next_split() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Relaxed)
}

fn give(out: Out<Resource>, kind: u32, find: impl FnOnce() -> Result<Resource, CUerror>) -> CUresult {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let found = find()?;
    if kind != MULTIPROCESSORS {
        return Err(INVALID_RESOURCE_TYPE);
    }
    out.set(found)
}

fn of_device(call: Call, device: CUdevice) -> Result<Resource, CUerror> {
    Ok(Resource::of(
        device,
        call.process.on_machine(device)?.multiprocessors(),
    ))
}

fn of_context(call: Call, context: CUcontext) -> Result<Resource, CUerror> {
    match crate::green::of_context(call, context) {
        Some(green) => Ok(Resource::of(green.device, green.count)),
        None => of_device(call, call.context_of(context)?.device),
    }
}

fn split_by_count(
    parts: Out<Resource>,
    number: Out<u32>,
    whole: In<Resource>,
    remainder: Out<Resource>,
    flags: u32,
    least: u32,
) -> CUresult {
    let (wanted, whole) = (number.get()?, whole.get()?);
    whole.check_whole()?;
    if flags & !SPLIT_FLAGS != 0 || least > whole.count {
        return Err(INVALID_VALUE);
    }
    let together = if flags & IGNORE_COSCHEDULING != 0 {
        FEWEST
    } else {
        TOGETHER
    };
    let each = least.max(1).next_multiple_of(together);
    let most = whole.count / each;
    let made = if parts.is_null() { most } else { wanted.min(most) };
    if made == 0 {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let split = next_split();
    for index in 0..made {
        parts.set_at(index as usize, whole.part(split, each, together));
    }
    remainder.set_if(whole.part(split, whole.count - made * each, 1));
    number.set(made)
}

/// Splits off groups of the requested sizes; without a size, of the remainder.
fn split(
    parts: Out<Resource>,
    number: u32,
    whole: In<Resource>,
    remainder: Out<Resource>,
    flags: u32,
    wishes: Out<GroupParams>,
) -> CUresult {
    let whole = whole.get()?;
    whole.check_whole()?;
    if flags != 0 || number == 0 || wishes.is_null() {
        return Err(INVALID_VALUE);
    }
    let (split, mut left) = (next_split(), whole.count);
    let mut groups = Vec::new();
    for wish in wishes.as_in().list(number as usize)? {
        let together = if wish.together == 0 {
            TOGETHER
        } else {
            wish.together
        };
        let count = if wish.count == 0 {
            left / together * together
        } else {
            wish.count
        };
        if count == 0 || count > left || !count.is_multiple_of(together) {
            return Err(INVALID_RESOURCE_CONFIGURATION);
        }
        left -= count;
        groups.push((count, together, wish));
    }
    for (index, (count, together, wish)) in groups.into_iter().enumerate() {
        parts.set_at(index, whole.part(split, count, together));
        wishes.set_at(index, GroupParams { count, ..wish });
    }
    remainder.set_if(whole.part(split, left, 1));
    Ok(())
}

fn describe(call: Call, out: Out<usize>, resources: In<Resource>, number: u32) -> CUresult {
    if out.is_null() || number == 0 {
        return Err(INVALID_VALUE);
    }
    let resources = resources.list(number as usize)?;
    resources.iter().try_for_each(Resource::check)?;
    let (first, all) = (resources[0], &resources);
    let is_alike = |other: &Resource| {
        other.device == first.device && other.split == first.split && other.together == first.together
    };
    if !all.iter().all(is_alike) || number > 1 && first.split == 0 {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    out.set(call.process.resources.insert(Description {
        device: first.device,
        count: all.iter().map(|resource| resource.count).sum(),
    }))
}

driver! {
    fn cuDeviceGetDevResource(device: CUdevice, resource: Out<Resource>, kind: u32) |call| {
        give(resource, kind, || of_device(call, device))
    }
    fn cuCtxGetDevResource(context: CUcontext, resource: Out<Resource>, kind: u32) |call| {
        give(resource, kind, || of_context(call, context))
    }
    fn cuGreenCtxGetDevResource(green: CUgreenCtx, resource: Out<Resource>, kind: u32) |call| {
        give(resource, kind, || {
            let green = call.green(green)?;
            Ok(Resource::of(green.device, green.count))
        })
    }
    fn cuStreamGetDevResource(stream: CUstream, resource: Out<Resource>, kind: u32) twin cuStreamGetDevResource_ptsz |call| {
        give(resource, kind, || of_context(call, call.stream(stream)?.context))
    }
    fn cuDevSmResourceSplitByCount(
        parts: Out<Resource>, number: Out<u32>, whole: In<Resource>, remainder: Out<Resource>, flags: u32, least: u32,
    ) |_| {
        split_by_count(parts, number, whole, remainder, flags, least)
    }
    fn cuDevSmResourceSplit(
        parts: Out<Resource>, number: u32, whole: In<Resource>, remainder: Out<Resource>, flags: u32,
        wishes: Out<GroupParams>,
    ) |_| {
        split(parts, number, whole, remainder, flags, wishes)
    }
    fn cuDevResourceGenerateDesc(description: Out<usize>, resources: In<Resource>, number: u32) |call| {
        describe(call, description, resources, number)
    }
}
