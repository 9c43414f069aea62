//! Driver functions that the hook calls itself. These calls never reach the hook's own wrappers.
//!
//! To call another function, add a row. Arguments that the driver writes to are `&mut`; all others are passed
//! as they are.
#![allow(non_snake_case, reason = "the driver's spelling")]
#![allow(clippy::missing_errors_doc, reason = "they are the driver's")]

use std::ffi::{c_int, c_uint};

use super::cuda::*;
use super::nvml::*;

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $(
            $(#[$doc])*
            /// Calls the driver's function; `CUDA_ERROR_NOT_FOUND` if the driver does not have it.
            // Never inlined: the call costs nothing beside the driver's own work.
            #[inline(never)]
            #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
            pub(crate) fn $name($($arg: $ty),*) -> CUresult {
                static REAL: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
                const NAME: &std::ffi::CStr = $crate::driver::library::c_name!($name);
                let address = $crate::driver::library::call_address(&REAL, NAME).ok_or(CUerror::NOT_FOUND)?;
                type Function = unsafe extern "C" fn($($ty),*) -> CUresult;
                // SAFETY: the address of the driver's function of this name, which has this signature.
                let real = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) };
                $crate::driver::thread::hold();
                // SAFETY: memory that it writes to is borrowed for the call, and large enough by its type.
                let result = unsafe { real($($arg),*) };
                $crate::driver::trace::own_call(NAME, result)
            }
        )*
    };
}

