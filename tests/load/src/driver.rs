//! The CUDA driver: one table row for each function that the program calls, looked up at start.
//!
//! The library is opened by name and its functions are looked up by `dlsym`, so that the program starts
//! without an installed driver (and reports that), and is governed only if a library is preloaded. No kernels
//! and no state are kept here: [`crate::gpu`] wraps these functions in safe types.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;

use anyhow::{Context as _, bail};

/// A `CUresult`; 0 is success.
type CUresult = c_uint;
pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = u64;
// Handles are opaque words: never dereferenced, and usable in any thread.
pub(crate) type CUcontext = usize;
pub(crate) type CUmodule = usize;
pub(crate) type CUfunction = usize;
pub(crate) type CUstream = usize;
pub(crate) type CUevent = usize;
pub(crate) type CUgraph = usize;
pub(crate) type CUgraphExec = usize;
pub(crate) type CUarray = usize;
pub(crate) type CUmemoryPool = usize;
pub(crate) type CUmemGenericAllocationHandle = u64;

/// Result of a call that the opened driver does not have.
const CUDA_ERROR_NOT_FOUND: CUresult = 500;
const CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
const CUDA_ERROR_NOT_READY: CUresult = 600;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Location {
    pub kind: c_uint,
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AllocationProperties {
    pub kind: c_uint,
    pub requested_handle_types: c_uint,
    pub location: Location,
    pub win32: usize,
    pub flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Access {
    pub location: Location,
    pub flags: c_uint,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PoolProperties {
    pub kind: c_uint,
    pub handle_types: c_uint,
    pub location: Location,
    pub win32: usize,
    pub max_size: usize,
    /// `usage` and `reserved`, all zero.
    pub rest: [u64; 7],
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ArrayDescriptor {
    pub width: usize,
    pub height: usize,
    pub format: c_uint,
    pub channels: c_uint,
}

/// One end of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CopyEnd {
    pub x_bytes: usize,
    pub y: usize,
    pub kind: c_uint,
    pub host: usize,
    pub device: CUdeviceptr,
    pub array: CUarray,
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Copy2D {
    pub from: CopyEnd,
    pub to: CopyEnd,
    pub width_bytes: usize,
    pub height: usize,
}

const _: () = {
    assert!(size_of::<AllocationProperties>() == 32);
    assert!(size_of::<Access>() == 12);
    assert!(size_of::<PoolProperties>() == 88);
    assert!(size_of::<ArrayDescriptor>() == 24);
    assert!(size_of::<Copy2D>() == 128);
};

/// A failed driver call. Displayed by the driver's name for the error, `CUDA_ERROR_…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CudaError {
    /// Name of the function that failed.
    pub call: &'static str,
    code: CUresult,
    name: String,
}

impl CudaError {
    /// Returns whether memory was refused, by the driver or by a limit: both use the same code.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Returns whether work has not ended yet.
    pub(crate) fn is_not_ready(&self) -> bool {
        self.code == CUDA_ERROR_NOT_READY
    }

    /// Returns the driver's name for the error.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.name, self.call)
    }
}

impl std::error::Error for CudaError {}

pub(crate) type Result<T> = std::result::Result<T, CudaError>;

macro_rules! driver {
    ($( fn $name:ident($($arg:ident: $ty:ty),* $(,)?); )*) => {
        /// The driver's functions; functions that the opened driver does not have are `None`.
        #[allow(non_snake_case, reason = "spelt as the driver spells them")]
        pub(crate) struct Driver {
            /// Not in the table, because it names the table's errors.
            cuGetErrorName: Option<unsafe extern "C" fn(CUresult, &mut *const c_char) -> CUresult>,
            $( $name: Option<unsafe extern "C" fn($($ty),*) -> CUresult>, )*
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "as the driver has them")]
        impl Driver {
            fn of(library: *mut c_void) -> Self {
                Self {
                    // SAFETY: the type is the function's signature.
                    cuGetErrorName: unsafe { find(library, "cuGetErrorName\0") },
                    // SAFETY: the table's types are the functions' signatures.
                    $( $name: unsafe { find(library, concat!(stringify!($name), "\0")) }, )*
                }
            }

            $(
                /// # Safety
                /// The requirements of the driver's documentation on the arguments.
                pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> Result<()> {
                    // SAFETY: guaranteed by the caller.
                    let code = self.$name.map_or(CUDA_ERROR_NOT_FOUND, |call| unsafe { call($($arg),*) });
                    if code == 0 { Ok(()) } else { Err(self.error(stringify!($name), code)) }
                }
            )*
        }
    };
}

driver! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: &mut c_int);
    fn cuDeviceGet(device: &mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: &mut [u8; 16], device: CUdevice);
    fn cuDeviceGetAttribute(value: &mut c_int, attribute: c_uint, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: &mut usize, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: &mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxCreate_v2(context: &mut CUcontext, flags: c_uint, device: CUdevice);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxSynchronize();
    fn cuModuleLoadData(module: &mut CUmodule, image: *const c_void);
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: &mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuStreamCreate(stream: &mut CUstream, flags: c_uint);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuEventCreate(event: &mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventElapsedTime(milliseconds: &mut f32, start: CUevent, end: CUevent);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuLaunchHostFunc(stream: CUstream, function: extern "C" fn(*mut c_void), data: *mut c_void);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
    fn cuStreamEndCapture(stream: CUstream, graph: &mut CUgraph);
    fn cuGraphInstantiateWithFlags(executable: &mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(executable: CUgraphExec);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: CUstream,
        params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    fn cuMemAlloc_v2(pointer: &mut CUdeviceptr, bytes: usize);
    fn cuMemAllocPitch_v2(
        pointer: &mut CUdeviceptr, pitch: &mut usize, width_bytes: usize, height: usize, element: c_uint,
    );
    fn cuMemAllocManaged(pointer: &mut CUdeviceptr, bytes: usize, flags: c_uint);
    fn cuMemFree_v2(pointer: CUdeviceptr);
    fn cuMemAllocAsync(pointer: &mut CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemAllocFromPoolAsync(pointer: &mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
    fn cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
    fn cuMemPoolCreate(pool: &mut CUmemoryPool, properties: &PoolProperties);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemGetAllocationGranularity(bytes: &mut usize, properties: &AllocationProperties, option: c_uint);
    fn cuMemAddressReserve(
        pointer: &mut CUdeviceptr, bytes: usize, alignment: usize, wish: CUdeviceptr, flags: c_ulonglong,
    );
    fn cuMemAddressFree(pointer: CUdeviceptr, bytes: usize);
    fn cuMemCreate(
        handle: &mut CUmemGenericAllocationHandle, bytes: usize, properties: &AllocationProperties,
        flags: c_ulonglong,
    );
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemMap(
        pointer: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    );
    fn cuMemUnmap(pointer: CUdeviceptr, bytes: usize);
    fn cuMemSetAccess(pointer: CUdeviceptr, bytes: usize, access: &Access, count: usize);
    fn cuArrayCreate_v2(array: &mut CUarray, description: &ArrayDescriptor);
    fn cuArrayDestroy(array: CUarray);
    fn cuMemHostAlloc(pointer: &mut usize, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(pointer: usize);
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpy2D_v2(copy: &Copy2D);
    fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, count: usize);
}

impl Driver {
    /// Opens the driver's library, by soname or path, for the life of the program.
    ///
    /// # Errors
    /// The loader's message if it cannot be opened, or that the library is not a CUDA driver.
    pub(crate) fn open(library: &CStr) -> anyhow::Result<Self> {
        // SAFETY: a NUL-terminated string that outlives the call.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: called by the thread whose dlopen failed.
            let words = unsafe { libc::dlerror() };
            if words.is_null() {
                bail!("cannot open {}", library.to_string_lossy());
            }
            // SAFETY: a string of the loader, valid until this thread's next call of it.
            let words = unsafe { CStr::from_ptr(words) };
            bail!("no CUDA driver: {}", words.to_string_lossy());
        }
        let driver = Self::of(handle);
        driver
            .cuInit
            .with_context(|| format!("{} is not a CUDA driver", library.to_string_lossy()))?;
        Ok(driver)
    }

    /// Initialises the driver. Must precede every other call.
    ///
    /// # Errors
    /// The driver's, such as no device or an unsuitable kernel module.
    pub(crate) fn initialise(&self) -> Result<()> {
        // SAFETY: no pointers are passed.
        unsafe { self.cuInit(0) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: CUresult) -> CudaError {
        let mut name = std::ptr::null();
        // SAFETY: stores the address of a static string, or null for an unknown code.
        let known = self
            .cuGetErrorName
            .is_some_and(|get| unsafe { get(code, &mut name) } == 0);
        let name = if known && !name.is_null() {
            // SAFETY: a static string of the driver.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("CUresult {code}")
        };
        CudaError { call, code, name }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Returns a function of the library, if it has it. `name` must end with a NUL.
///
/// # Safety
/// `F` must be the function's pointer type.
unsafe fn find<F: Copy>(library: *mut c_void, name: &str) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the library was opened and is never closed; the name is terminated.
    let address = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    // SAFETY: not null, and of this type as the caller guarantees.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}
