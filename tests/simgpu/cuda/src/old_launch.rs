//! Launches with the oldest functions: shape and arguments are set by separate calls before the launch.

use std::ffi::c_void;

use crate::abi::{CUfunction, CUresult, CUstream, Raw};
use crate::call::{Call, driver};
use crate::error::{INVALID_HANDLE, INVALID_VALUE};
use crate::kernel::{self, Shape};

/// Shape and arguments set for a function.
#[derive(Default)]
pub(crate) struct Prepared {
    block: [u32; 3],
    shared: u32,
    arguments: Vec<u8>,
}

/// Maximum bytes of arguments.
const MOST: usize = 4096;

fn change(call: Call, function: CUfunction, change: impl FnOnce(&mut Prepared) -> CUresult) -> CUresult {
    let function = call.process.functions.get(function, INVALID_HANDLE)?;
    change(&mut function.prepared.lock())
}

fn set_argument(call: Call, function: CUfunction, offset: i32, bytes: &[u8]) -> CUresult {
    let start = usize::try_from(offset).map_err(|_| INVALID_VALUE)?;
    change(call, function, |prepared| {
        let end = start.checked_add(bytes.len()).filter(|&end| end <= MOST);
        let end = end.ok_or(INVALID_VALUE)?;
        let size = prepared.arguments.len().max(end);
        prepared.arguments.resize(size, 0);
        prepared.arguments[start..end].copy_from_slice(bytes);
        Ok(())
    })
}

fn launch(call: Call, function: CUfunction, grid: [i32; 2], stream: CUstream) -> CUresult {
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    let [x, y] = grid.map(|size| u32::try_from(size).unwrap_or(0));
    let object = call.process.functions.get(function, INVALID_HANDLE)?;
    let prepared = object.prepared.lock();
    let shape = Shape {
        grid: [x, y, 1],
        block: prepared.block,
        shared: prepared.shared,
    };
    let mut arguments = prepared.arguments.clone();
    drop(prepared);
    // Padded to the maximum that a kernel may read.
    let size = arguments.len();
    arguments.resize(MOST, 0);
    let extra = [
        POINTER,
        arguments.as_mut_ptr() as usize,
        SIZE,
        &raw const size as usize,
        0,
    ];
    let extra = Raw(extra.as_ptr().cast_mut().cast::<c_void>());
    kernel::launch(call, function, shape, stream, Raw(std::ptr::null_mut()), extra)
}

driver! {
    fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) |call| {
        let block = [x, y, z].map(|size| u32::try_from(size).unwrap_or(0));
        if block.contains(&0) {
            return Err(INVALID_VALUE);
        }
        change(call, function, |prepared| { prepared.block = block; Ok(()) })
    }
    fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) |call| {
        change(call, function, |prepared| { prepared.shared = bytes; Ok(()) })
    }
    fn cuParamSetSize(function: CUfunction, bytes: u32) |call| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > MOST {
            return Err(INVALID_VALUE);
        }
        change(call, function, |prepared| { prepared.arguments.resize(bytes, 0); Ok(()) })
    }
    fn cuParamSeti(function: CUfunction, offset: i32, value: u32) |call| {
        set_argument(call, function, offset, &value.to_le_bytes())
    }
    fn cuParamSetf(function: CUfunction, offset: i32, value: f32) |call| {
        set_argument(call, function, offset, &value.to_le_bytes())
    }
    fn cuParamSetv(function: CUfunction, offset: i32, from: Raw, bytes: u32) |call| {
        let bytes = from.as_in::<u8>().list(usize::try_from(bytes).unwrap_or(0))?;
        set_argument(call, function, offset, &bytes)
    }
    fn cuLaunch(function: CUfunction) |call| { launch(call, function, [1, 1], 0) }
    fn cuLaunchGrid(function: CUfunction, width: i32, height: i32) |call| { launch(call, function, [width, height], 0) }
    fn cuLaunchGridAsync(function: CUfunction, width: i32, height: i32, stream: CUstream) |call| {
        launch(call, function, [width, height], stream)
    }
}
