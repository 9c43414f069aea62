//! A GPU with its primary context and the test kernels loaded.
//!
//! All functions are safe: handles are created, used and destroyed by the types that own them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream, Driver, Result,
};

/// Source that the driver compiles for its card; ends with a NUL, as the driver requires.
const KERNELS: &str = concat!(include_str!("../kernels.ptx"), "\0");

/// Threads per block, and maximum number of blocks, of the fill and checksum kernels.
const THREADS: u32 = 256;
const BLOCKS: u64 = 1024;

/// A device with its primary or its own context and the kernels loaded into it.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub driver: Arc<Driver>,
    pub device: CUdevice,
    /// The driver's version number: 12080 is 12.8.
    version: c_int,
    owns_context: bool,
    /// Name and UUID of the device, from the driver.
    pub name: String,
    pub uuid: [u8; 16],
    context: CUcontext,
    module: CUmodule,
    spin: CUfunction,
    work: CUfunction,
    fill: CUfunction,
    checksum: CUfunction,
}

impl Gpu {
    /// Opens the device `ordinal` of the initialised driver and makes its primary context current.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn open(driver: Arc<Driver>, ordinal: c_int) -> Result<Self> {
        Self::with(driver, ordinal, false)
    }

    /// Opens the same device with a new context, and makes that current.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn another(&self) -> Result<Self> {
        Self::with(Arc::clone(&self.driver), self.device, true)
    }

    fn with(driver: Arc<Driver>, ordinal: c_int, owns_context: bool) -> Result<Self> {
        let (mut device, mut context, mut module) = (0, 0, 0);
        let mut name = [0_u8; 128];
        let (mut uuid, mut version) = ([0; 16], 0);
        // SAFETY: each call gets out-pointers that outlive it, and handles from the preceding calls.
        unsafe {
            driver.cuDriverGetVersion(&mut version)?;
            driver.cuDeviceGet(&mut device, ordinal)?;
            let length = c_int::try_from(name.len()).unwrap_or(0);
            driver.cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), length, device)?;
            driver.cuDeviceGetUuid_v2(&mut uuid, device)?;
            if owns_context {
                driver.cuCtxCreate_v2(&mut context, 0, device)?;
            } else {
                driver.cuDevicePrimaryCtxRetain(&mut context, device)?;
            }
            driver.cuCtxSetCurrent(context)?;
            driver.cuModuleLoadData(&mut module, KERNELS.as_ptr().cast())?;
        }
        let function = |name: &CStr| {
            let mut function = 0;
            // SAFETY: the module was just loaded, and the name is terminated.
            unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) }.map(|()| function)
        };
        let spin = function(c"gcgroup_spin")?;
        let work = function(c"gcgroup_work")?;
        let fill = function(c"gcgroup_fill")?;
        let checksum = function(c"gcgroup_checksum")?;
        let name = CStr::from_bytes_until_nul(&name)
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            driver,
            device,
            version,
            owns_context,
            name,
            uuid,
            context,
            module,
            spin,
            work,
            fill,
            checksum,
        })
    }

    /// Makes this GPU's context current to the calling thread.
    pub(crate) fn attach(&self) -> Result<()> {
        // SAFETY: the context exists until drop.
        unsafe { self.driver.cuCtxSetCurrent(self.context) }
    }

    /// Returns the line that the program prints about the device.
    pub(crate) fn describe(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "device {} {hex} {}, driver {}",
            self.device, self.name, self.version
        )
    }

    /// Submits a kernel of one thread that runs for `usec` microseconds.
    pub(crate) fn spin(&self, stream: CUstream, usec: u64) -> Result<()> {
        self.launch(self.spin, 1, 1, stream, &mut [pointer(&usec)])
    }

    /// Submits a kernel of one thread that does `iterations` steps of arithmetic.
    pub(crate) fn work(&self, stream: CUstream, iterations: u64) -> Result<()> {
        self.launch(self.work, 1, 1, stream, &mut [pointer(&iterations)])
    }

    /// Submits `dst[i] = value + i` for `words` 32-bit words. `dst` is memory of the caller on this device.
    pub(crate) fn fill(&self, stream: CUstream, dst: CUdeviceptr, words: u64, value: u32) -> Result<()> {
        self.launch(
            self.fill,
            grid(words),
            THREADS,
            stream,
            &mut [pointer(&dst), pointer(&words), pointer(&value)],
        )
    }

    /// Submits a kernel that adds the checksum of `words` 32-bit words at `src` to the 64-bit word at `out`.
    pub(crate) fn checksum(
        &self,
        stream: CUstream,
        src: CUdeviceptr,
        words: u64,
        out: CUdeviceptr,
    ) -> Result<()> {
        self.launch(
            self.checksum,
            grid(words),
            THREADS,
            stream,
            &mut [pointer(&src), pointer(&words), pointer(&out)],
        )
    }

    #[allow(clippy::too_many_arguments, reason = "as cuLaunchKernel")]
    fn launch(
        &self,
        function: CUfunction,
        grid: c_uint,
        block: c_uint,
        stream: CUstream,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        let params = params.as_mut_ptr();
        let extra = std::ptr::null_mut();
        // SAFETY: a kernel of this module with the number and types of parameters that its source declares;
        // the driver copies them before it returns.
        unsafe {
            self.driver
                .cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, params, extra)
        }
    }

    /// Waits for all work submitted to the context.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: no arguments.
        unsafe { self.driver.cuCtxSynchronize() }
    }

    /// Allocates memory on this device until the program ends.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the out-pointer outlives the call.
        unsafe { self.driver.cuMemAlloc_v2(&mut address, bytes) }.map(|()| address)
    }

    /// Returns (free, total) bytes as the driver reports them to this process.
    pub(crate) fn memory_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the out-pointers outlive the call.
        unsafe { self.driver.cuMemGetInfo_v2(&mut free, &mut total) }.map(|()| (free, total))
    }

    /// Returns the device's memory size, bytes, as the driver reports it to this process.
    pub(crate) fn total_memory(&self) -> Result<usize> {
        let mut total = 0;
        // SAFETY: the out-pointer outlives the call.
        unsafe { self.driver.cuDeviceTotalMem_v2(&mut total, self.device) }.map(|()| total)
    }

    /// Copies to the caller's memory on this device, and waits.
    pub(crate) fn write(&self, to: CUdeviceptr, bytes: &[u8]) -> Result<()> {
        // SAFETY: the slice is valid; the driver checks the device address.
        unsafe {
            self.driver
                .cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len())
        }
    }

    /// Copies from the caller's memory on this device, and waits.
    pub(crate) fn read(&self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is valid; the driver checks the device address.
        unsafe {
            self.driver
                .cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, bytes.len())
        }
    }

    /// Sets bytes of the caller's memory on this device.
    pub(crate) fn set(&self, to: CUdeviceptr, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: the driver checks the device address.
        unsafe { self.driver.cuMemsetD8_v2(to, value, bytes) }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: loaded in `with` and not used after this. Errors are ignored.
        let _ = unsafe { self.driver.cuModuleUnload(self.module) };
        // SAFETY: created or retained once in `with`.
        let _ = unsafe {
            if self.owns_context {
                self.driver.cuCtxDestroy_v2(self.context)
            } else {
                self.driver.cuDevicePrimaryCtxRelease_v2(self.device)
            }
        };
    }
}