calls! {
    fn cuDriverGetVersion(version: &mut c_int);
    fn cuDeviceGetCount(count: &mut c_int);
    /// Since CUDA 11.4. In MIG mode it returns the UUID of the instance.
    fn cuDeviceGetUuid_v2(uuid: &mut CUuuid, device: CUdevice);
    fn cuDeviceGetUuid(uuid: &mut CUuuid, device: CUdevice);
    fn cuCtxGetDevice(device: &mut CUdevice);
    fn cuCtxGetCurrent(context: &mut CUcontext);
    fn cuCtxGetFlags(flags: &mut c_uint);
    /// Since CUDA 12.1.
    fn cuCtxSetFlags(flags: c_uint);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: &mut CUcontext);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxGetLimit(value: &mut usize, limit: c_uint);
    fn cuCtxSetLimit(limit: c_uint, value: usize);
    fn cuModuleUnload(module: CUmodule);
    fn cuLibraryUnload(library: CUlibrary);
    /// Since CUDA 12.4.
    fn cuModuleGetFunctionCount(count: &mut c_uint, module: CUmodule);
    /// Since CUDA 12.4.
    fn cuLibraryGetKernelCount(count: &mut c_uint, library: CUlibrary);
    fn cuKernelGetFunction(function: &mut CUfunction, kernel: CUkernel);
    /// Since CUDA 12.4.
    fn cuFuncLoad(function: CUfunction);
    fn cuGreenCtxDestroy(context: CUgreenCtx);
    fn cuDevicePrimaryCtxRetain(context: &mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    /// Returns the context by which other calls refer to a green context.
    fn cuCtxFromGreenCtx(context: &mut CUcontext, green: CUgreenCtx);
    /// Records everything submitted to the context; since CUDA 12.5. Invalidates a capture in progress on one
    /// of its streams.
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent);
    /// Records everything submitted to the green context, whichever context is current; `event` belongs to
    /// its primary context.
    fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent);
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: &mut c_uint, is_active: &mut c_int);
    fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize);

    fn cuEventCreate(event: &mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventElapsedTime(milliseconds: &mut f32, start: CUevent, end: CUevent);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamIsCapturing(stream: CUstream, status: &mut c_uint);
    fn cuStreamGetCtx(stream: CUstream, context: &mut CUcontext);
    fn cuStreamGetDevice(stream: CUstream, device: &mut CUdevice);
    /// `mode` is exchanged for the thread's previous mode.
    fn cuThreadExchangeStreamCaptureMode(mode: &mut c_uint);

    /// `address` is a pointer.
    fn cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint);
    /// `address` is a pointer.
    fn cuMemHostUnregister(address: usize);
    fn cuMemHostGetDevicePointer_v2(device: &mut CUdeviceptr, address: usize, flags: c_uint);
    fn cuStreamWriteValue32(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
    fn cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);

    /// With `nodes`, there must be room for `count` of them.
    fn cuGraphGetNodes(graph: CUgraph, nodes: Option<&mut CUgraphNode>, count: &mut usize);
    fn cuGraphNodeGetType(node: CUgraphNode, kind: &mut c_uint);
    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: &mut CUgraph);
    fn cuFuncGetModule(module: &mut CUmodule, function: CUfunction);

    fn cuDeviceGetAttribute(value: &mut c_int, attribute: c_uint, device: CUdevice);
    fn cuCtxSynchronize();
    fn cuStreamCreate(stream: &mut CUstream, flags: c_uint);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);

    fn cuMemAddressReserve(
        address: &mut CUdeviceptr,
        bytes: usize,
        alignment: usize,
        wanted: CUdeviceptr,
        flags: u64,
    );
    fn cuMemAddressFree(address: CUdeviceptr, bytes: usize);
    fn cuMemCreate(
        handle: &mut CUmemGenericAllocationHandle,
        bytes: usize,
        properties: &CUmemAllocationProp,
        flags: u64,
    );
    fn cuMemMap(
        address: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    );
    fn cuMemUnmap(address: CUdeviceptr, bytes: usize);
    /// `count` is at most 2.
    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: &[CUmemAccessDesc; 2], count: usize);

    fn cuDeviceGetMemPool(pool: &mut CUmemoryPool, device: CUdevice);
    fn cuDeviceGetDefaultMemPool(pool: &mut CUmemoryPool, device: CUdevice);
    /// For attributes of 64 bits.
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_uint, value: &mut u64);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep_bytes: usize);
    /// For attributes of 64 bits.
    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: c_uint, value: &mut u64);
    fn cuDeviceGraphMemTrim(device: CUdevice);
    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: &mut CUDA_MEM_ALLOC_NODE_PARAMS);
    fn cuMemGetAllocationPropertiesFromHandle(
        properties: &mut CUmemAllocationProp,
        handle: CUmemGenericAllocationHandle,
    );
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemGetAddressRange_v2(base: &mut CUdeviceptr, bytes: &mut usize, address: CUdeviceptr);
    fn cuArrayGetMemoryRequirements(
        requirements: &mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
        array: CUarray,
        device: CUdevice,
    );
    fn cuMipmappedArrayGetMemoryRequirements(
        requirements: &mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
        array: CUmipmappedArray,
        device: CUdevice,
    );
    fn cuArray3DCreate_v2(array: &mut CUarray, description: &CUDA_ARRAY3D_DESCRIPTOR);
    fn cuMipmappedArrayCreate(
        array: &mut CUmipmappedArray,
        description: &CUDA_ARRAY3D_DESCRIPTOR,
        levels: c_uint,
    );
    fn cuArrayDestroy(array: CUarray);
    fn cuMipmappedArrayDestroy(array: CUmipmappedArray);
    /// For attributes of up to 64 bits; `value` must be zero before the call.
    fn cuPointerGetAttribute(value: &mut u64, attribute: c_uint, address: CUdeviceptr);

    fn nvmlDeviceGetCount_v2(count: &mut c_uint);
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: &mut nvmlDevice_t);
    /// Writes at most `length` bytes to `text`, the last of them zero.
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, text: &mut [u8; 96], length: c_uint);
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: &mut c_uint);
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, number: c_uint, instance: &mut nvmlDevice_t);

    /// Writes the number of devices if `count` is 0, else that many devices.
    fn nvmlDeviceGetTopologyNearestGpus(
        device: nvmlDevice_t,
        level: c_uint,
        count: &mut c_uint,
        list: &mut [nvmlDevice_t; ROOM],
    );
    /// Writes the number of devices if `count` is 0, else that many devices.
    fn nvmlSystemGetTopologyGpuSet(cpu: c_uint, count: &mut c_uint, list: &mut [nvmlDevice_t; ROOM]);

    // Lists: `count` has the room in entries, at most `ROOM`, and receives the number of entries.

    fn nvmlDeviceGetComputeRunningProcesses(
        device: nvmlDevice_t,
        count: &mut c_uint,
        list: &mut [nvmlProcessInfo_v1_t; ROOM],
    );
    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: nvmlDevice_t,
        count: &mut c_uint,
        list: &mut [nvmlProcessInfo_v2_t; ROOM],
    );
    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: nvmlDevice_t,
        count: &mut c_uint,
        list: &mut [nvmlProcessInfo_v1_t; ROOM],
    );
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: nvmlDevice_t,
        count: &mut c_uint,
        list: &mut [nvmlProcessInfo_v2_t; ROOM],
    );
    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: nvmlDevice_t,
        count: &mut c_uint,
        list: &mut [nvmlProcessInfo_v1_t; ROOM],
    );
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: nvmlDevice_t,
        count: &mut c_uint,
        list: &mut [nvmlProcessInfo_v2_t; ROOM],
    );
    /// The array in `list` must have the room that `list` says.
    fn nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, list: &mut nvmlProcessDetailList_v1_t);
}
