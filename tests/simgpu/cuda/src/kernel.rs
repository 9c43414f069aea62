//! Kernels: effect and duration of launches.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use simgpu::Cost;
use simgpu::memory::Space;

use crate::abi::{CUcontext, CUerror, CUfunction, CUlaunchConfig, CUresult, CUstream, In, Raw};
use crate::bytes;
use crate::call::{Call, driver};
use crate::cost::Charged;
use crate::error::{COOPERATIVE_LAUNCH_TOO_LARGE, ILLEGAL_ADDRESS, INVALID_DEVICE, INVALID_VALUE};
use crate::module::{self, Code};
use crate::op::Op;
use crate::price::{self, Price};
use crate::process::Process;
use crate::stream::PER_THREAD;

/// Effects of the known kernels. A new kernel needs a row here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// No visible effect.
    Nothing,
    /// `gcgroup_spin(u64 microseconds)`: runs for this wall time.
    Spin,
    /// `gcgroup_work(u64 iterations)`: takes one nanosecond of device time per iteration.
    Work,
    /// `gcgroup_fill(u64 dst, u64 n_words, u32 value)`: `dst[i] = value + i`.
    Fill,
    /// `gcgroup_checksum(u64 src, u64 n_words, u64 out)`: adds the sum of `src[i] * (i + 1)` to `*out`.
    Checksum,
    /// `gcgroup_condition(u64 handle, u64 counter)`: decrements the 32-bit `*counter` unless it is 0, and
    /// sets the condition with this handle to it.
    Condition,
}

const KNOWN: &[(&str, Known)] = &[
    ("gcgroup_spin", Known::Spin),
    ("gcgroup_work", Known::Work),
    ("gcgroup_fill", Known::Fill),
    ("gcgroup_checksum", Known::Checksum),
    ("gcgroup_condition", Known::Condition),
];

/// A launch with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) cost: Cost,
    /// The function or kernel, as given by the program.
    pub(crate) function: CUfunction,
    pub(crate) shape: Shape,
    /// Context in which it runs, whatever its stream.
    pub(crate) context: CUcontext,
    known: Known,
    arguments: Arc<Arguments>,
}

/// Stored copy of the arguments.
#[derive(Debug)]
pub(crate) struct Arguments {
    words: [u64; 3],
    places: OnceLock<[usize; 3]>,
}

impl Launch {
    /// Returns an array of pointers to the arguments, valid as long as the launch.
    pub(crate) fn params(&self) -> Raw {
        let places = || {
            self.arguments
                .words
                .each_ref()
                .map(|word| std::ptr::from_ref(word).addr())
        };
        let places = self.arguments.places.get_or_init(places);
        Raw(std::ptr::from_ref(places).cast_mut().cast())
    }
}

/// A launch on one of several devices, `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchParams {
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: CUstream,
    params: Raw,
}

const _: () = assert!(size_of::<LaunchParams>() == 56);

/// Grid, blocks and shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// Nanoseconds of the shortest kernel and of a wave of blocks, and bytes of memory traffic per nanosecond.
const SHORTEST_NS: u64 = 5_000;
const WAVE_NS: u64 = 2_000;
const BYTES_PER_NS: u64 = 1_000;
/// Threads that the device runs concurrently: 132 multiprocessors with 2048 each.
const THREADS: u64 = 132 * 2048;

const LARGEST_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const LARGEST_BLOCK: [u32; 3] = [1024, 1024, 64];
const MOST_THREADS: u64 = 1024;

impl Known {
    pub(crate) fn by_name(name: &str) -> Known {
        KNOWN
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(Known::Nothing, |(_, known)| *known)
    }

    pub(crate) fn sizes(self) -> &'static [usize] {
        match self {
            Known::Nothing => &[],
            Known::Spin | Known::Work => &[8],
            Known::Fill => &[8, 8, 4],
            Known::Checksum => &[8, 8, 8],
            Known::Condition => &[8, 8],
        }
    }
}