/// A stream, destroyed on drop.
#[derive(Debug)]
pub(crate) struct Stream<'g> {
    gpu: &'g Gpu,
    pub raw: CUstream,
    is_own: bool,
}

impl<'g> Stream<'g> {
    /// Creates a non-blocking stream, which does not wait for the legacy default stream.
    pub(crate) fn new(gpu: &'g Gpu) -> Result<Self> {
        const CU_STREAM_NON_BLOCKING: c_uint = 1;
        Self::with(gpu, CU_STREAM_NON_BLOCKING)
    }

    /// Creates a blocking stream, which is ordered with the legacy default stream.
    pub(crate) fn blocking(gpu: &'g Gpu) -> Result<Self> {
        Self::with(gpu, 0)
    }

    fn with(gpu: &'g Gpu, flags: c_uint) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: the out-pointer outlives the call.
        unsafe { gpu.driver.cuStreamCreate(&mut raw, flags) }?;
        Ok(Self {
            gpu,
            raw,
            is_own: true,
        })
    }

    /// Returns the calling thread's default stream.
    pub(crate) fn per_thread(gpu: &'g Gpu) -> Self {
        const CU_STREAM_PER_THREAD: CUstream = 2;
        Self {
            gpu,
            raw: CU_STREAM_PER_THREAD,
            is_own: false,
        }
    }

