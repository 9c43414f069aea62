//! Legacy interprocess functions: handles of linear memory and of events, 64 bytes each, usable by any
//! process.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use simgpu::memory::{Block, Kind, Physical};
use simgpu::{Export, Tag, open_of};

use crate::abi::{CUcontext, CUdeviceptr, CUevent, CUresult, Out};
use crate::call::{Call, driver};
use crate::error::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, MAP_FAILED, OUT_OF_MEMORY};
use crate::event::Event;
use crate::process::Process;
use crate::share::Charge;

/// `CUipcMemHandle` and `CUipcEventHandle`, opaque outside this driver.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle {
    magic: u64,
    /// Serial of the export; see `simgpu::Export`.
    serial: u64,
    size: u64,
    /// Location of the bytes in the owner: a descriptor, and the offset in its file.
    offset: u64,
    descriptor: i32,
    reserved: [u8; 28],
}

const _: () = assert!(size_of::<IpcHandle>() == 64);

const MAGIC: u64 = u64::from_le_bytes(*b"simgpu\0\x03");
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, a required flag.
const LAZY_PEER_ACCESS: u32 = 1;
const PAGE: u64 = 4096;

/// Memory that a process has exported and opened.
#[derive(Default)]
pub(crate) struct Ipc {
    /// Linear memory with handles given out, by the block's id.
    exported: std::collections::HashMap<u64, Export>,
    opened: Vec<Opened>,
}

/// Memory of another process, with the number of opens in one context.
struct Opened {
    serial: u64,
    context: CUcontext,
    address: CUdeviceptr,
    count: u32,
}

impl Ipc {
    /// Returns whether memory is shared with other processes.
    pub(crate) fn is_used(&self) -> bool {
        !self.exported.is_empty() || !self.opened.is_empty()
    }
}

impl IpcHandle {
    fn of(export: &Export) -> IpcHandle {
        IpcHandle {
            magic: MAGIC,
            serial: export.serial(),
            size: export.size(),
            offset: 0,
            descriptor: -1,
            reserved: [0; 28],
        }
    }

    fn open(&self, call: Call, tag: Tag) -> Result<Export, crate::abi::CUerror> {
        let is_ours = self.magic == MAGIC;
        let export = is_ours.then(|| call.process.member.machine().open_export(self.serial, tag));
        export.ok_or(INVALID_HANDLE)?.map_err(|_| INVALID_HANDLE)
    }
}

fn get_memory(call: Call, out: Out<IpcHandle>, address: CUdeviceptr) -> CUresult {
    call.context()?;
    let process = call.process;
    let block = process.space.find(address).ok_or(INVALID_VALUE)?;
    if block.kind != Kind::Linear || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let (file, offset) = process.space.place_of(&block).ok_or(INVALID_VALUE)?;
    let descriptor = file.as_raw_fd();
    let mut ipc = process.ipc.lock();
    let export = match ipc.exported.entry(block.id) {
        std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
        std::collections::hash_map::Entry::Vacant(place) => {
            let export = process.member.export(Tag::Linear, block.device, block.size);
            place.insert(export.map_err(|_| OUT_OF_MEMORY)?)
        }
    };
    out.set(IpcHandle {
        offset,
        descriptor,
        ..IpcHandle::of(export)
    })
}

/// Frees a block of linear memory. If other processes still hold it, its addresses and bytes are never
/// reused.
pub(crate) fn end_linear(process: &Process, block: &Block, kind: simgpu::Held) {
    let export = process.ipc.lock().exported.remove(&block.id);
    let Some(export) = export else {
        let regained = block.charged + process.space.release(block);
        process.member.uncharge(block.device, kind, regained);
        return;
    };
    process.member.uncharge_exported(&export, kind, block.charged);
    if export.let_go() {
        let regained = process.space.release(block);
        process.member.uncharge(block.device, kind, regained);
    }
}