impl Shape {
    fn check(&self, code: &Code) -> CUresult {
        let fits = |size: [u32; 3], limit: [u32; 3]| (0..3).all(|i| (1..=limit[i]).contains(&size[i]));
        let threads: u64 = self.block.iter().map(|&n| u64::from(n)).product();
        let sound =
            fits(self.grid, LARGEST_GRID) && fits(self.block, LARGEST_BLOCK) && threads <= MOST_THREADS;
        (sound && self.shared <= code.most_shared())
            .then_some(())
            .ok_or(INVALID_VALUE)
    }

    fn waves(&self) -> u64 {
        let all = self
            .grid
            .iter()
            .chain(&self.block)
            .fold(1_u64, |all, &n| all.saturating_mul(u64::from(n)));
        all.div_ceil(THREADS)
    }
}

/// Checks a launch and copies its arguments, which may be gone when it runs.
pub(crate) fn prepare(
    call: Call,
    function: CUfunction,
    shape: Shape,
    params: Raw,
    extra: Raw,
    context: CUcontext,
) -> Result<Launch, CUerror> {
    let code = call.code(function)?;
    shape.check(&code)?;
    let mut arguments = [0; 3];
    for (index, size) in code.known.sizes().iter().enumerate() {
        let at = argument(index, params, extra)?;
        arguments[index] = match size {
            4 => u64::from(at.as_in::<u32>().get()?),
            _ => at.as_in::<u64>().get()?,
        };
    }
    let traffic = arguments[1].saturating_mul(4) / BYTES_PER_NS;
    let cost = match code.known {
        Known::Spin => Cost::Elapsed(arguments[0].saturating_mul(1000)),
        Known::Work => Cost::Device(arguments[0]),
        Known::Fill | Known::Checksum => Cost::Device(SHORTEST_NS.saturating_add(traffic)),
        Known::Condition => Cost::Device(SHORTEST_NS),
        Known::Nothing => {
            Cost::Device(SHORTEST_NS.saturating_add((shape.waves() - 1).saturating_mul(WAVE_NS)))
        }
    };
    Ok(Launch {
        cost,
        function,
        shape,
        context,
        known: code.known,
        arguments: Arc::new(Arguments {
            words: arguments,
            places: OnceLock::new(),
        }),
    })
}

/// Returns the address of an argument: from the pointer array, or in the buffer that `extra` describes. All
/// known kernels have arguments of up to eight bytes at multiples of eight.
fn argument(index: usize, params: Raw, extra: Raw) -> Result<Raw, CUerror> {
    const BUFFER_POINTER: usize = 1;
    const END: usize = 0;
    if !params.is_null() {
        let list: In<*mut std::ffi::c_void> = Raw(params.0.wrapping_byte_add(index * 8)).as_in();
        return Ok(Raw(list.get()?));
    }
    let mut at = 0;
    loop {
        let field = |offset: usize| Raw(extra.0.wrapping_byte_add(offset)).as_in::<usize>();
        if extra.is_null() || field(at).get()? == END {
            return Err(INVALID_VALUE);
        }
        if field(at).get()? == BUFFER_POINTER {
            return Ok(Raw((field(at + 8).get()? + index * 8) as *mut _));
        }
        at += 16;
    }
}

/// Applies a kernel's effect on memory.
pub(crate) fn run(process: &Process, launch: &Launch) -> CUresult {
    let space = process.space;
    let [first, words, third] = launch.arguments.words;
    match launch.known {
        Known::Nothing | Known::Spin | Known::Work => Ok(()),
        Known::Fill => fill(space, first, words, third),
        Known::Checksum => checksum(space, first, words, third),
        Known::Condition => count_down(process, first, words),
    }
}

/// Words processed at a time, so that a large fill needs no large buffer.
const BATCH: u64 = 1 << 16;

fn fill(space: &Space, dst: u64, words: u64, value: u64) -> CUresult {
    for start in (0..words).step_by(1 << 16) {
        let batch = start..words.min(start + BATCH);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the kernel's own arithmetic wraps at 32 bits"
        )]
        let bytes: Vec<u8> = batch
            .flat_map(|index| (value.wrapping_add(index) as u32).to_le_bytes())
            .collect();
        let at = dst.checked_add(start * 4).ok_or(ILLEGAL_ADDRESS)?;
        bytes::write(space, at, &bytes)
            .then_some(())
            .ok_or(ILLEGAL_ADDRESS)?;
    }
    Ok(())
}