    /// Waits for all work submitted to the stream.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream exists until drop.
        unsafe { self.gpu.driver.cuStreamSynchronize(self.raw) }
    }

    /// Makes later submissions wait for the event.
    pub(crate) fn wait(&self, event: &Event<'_>) -> Result<()> {
        // SAFETY: the stream and the event outlive the call.
        unsafe { self.gpu.driver.cuStreamWaitEvent(self.raw, event.raw, 0) }
    }

    /// Copies from the caller's memory on this device behind the submitted work, and waits.
    pub(crate) fn read(&self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<()> {
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: the slice is valid until the copy has ended; the driver checks the device address.
        unsafe {
            self.gpu
                .driver
                .cuMemcpyDtoHAsync_v2(to, from, bytes.len(), self.raw)
        }?;
        self.synchronize()
    }

    /// Has the driver set the flag behind the submitted work.
    ///
    /// # Safety
    /// The flag lives until it is set.
    pub(crate) unsafe fn set(&self, flag: &AtomicBool) -> Result<()> {
        extern "C" fn set(flag: *mut c_void) {
            // SAFETY: the flag, as the caller of the outer function guarantees.
            unsafe { &*flag.cast::<AtomicBool>() }.store(true, Ordering::Release);
        }
        let flag = std::ptr::from_ref(flag).cast_mut().cast();
        // SAFETY: the function may be called with the flag in any thread.
        unsafe { self.gpu.driver.cuLaunchHostFunc(self.raw, set, flag) }
    }

    /// Submits a copy within the caller's memory on this device.
    pub(crate) fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: the driver checks the addresses.
        unsafe { self.gpu.driver.cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        // SAFETY: created in `with`; the driver completes queued work first.
        let _ = unsafe { self.gpu.driver.cuStreamDestroy_v2(self.raw) };
    }
}

/// An event, destroyed on drop.
#[derive(Debug)]
pub(crate) struct Event<'g> {
    gpu: &'g Gpu,
    raw: CUevent,
}

impl<'g> Event<'g> {
    pub(crate) fn new(gpu: &'g Gpu) -> Result<Self> {
        const CU_EVENT_DISABLE_TIMING: c_uint = 2;
        Self::with(gpu, CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event that records the time when it is reached.
    pub(crate) fn timed(gpu: &'g Gpu) -> Result<Self> {
        Self::with(gpu, 0)
    }

    fn with(gpu: &'g Gpu, flags: c_uint) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: the out-pointer outlives the call.
        unsafe { gpu.driver.cuEventCreate(&mut raw, flags) }?;
        Ok(Self { gpu, raw })
    }

    /// Returns the microseconds from `start` to this event; both must be timed and reached.
    pub(crate) fn usec_since(&self, start: &Event<'_>) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: the out-pointer outlives the call, and both events exist until drop.
        unsafe {
            self.gpu
                .driver
                .cuEventElapsedTime(&mut milliseconds, start.raw, self.raw)
        }?;
        Ok(f64::from(milliseconds) * 1e3)
    }

    /// Records the event behind the stream's submitted work.
    pub(crate) fn record(&self, stream: &Stream<'_>) -> Result<()> {
        // SAFETY: the event and the stream outlive the call.
        unsafe { self.gpu.driver.cuEventRecord(self.raw, stream.raw) }
    }

    /// Returns whether the work before the last record has ended.
    pub(crate) fn has_passed(&self) -> Result<bool> {
        // SAFETY: the event exists until drop.
        match unsafe { self.gpu.driver.cuEventQuery(self.raw) } {
            Err(error) if error.is_not_ready() => Ok(false),
            passed => passed.map(|()| true),
        }
    }

    /// Waits until the work before the last record has ended; returns at once if never recorded.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event exists until drop.
        unsafe { self.gpu.driver.cuEventSynchronize(self.raw) }
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `with`.
        let _ = unsafe { self.gpu.driver.cuEventDestroy_v2(self.raw) };
    }
}

/// Returns a kernel parameter as the driver expects it: the address of the value.
fn pointer<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// Returns the number of blocks for `words`: one for each [`THREADS`] words, at most what fills a card.
fn grid(words: u64) -> c_uint {
    u32::try_from(words.div_ceil(THREADS.into()).clamp(1, BLOCKS)).unwrap_or(1)
}