fn open_memory(call: Call, out: Out<CUdeviceptr>, handle: IpcHandle, flags: u32) -> CUresult {
    let context = call.context()?;
    if out.is_null() || flags != LAZY_PEER_ACCESS {
        return Err(INVALID_VALUE);
    }
    let export = handle.open(call, Tag::Linear)?;
    let mut ipc = call.process.ipc.lock();
    let is_it =
        |opened: &&mut Opened| opened.serial == handle.serial && opened.context == context.base().handle;
    if let Some(opened) = ipc.opened.iter_mut().find(is_it) {
        opened.count += 1;
        return out.set(opened.address);
    }
    // A process cannot open its own memory.
    if ipc.exported.values().any(|ours| ours.serial() == handle.serial) {
        return Err(INVALID_CONTEXT);
    }
    let owner = export.owner().ok_or(MAP_FAILED)?;
    let file = open_of(owner, handle.descriptor).map_err(|_| MAP_FAILED)?;
    let (size, device) = (export.size(), call.process.member.number_of(export.device()));
    call.process.ordinal(device).ok_or(MAP_FAILED)?;
    let first = handle.offset / PAGE * PAGE;
    let begins = handle.offset - first;
    let pages = (begins + size).next_multiple_of(PAGE);
    let charge = Charge {
        member: call.process.member,
        device,
        kind: None,
        export: Some(Arc::new(export)),
    };
    let physical: Arc<Physical> = call
        .process
        .space
        .make_physical(pages, Some((file, first)), Box::new(charge))
        .ok_or(MAP_FAILED)?;
    let made =
        call.process
            .space
            .make_imported(size, Kind::Imported, device, context.owner(), &physical, begins);
    let address = made.ok_or(MAP_FAILED)?;
    ipc.opened.push(Opened {
        serial: handle.serial,
        context: context.base().handle,
        address,
        count: 1,
    });
    out.set(address)
}

fn close_memory(call: Call, address: CUdeviceptr) -> CUresult {
    call.context()?;
    let mut ipc = call.process.ipc.lock();
    let place = ipc.opened.iter().position(|opened| opened.address == address);
    let place = place.ok_or(INVALID_VALUE)?;
    ipc.opened[place].count -= 1;
    if ipc.opened[place].count > 0 {
        return Ok(());
    }
    let opened = ipc.opened.swap_remove(place);
    drop(ipc);
    if let Ok(context) = call.context_of(opened.context) {
        context.wait();
    }
    close_block(call.process, address);
    Ok(())
}

fn close_block(process: &Process, address: CUdeviceptr) {
    let block = process
        .space
        .remove(address, |block| block.kind == Kind::Imported);
    if let Some(block) = block {
        process.space.release(&block);
    }
}

/// Closes all memory that a context has opened.
pub(crate) fn close_all_of(process: &Process, context: CUcontext) {
    let mut ipc = process.ipc.lock();
    let opened = std::mem::take(&mut ipc.opened);
    let (gone, kept) = opened.into_iter().partition(|opened| opened.context == context);
    ipc.opened = kept;
    drop(ipc);
    let gone: Vec<Opened> = gone;
    gone.iter()
        .for_each(|opened| close_block(process, opened.address));
}

fn get_event(call: Call, out: Out<IpcHandle>, event: CUevent) -> CUresult {
    let event = call.event(event)?;
    out.set(IpcHandle::of(event.export().ok_or(INVALID_HANDLE)?))
}

fn open_event(call: Call, out: Out<CUevent>, handle: IpcHandle) -> CUresult {
    let context = call.context()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let export = handle.open(call, Tag::Event)?;
    if export.owner() == Some(std::process::id()) {
        return Err(INVALID_CONTEXT);
    }
    let event = Event::shared(call.process, &context, export)?;
    out.set(call.process.events.insert(event))
}

driver! {
    fn cuIpcGetMemHandle(handle: Out<IpcHandle>, address: CUdeviceptr) |call| { get_memory(call, handle, address) }
    fn cuIpcOpenMemHandle(address: Out<CUdeviceptr>, handle: IpcHandle, flags: u32) |call| {
        open_memory(call, address, handle, flags)
    }
    fn cuIpcOpenMemHandle_v2(address: Out<CUdeviceptr>, handle: IpcHandle, flags: u32) |call| {
        open_memory(call, address, handle, flags)
    }
    fn cuIpcCloseMemHandle(address: CUdeviceptr) |call| { close_memory(call, address) }
    fn cuIpcGetEventHandle(handle: Out<IpcHandle>, event: CUevent) |call| { get_event(call, handle, event) }
    fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: IpcHandle) |call| { open_event(call, event, handle) }
}
