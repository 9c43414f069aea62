//! The linker, as far as a simulated card needs one, which executes no code.

use parking_lot::Mutex;

use crate::abi::{CUresult, In, Out, Raw, Text};
use crate::call::{Call, driver};
use crate::error::{FILE_NOT_FOUND, INVALID_HANDLE};
use crate::image;

/// A link in progress: the input kept.
#[derive(Default)]
pub(crate) struct Link {
    bytes: Vec<u8>,
}

/// Adds an input. Only one is kept, as the result of the link: the last with kernels, or else the first.
fn add(call: Call, state: usize, data: Vec<u8>) -> CUresult {
    let link = call.process.links.get(state, INVALID_HANDLE)?;
    let image = image::parse(&data)?;
    let mut link = link.lock();
    if link.bytes.is_empty() || !image.kernels.is_empty() {
        link.bytes = data;
        // Text returned to the program must be terminated.
        link.bytes.push(0);
    }
    Ok(())
}

driver! {
    fn cuLinkCreate(_count: u32, _options: Raw, _values: Raw, state: Out<usize>) |call| {
        state.set(call.process.links.insert(Mutex::default()))
    }
    fn cuLinkAddData(
        state: usize, _kind: u32, data: In<u8>, size: usize, _name: Text, _count: u32, _options: Raw, _values: Raw,
    ) |call| {
        add(call, state, data.list(size)?)
    }
    fn cuLinkAddFile(state: usize, _kind: u32, path: Text, _count: u32, _options: Raw, _values: Raw) |call| {
        add(call, state, std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?)
    }
    fn cuLinkCreate_v2(_count: u32, _options: Raw, _values: Raw, state: Out<usize>) |call| {
        state.set(call.process.links.insert(Mutex::default()))
    }
    fn cuLinkAddData_v2(
        state: usize, _kind: u32, data: In<u8>, size: usize, _name: Text, _count: u32, _options: Raw, _values: Raw,
    ) |call| {
        add(call, state, data.list(size)?)
    }
    fn cuLinkAddFile_v2(state: usize, _kind: u32, path: Text, _count: u32, _options: Raw, _values: Raw) |call| {
        add(call, state, std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?)
    }
    fn cuLinkComplete(state: usize, code: Out<*const u8>, size: Out<usize>) |call| {
        let link = call.process.links.get(state, INVALID_HANDLE)?;
        let link = link.lock();
        code.set(link.bytes.as_ptr())?;
        size.set_if(link.bytes.len());
        Ok(())
    }
    fn cuLinkDestroy(state: usize) |call| { call.process.links.remove(state, INVALID_HANDLE).map(|_| ()) }
}