fn count_down(process: &Process, handle: u64, counter: u64) -> CUresult {
    let before = bytes::read(process.space, counter, 4).ok_or(ILLEGAL_ADDRESS)?;
    let before = before.try_into().map_or(0, u32::from_le_bytes);
    let after = before.saturating_sub(1);
    let handle = usize::try_from(handle).unwrap_or(0);
    process.conditions.get(handle, ILLEGAL_ADDRESS)?.set(after);
    bytes::write(process.space, counter, &after.to_le_bytes())
        .then_some(())
        .ok_or(ILLEGAL_ADDRESS)
}

fn checksum(space: &Space, src: u64, words: u64, out: u64) -> CUresult {
    let mut sum = 0_u64;
    for start in (0..words).step_by(1 << 16) {
        let count = BATCH.min(words - start);
        let at = src.checked_add(start * 4).ok_or(ILLEGAL_ADDRESS)?;
        let bytes = bytes::read(space, at, count * 4).ok_or(ILLEGAL_ADDRESS)?;
        for (word, index) in bytes.chunks_exact(4).zip(start + 1..) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            sum = sum.wrapping_add(u64::from(word).wrapping_mul(index));
        }
    }
    let before = bytes::read(space, out, 8).ok_or(ILLEGAL_ADDRESS)?;
    let before = before.try_into().map_or(0, u64::from_le_bytes);
    bytes::write(space, out, &before.wrapping_add(sum).to_le_bytes())
        .then_some(())
        .ok_or(ILLEGAL_ADDRESS)
}

pub(crate) fn launch(
    call: Call,
    function: CUfunction,
    shape: Shape,
    stream: CUstream,
    params: Raw,
    extra: Raw,
) -> CUresult {
    let stream = call.stream(stream)?;
    let launch = prepare(call, function, shape, params, extra, stream.context)?;
    module::load_kernel(call, function, &*call.context_of(stream.context)?)?;
    if !call.code(function)?.was_launched.swap(true, Relaxed) {
        Price::FirstLaunch.wait(1);
        let index = call.context_of(stream.context)?.index;
        Charged::first_launch(call.process, index)?;
    }
    price::stall();
    Price::Launch.work(1);
    call.enqueue(&stream, Op::Kernel(launch))
}

/// Launches one kernel on each of several devices.
fn launch_together(call: Call, list: In<LaunchParams>, count: u32) -> CUresult {
    let list = list.list(usize::try_from(count).unwrap_or(0))?;
    let mut devices = Vec::new();
    for one in &list {
        if one.stream <= PER_THREAD {
            return Err(INVALID_VALUE);
        }
        let stream = call.stream(one.stream)?;
        let device = call.context_of(stream.context)?.device;
        if one.shape().waves() > 1 {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        if devices.contains(&device) {
            return Err(INVALID_DEVICE);
        }
        devices.push(device);
    }
    if list.is_empty() {
        return Err(INVALID_VALUE);
    }
    let no_extra = Raw(std::ptr::null_mut());
    list.iter()
        .try_for_each(|one| launch(call, one.function, one.shape(), one.stream, one.params, no_extra))
}

impl LaunchParams {
    fn shape(&self) -> Shape {
        Shape {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
        }
    }
}

driver! {
    fn cuLaunchCooperativeKernelMultiDevice(list: In<LaunchParams>, count: u32, _flags: u32) null {} |call| {
        launch_together(call, list, count)
    }
    fn cuLaunchKernel(
        function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CUstream, params: Raw, extra: Raw,
    ) twin cuLaunchKernel_ptsz null {} |call| {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        launch(call, function, shape, stream, params, extra)
    }
    fn cuLaunchKernelEx(config: In<CUlaunchConfig>, function: CUfunction, params: Raw, extra: Raw) twin cuLaunchKernelEx_ptsz null {} |call| {
        let config = config.get()?;
        let shape = Shape { grid: config.grid, block: config.block, shared: config.shared_mem_bytes };
        launch(call, function, shape, config.stream, params, extra)
    }
    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CUstream, params: Raw,
    ) twin cuLaunchCooperativeKernel_ptsz null {} |call| {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        if shape.waves() > 1 {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        launch(call, function, shape, stream, params, Raw(std::ptr::null_mut()))
    }
}
