//! Physical memory shared between processes by descriptors.

use std::os::fd::IntoRawFd;
use std::sync::Arc;

use simgpu::memory::{HOST, PhysicalOwner};
use simgpu::{Export, Held, Member, Tag};

use crate::abi::{CUmemGenericAllocationHandle, CUresult, Out, Raw};
use crate::call::{Call, driver};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::physical;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, the only supported handle type.
pub(crate) const POSIX_FILE_DESCRIPTOR: u32 = 1;

/// The charge of physical memory, dropped on its release.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) member: &'static Member,
    /// Device index on the machine, or [`HOST`].
    pub(crate) device: usize,
    /// Accounting kind; `None`: charged to another process.
    pub(crate) kind: Option<Held>,
    /// The export, if the memory can be shared.
    pub(crate) export: Option<Arc<Export>>,
}

impl PhysicalOwner for Charge {
    fn released(&self, size: u64) {
        match (self.kind, &self.export) {
            (Some(kind), _) if self.device == HOST => self.member.drop_host(kind, size),
            (Some(kind), Some(export)) => self.member.uncharge_exported(export, kind, size),
            (Some(kind), None) => self.member.uncharge(self.device, kind, size),
            (None, _) => (),
        }
    }
}

/// Stores a descriptor of an export at the program's pointer.
pub(crate) fn export_to(out: Raw, export: &Export) -> CUresult {
    let descriptor = export.descriptor().map_err(|_| OUT_OF_MEMORY)?;
    let out = out.as_out::<i32>();
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    out.set(descriptor.into_raw_fd())
}

/// Opens the export of a descriptor that the program passes in place of a pointer.
pub(crate) fn import_from(call: Call, handle: Raw, tag: Tag) -> Result<Export, crate::abi::CUerror> {
    let descriptor = i32::try_from(handle.0 as usize).map_err(|_| INVALID_VALUE)?;
    call.process
        .member
        .machine()
        .open_descriptor(descriptor, tag)
        .map_err(|_| INVALID_VALUE)
}

fn export(
    call: Call,
    out: Raw,
    number: CUmemGenericAllocationHandle,
    handle_type: u32,
    flags: u64,
) -> CUresult {
    let handle = call.handle(number)?;
    if flags != 0 || out.is_null() || !handle.allows(handle_type) {
        return Err(INVALID_VALUE);
    }
    export_to(out, handle.export().ok_or(NOT_SUPPORTED)?)
}

fn import(call: Call, out: Out<CUmemGenericAllocationHandle>, handle: Raw, handle_type: u32) -> CUresult {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    if handle_type != POSIX_FILE_DESCRIPTOR {
        return Err(NOT_SUPPORTED);
    }
    let export = import_from(call, handle, Tag::Memory)?;
    out.set(physical::import(call, export)?)
}

driver! {
    fn cuMemExportToShareableHandle(out: Raw, handle: CUmemGenericAllocationHandle, handle_type: u32, flags: u64) |call| {
        export(call, out, handle, handle_type, flags)
    }
    fn cuMemImportFromShareableHandle(out: Out<CUmemGenericAllocationHandle>, handle: Raw, handle_type: u32) |call| {
        import(call, out, handle, handle_type)
    }
}
