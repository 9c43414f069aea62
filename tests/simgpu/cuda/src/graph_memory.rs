//! Memory that graphs allocate: captured allocations.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use simgpu::memory::{Block, Kind};

use crate::abi::{CUdevice, CUerror, CUresult, Out, Raw};
use crate::call::{Call, driver};
use crate::context::Context;
use crate::error::{INVALID_VALUE, OUT_OF_MEMORY};
use crate::memory;
use crate::pool::Gauge;
use crate::process::Process;

/// Memory of a graph: it has an address from the start, and takes room on the device from the first
/// launch until the graph and all made from it are gone.
pub(crate) struct Memory {
    process: &'static Process,
    index: usize,
    address: u64,
    size: u64,
    /// The block's number, by which it is known not to have been freed by the program.
    id: u64,
    is_backed: AtomicBool,
}

const UNIT: u64 = 2 << 20;

impl Memory {
    /// Takes addresses for `bytes` bytes.
    pub(crate) fn reserve(
        process: &'static Process,
        context: &Context,
        index: usize,
        bytes: u64,
    ) -> Result<Memory, CUerror> {
        let size = bytes.checked_next_multiple_of(UNIT).ok_or(OUT_OF_MEMORY)?;
        let address = process.space.take_linear(size).ok_or(OUT_OF_MEMORY)?;
        process
            .space
            .make_within(address, bytes, Kind::Graph, index, context.domain());
        let id = process.space.find(address).map_or(0, |block| block.id);
        Ok(Memory {
            process,
            index,
            address,
            size,
            id,
            is_backed: AtomicBool::new(false),
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Takes room on the device, if it has none yet.
    pub(crate) fn back(&self) -> CUresult {
        if self.is_backed.load(Acquire) {
            return Ok(());
        }
        memory::charge(self.process, self.index, self.size)?;
        if self.is_backed.swap(true, AcqRel) {
            self.process.member.uncharge(self.index, self.size);
        } else {
            self.count(|gauge, size| gauge.add(size));
        }
        Ok(())
    }

    fn count(&self, change: impl FnOnce(&mut Gauge, u64)) {
        if let Some(device) = self
            .process
            .devices
            .iter()
            .find(|device| device.index == self.index)
        {
            change(&mut device.graph_memory.lock(), self.size);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.process
            .space
            .remove(self.address, |block| block.id == self.id);
        self.process.space.give_linear(self.address, self.size);
        if *self.is_backed.get_mut() {
            self.process.member.uncharge(self.index, self.size);
            self.count(|gauge, size| gauge.current -= size);
        }
    }
}

/// Ends a block of a graph for the program; the room stays the graph's.
pub(crate) fn free(process: &'static Process, address: u64) {
    process
        .space
        .remove(address, |block: &Block| block.kind == Kind::Graph);
}

const USED: u32 = 0;
const USED_HIGH: u32 = 1;
const RESERVED: u32 = 2;
const RESERVED_HIGH: u32 = 3;

fn attribute(call: Call, device: CUdevice, attribute: u32, value: Out<u64>) -> CUresult {
    let gauge = *call.process.device(device)?.graph_memory.lock();
    match attribute {
        USED | RESERVED => value.set(gauge.current),
        USED_HIGH | RESERVED_HIGH => value.set(gauge.high),
        _ => Err(INVALID_VALUE),
    }
}

driver! {
    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attr: u32, value: Out<u64>) |call| {
        attribute(call, device, attr, value)
    }
    fn cuDeviceSetGraphMemAttribute(device: CUdevice, attr: u32, _value: Raw) |call| {
        let mut gauge = call.process.device(device)?.graph_memory.lock();
        if !matches!(attr, USED_HIGH | RESERVED_HIGH) {
            return Err(INVALID_VALUE);
        }
        gauge.high = gauge.current;
        Ok(())
    }
    fn cuDeviceGraphMemTrim(device: CUdevice) |call| { call.process.device(device).map(|_| ()) }
}
