//! Table of the hooked functions. To hook another, add a row; `rows` describes the format.
//!
//! `../names.rs` compiles this file into the preload library's build script and the tests, which need the
//! names only: so a function is one row, and no list is checked against another or parsed as text. Therefore
//! this file names nothing outside `in_hook!` and `hooks!`.
#![allow(clippy::missing_safety_doc, reason = "they are the driver's")]

in_hook! {
    use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

    use gcgroup_abi::Kind;

    use crate::calls::vmm::Bound;
    use crate::calls::{array, capture, context, context_switch, graph_exec, graph_memory, green, host, ipc, linear, module, nvml, pool, query, report, sparse, streams, swap, synchronize, vmm};
    use crate::driver::cuda::*;
    use crate::driver;
    use crate::driver::nvml::*;
    use crate::hook;
        use crate::symbols;
}

hooks! {
    group Query "function lookups: the hook's wrappers for the driver's functions";

    fn cuGetProcAddress(
        symbol: *const c_char, pfn: *mut *mut c_void, driver_version: c_int, flags: u64,
    ) @11030 => |next| symbols::get_proc_address(ROWS, symbol, pfn, next);
    fn cuGetProcAddress_v2 [cuGetProcAddress_v2_ptsz](
        symbol: *const c_char, pfn: *mut *mut c_void, driver_version: c_int, flags: u64,
        symbol_found: *mut c_uint,
    ) @12000 => |next| symbols::get_proc_address(ROWS, symbol, pfn, next);

    group Tracked "first use of the driver, when the process registers";

    fn cuInit(flags: c_uint) @2000 => |next| hook::init(next);

    group Tracked "contexts: the thread's current device, and what is freed with them";

    fn cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) @2000 => |next| context::create(context, device, next);
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) @3020 => |next| context::create(context, device, next);
    fn cuCtxCreate_v3(
       context: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: c_int, flags: c_uint,
        device: CUdevice,
    ) @11040 => |next| context::create(context, device, next);
    fn cuCtxCreate_v4(
       context: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: c_uint, device: CUdevice,
    ) @12050 => |next| context::create(context, device, next);
    fn cuGLCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) @2000 => |next| context::create(context, device, next);
    fn cuGLCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) @3020 => |next| context::create(context, device, next);
    fn cuVDPAUCtxCreate(
        context: *mut CUcontext, flags: c_uint, device: CUdevice, vdp_device: c_uint, vdp_get_proc_address: *mut c_void,
    ) @3010 => |next| context::create(context, device, next);
    fn cuVDPAUCtxCreate_v2(
        context: *mut CUcontext, flags: c_uint, device: CUdevice, vdp_device: c_uint, vdp_get_proc_address: *mut c_void,
    ) @3020 => |next| context::create(context, device, next);
    fn cuCtxDestroy(context: CUcontext) @2000 => |next| streams::destroy_context(context, next);
    fn cuCtxDestroy_v2(context: CUcontext) @4000 => |next| streams::destroy_context(context, next);
    fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) @2000 => |next| streams::attach(context, next);
    fn cuCtxDetach(context: CUcontext) @2000 => |next| streams::detach(context, next);
    fn cuCtxPushCurrent(context: CUcontext) @2000 => |next| context_switch::switch(next);
    fn cuCtxPushCurrent_v2(context: CUcontext) @4000 => |next| context_switch::switch(next);
    fn cuCtxPopCurrent(context: *mut CUcontext) @2000 => |next| context_switch::switch(next);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext) @4000 => |next| context_switch::switch(next);
    fn cuCtxSetCurrent(context: CUcontext) @4000 => |next| context_switch::switch(next);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) @7000 => |next| context::retain_primary(context, device, next);
    fn cuDevicePrimaryCtxRelease(device: CUdevice) @7000 => |next| streams::release_primary(device, next);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) @11000 => |next| streams::release_primary(device, next);
    fn cuDevicePrimaryCtxReset(device: CUdevice) @7000 => |next| streams::reset_primary(device, next);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) @11000 => |next| streams::reset_primary(device, next);

    group Tracked "green contexts: parts of a primary context, with streams of their own";

    fn cuGreenCtxCreate(
        context: *mut CUgreenCtx, description: *mut c_void, device: CUdevice, flags: c_uint,
    ) @12040 => |next| green::create(context, device, next);
    fn cuGreenCtxDestroy(context: CUgreenCtx) @12040 => |next| green::destroy(context, next);

    group Tracked "streams, which a drain waits for";

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) @2000 => |next| streams::create(stream, flags, next);
    fn cuStreamCreateWithPriority(
        stream: *mut CUstream, flags: c_uint, priority: c_int,
    ) @5050 => |next| streams::create(stream, flags, next);
    fn cuGreenCtxStreamCreate(
        stream: *mut CUstream, context: CUgreenCtx, flags: c_uint, priority: c_int,
    ) @12050 => |next| streams::create_green(stream, next);
    fn cuStreamDestroy(stream: CUstream) @2000 => |next| streams::destroy(stream, next);
    fn cuStreamDestroy_v2(stream: CUstream) @4000 => |next| streams::destroy(stream, next);

    group Tracked "stream captures: captured submissions do not run";

    fn cuStreamBeginCapture [cuStreamBeginCapture_ptsz](
        stream: CUstream,
    ) @10000 => |next| capture::begin(on(stream), next);
    fn cuStreamBeginCapture_v2 [cuStreamBeginCapture_v2_ptsz](
        stream: CUstream, mode: c_uint,
    ) @10010 => |next| capture::begin(on(stream), next);
    fn cuStreamBeginCaptureToGraph [cuStreamBeginCaptureToGraph_ptsz](
        stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: c_uint,
    ) @12030 => |next| capture::begin(on(stream), next);
    fn cuStreamBeginRecaptureToGraph [cuStreamBeginRecaptureToGraph_ptsz](
        stream: CUstream, mode: c_uint, graph: CUgraph, callback: *mut c_void, user_data: *mut c_void,
    ) @13030 => |next| capture::begin(on(stream), next);
    fn cuStreamEndCapture [cuStreamEndCapture_ptsz](
        stream: CUstream, graph: *mut CUgraph,
    ) @10000 => |next| capture::end(on(stream), next);

    group Tracked "waits, after which submitted work has completed and pools may shrink";

    fn cuCtxSynchronize() @2000 => |next| synchronize::synchronize(next);
    fn cuCtxSynchronize_v2(context: CUcontext) @13000 => |next| pool::synchronize_all(next);
    fn cuStreamSynchronize [cuStreamSynchronize_ptsz](
        stream: CUstream,
    ) @2000 => |next| pool::synchronize(on(stream), next);
    fn cuEventSynchronize(event: CUevent) @2000 => |next| pool::synchronize_all(next);

    group Charged "linear memory";

    fn cuMemAlloc(address: *mut CUdeviceptr_v1, bytes: c_uint) @2000 => |next| linear::alloc(Kind::Linear, address, bytes, next);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) @3020 => |next| linear::alloc(Kind::Linear, address, bytes as u64, next);
    fn cuMemAllocPitch(
        address: *mut CUdeviceptr_v1, pitch: *mut c_uint, width_in_bytes: c_uint, height: c_uint,
        element_size_bytes: c_uint,
    ) @2000 => |next| linear::alloc_pitched(address, pitch, width_in_bytes, height, next);
    fn cuMemAllocPitch_v2(
        address: *mut CUdeviceptr, pitch: *mut usize, width_in_bytes: usize, height: usize,
        element_size_bytes: c_uint,
    ) @3020 => |next| linear::alloc_pitched(address, pitch, width_in_bytes as u64, height as u64, next);
    fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint) @6000 => |next| linear::alloc(Kind::Managed, address, bytes as u64, next);
    fn cuMemFree(address: CUdeviceptr_v1) @2000 => |next| linear::free(address, next);
    fn cuMemFree_v2(address: CUdeviceptr) @3020 => |next| linear::free(address, next);

    group Tracked "memory of other processes and drivers: shown, charged to its owner";

    fn cuIpcGetMemHandle(
        handle: *mut CUipcMemHandle, address: CUdeviceptr,
    ) @4010 => |next| ipc::export(address, next);
    fn cuIpcOpenMemHandle(
        address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
    ) @4010 => |next| ipc::open(address, next);
    fn cuIpcOpenMemHandle_v2(
        address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
    ) @11000 => |next| ipc::open(address, next);
    fn cuIpcCloseMemHandle(address: CUdeviceptr) @4010 => |next| ipc::close(address, next);
    fn cuMemPoolImportPointer(
        address: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut c_void,
    ) @11020 => |next| ipc::import_pointer(address, next);
    fn cuImportExternalMemory(
        memory: *mut CUexternalMemory, description: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    ) @10000 => |next| ipc::import_external(memory, description, next);
    fn cuDestroyExternalMemory(memory: CUexternalMemory) @10000 => |next| ipc::destroy_external(memory, next);

    group Tracked "page-locked host memory: counted, not charged";

    fn cuMemAllocHost(address: *mut *mut c_void, bytes: c_uint) @2000 => |next| host::alloc(address, bytes, next);
    fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) @3020 => |next| host::alloc(address, bytes as u64, next);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) @2020 => |next| host::alloc(address, bytes as u64, next);
    fn cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint) @4000
        => |next| host::register(address, bytes as u64, next);
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) @6050
        => |next| host::register(address, bytes as u64, next);
    fn cuMemHostUnregister(address: *mut c_void) @4000 => |next| host::free(address, next);
    fn cuMemFreeHost(address: *mut c_void) @2000 => |next| host::free(address, next);

    group Charged "memory pools, by their reserved size";

    fn cuMemAllocAsync [cuMemAllocAsync_ptsz](
        address: *mut CUdeviceptr, bytes: usize, stream: CUstream,
    ) @11020 => |next| pool::alloc(address, bytes, on(stream), next);
    fn cuMemAllocFromPoolAsync [cuMemAllocFromPoolAsync_ptsz](
        address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream,
    ) @11020 => |next| pool::alloc_from_pool(address, bytes, pool, on(stream), next);
    fn cuMemFreeAsync [cuMemFreeAsync_ptsz](address: CUdeviceptr, stream: CUstream) @11020 => |next| pool::free(address, on(stream), next);
    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) @11020 => |next| pool::set_current(next);
    fn cuMemSetMemPool(
        location: *mut CUmemLocation, kind: c_uint, pool: CUmemoryPool,
    ) @13000 => |next| pool::set_current(next);
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps) @11020 => |next| pool::create(pool, pool_props, next);
    fn cuMemPoolDestroy(pool: CUmemoryPool) @11020 => |next| pool::destroy(pool, next);
    fn cuMemPoolImportFromShareableHandle(
        pool: *mut CUmemoryPool, handle: *mut c_void, handle_type: c_uint, flags: c_ulonglong,
    ) @11020 => |next| pool::import(pool, next);
    fn cuMemPoolExportToShareableHandle(
        handle: *mut c_void, pool: CUmemoryPool, handle_type: c_uint, flags: c_ulonglong,
    ) @11020 => |next| pool::export(pool, next);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) @11020 => |next| pool::change(pool, next);
    fn cuMemPoolSetAttribute(
        pool: CUmemoryPool, attr: c_uint, value: *mut c_void,
    ) @11020 => |next| pool::change(pool, next);

    group Charged "memory of graphs, by its reserved size";

    fn cuGraphAddMemAllocNode(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    ) @11040 => |next| graph_memory::add_allocation(next);
    fn cuGraphAddNode(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        params: *mut CUgraphNodeParams,
    ) @12020 => |next| graph_memory::add(params, next);
    fn cuGraphAddNode_v2(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, params: *mut CUgraphNodeParams,
    ) @12030 => |next| graph_memory::add(params, next);
    fn cuGraphAddNode_v3(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, params: *mut CUgraphNodeParams,
    ) @13040 => |next| graph_memory::add(params, next);
    fn cuGraphInstantiate(
        exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char, log_size: usize,
    ) @10000 => |next| graph_memory::instantiate(exec, graph, 0, &|| graph_exec::instantiate(exec, graph, next));
    fn cuGraphInstantiate_v2(
        exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log: *mut c_char, log_size: usize,
    ) @11000 => |next| graph_memory::instantiate(exec, graph, 0, &|| graph_exec::instantiate(exec, graph, next));
    fn cuGraphInstantiateWithFlags(
        exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong,
    ) @11040 => |next| graph_memory::instantiate(exec, graph, flags, &|| graph_exec::instantiate(exec, graph, next));
    fn cuGraphInstantiateWithParams [cuGraphInstantiateWithParams_ptsz](
        exec: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) @12000 => |next| graph_memory::instantiate_with(exec, graph, params, &|| graph_exec::instantiate(exec, graph, next));
    fn cuGraphExecUpdate(
        exec: CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, result: *mut c_uint,
    ) @10020 => |next| graph_memory::update(exec, graph, next);
    fn cuGraphExecUpdate_v2(
        exec: CUgraphExec, graph: CUgraph, result: *mut c_void,
    ) @12000 => |next| graph_memory::update(exec, graph, next);
    fn cuGraphExecDestroy(exec: CUgraphExec) @10000 => |next| graph_memory::destroy(exec, &|| graph_exec::destroy(exec, next));
    fn cuGraphUpload [cuGraphUpload_ptsz](exec: CUgraphExec, stream: CUstream) @11010 => |next| graph_memory::upload(exec, next);
    fn cuDeviceGraphMemTrim(device: CUdevice) @11040 => |next| graph_memory::trim(device, next);

    group Tracked "modules, libraries and limits of contexts: memory of unknown size, which is measured";

    fn cuModuleLoad(module: *mut CUmodule, name: *const c_char) @2000 => |next| module::load(module, next);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) @2000 => |next| module::load(module, next);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut c_uint,
        option_values: *mut *mut c_void,
    ) @2010 => |next| module::load(module, next);
    fn cuModuleLoadFatBinary(
        module: *mut CUmodule, fat_cubin: *const c_void,
    ) @2000 => |next| module::load(module, next);
    fn cuModuleUnload(module: CUmodule) @2000 => |next| module::unload(module, next);
    fn cuModuleGetFunction(
        function: *mut CUfunction, module: CUmodule, name: *const c_char,
    ) @2000 => |next| module::use_module(module, next);
    fn cuModuleEnumerateFunctions(
        functions: *mut CUfunction, num_functions: c_uint, module: CUmodule,
    ) @12040 => |next| module::functions(functions, num_functions, module, next);
    fn cuModuleGetGlobal(
        address: *mut c_uint, bytes: *mut c_uint, module: CUmodule, name: *const c_char,
    ) @2000 => |next| module::use_module(module, next);
    fn cuModuleGetGlobal_v2(
        address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char,
    ) @3020 => |next| module::use_module(module, next);
    fn cuModuleGetTexRef(
        reference: *mut *mut c_void, module: CUmodule, name: *const c_char,
    ) @2000 => |next| module::use_module(module, next);
    fn cuModuleGetSurfRef(
        reference: *mut *mut c_void, module: CUmodule, name: *const c_char,
    ) @3000 => |next| module::use_module(module, next);
    fn cuFuncLoad(function: CUfunction) @12040 => |next| module::load_function(function, next);
    fn cuLibraryGetModule(
        module: *mut CUmodule, library: CUlibrary,
    ) @12000 => |next| module::get_module(library, next);
    fn cuKernelGetFunction(
        function: *mut CUfunction, kernel: CUkernel,
    ) @12000 => |next| module::get_function(kernel, next);

    fn cuLibraryLoadData(
        library: *mut CUlibrary, code: *const c_void, jit_options: *mut c_uint, jit_option_values: *mut *mut c_void,
        num_jit_options: c_uint, library_options: *mut c_uint, library_option_values: *mut *mut c_void,
        num_library_options: c_uint,
    ) @12000 => |next| module::load_library(library, next);
    fn cuLibraryLoadFromFile(
        library: *mut CUlibrary, name: *const c_char, jit_options: *mut c_uint, jit_option_values: *mut *mut c_void,
        num_jit_options: c_uint, library_options: *mut c_uint, library_option_values: *mut *mut c_void,
        num_library_options: c_uint,
    ) @12000 => |next| module::load_library(library, next);
    fn cuLibraryUnload(library: CUlibrary) @12000 => |next| module::unload_library(library, next);
    fn cuLibraryGetKernel(
        kernel: *mut CUkernel, library: CUlibrary, name: *const c_char,
    ) @12000 => |next| module::get_kernel(kernel, library, next);
    fn cuLibraryEnumerateKernels(
        kernels: *mut CUkernel, num_kernels: c_uint, library: CUlibrary,
    ) @12040 => |next| module::kernels(kernels, num_kernels, library, next);
    fn cuLibraryGetGlobal(
        address: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
    ) @12000 => |next| module::use_library(library, next);
    fn cuLibraryGetManaged(
        address: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
    ) @12000 => |next| module::use_library(library, next);
    fn cuLibraryGetUnifiedFunction(
        function: *mut *mut c_void, library: CUlibrary, symbol: *const c_char,
    ) @12000 => |next| module::use_library(library, next);
    fn cuCtxSetLimit(limit: c_uint, value: usize) @3010 => |next| module::set_limit(limit, value, next);

    group Charged "physical memory by handle";

    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp,
        flags: c_ulonglong,
    ) @10020 => |next| vmm::create(handle, size, prop, next);
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) @10020 => |next| vmm::release(handle, next);
    fn cuMemMap(
        ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) @10020 => |next| vmm::map(ptr, size, handle, next);
    fn cuMemUnmap(ptr: CUdeviceptr, size: usize) @10020 => |next| vmm::unmap(ptr, size, next);
    fn cuMemRetainAllocationHandle(
        handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void,
    ) @11000 => |next| swap::pin(CUdeviceptr(addr.addr() as u64), &|| vmm::retain(handle, addr.addr() as u64, next));
    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void, sh_handle_type: c_uint,
    ) @10020 => |next| vmm::import(handle, next);
    fn cuMemExportToShareableHandle(
        shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle, handle_type: c_uint,
        flags: c_ulonglong,
    ) @10020 => |next| vmm::export(handle, next);

    fn cuMulticastCreate(
        handle: *mut CUmemGenericAllocationHandle, properties: *const c_void,
    ) @12010 => |next| vmm::create_multicast(handle, next);
    fn cuMulticastBindMem(
        to: CUmemGenericAllocationHandle, offset: usize, memory: CUmemGenericAllocationHandle,
        memory_offset: usize, size: usize, flags: c_ulonglong,
    ) @12010 => |next| vmm::bind(to, None, offset, Bound::Memory(memory), size, next);
    fn cuMulticastBindMem_v2(
        to: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, memory: CUmemGenericAllocationHandle,
        memory_offset: usize, size: usize, flags: c_ulonglong,
    ) @13010 => |next| vmm::bind(to, Some(device), offset, Bound::Memory(memory), size, next);
    fn cuMulticastBindAddr(
        to: CUmemGenericAllocationHandle, offset: usize, address: CUdeviceptr, size: usize, flags: c_ulonglong,
    ) @12010 => |next| swap::pin(address, &|| vmm::bind(to, None, offset, Bound::Mapped(address), size, next));
    fn cuMulticastBindAddr_v2(
        to: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, address: CUdeviceptr, size: usize,
        flags: c_ulonglong,
    ) @13010 => |next| swap::pin(address, &|| vmm::bind(to, Some(device), offset, Bound::Mapped(address), size, next));
    fn cuMulticastUnbind(
        from: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, size: usize,
    ) @12010 => |next| vmm::unbind(from, device, offset, size, next);

    group Charged "physical memory held by sparse arrays";

    fn cuMemMapArrayAsync [cuMemMapArrayAsync_ptsz](
        list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream,
    ) @11010 => |next| sparse::map(list, count, on(stream), next);

    group Query "addresses and attributes of memory that swap can move";

    fn cuMemGetAddressRange_v2(
        base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr,
    ) @3020 => |next| query::range(base, bytes, address, next);
    fn cuPointerGetAttribute(
        data: *mut c_void, attribute: c_uint, address: CUdeviceptr,
    ) @4000 => |next| query::attribute(data, attribute, address, next);
    fn cuPointerGetAttributes(
        count: c_uint, attributes: *mut c_uint, data: *mut *mut c_void, address: CUdeviceptr,
    ) @7000 => |next| query::attributes(count, attributes, data, address, next);

    group Tracked "peers that may use memory that swap can move";

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) @4000 => |next| swap::enable_peer(peer, next);

    group Tracked "calls that keep memory in place, which swap could move";

    fn cuPointerSetAttribute(
        value: *const c_void, attribute: c_uint, address: CUdeviceptr,
    ) @6000 => |next| swap::set_attribute(value, attribute, address, next);
    fn cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: CUdeviceptr, bytes: usize, kind: c_uint, flags: c_ulonglong,
    ) @11070 => |next| ipc::export(address, &|| swap::pin(address, next));

    group Tracked "words that the GPU writes or waits for, possibly in memory that swap can move";

    fn cuStreamWriteValue32 [cuStreamWriteValue32_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_uint, flags: c_uint,
    ) @8000 => |next| swap::touch(next);
    fn cuStreamWriteValue32_v2 [cuStreamWriteValue32_v2_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_uint, flags: c_uint,
    ) @11070 => |next| swap::touch(next);
    fn cuStreamWriteValue64 [cuStreamWriteValue64_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_ulonglong, flags: c_uint,
    ) @9000 => |next| swap::touch(next);
    fn cuStreamWriteValue64_v2 [cuStreamWriteValue64_v2_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_ulonglong, flags: c_uint,
    ) @11070 => |next| swap::touch(next);
    fn cuStreamWaitValue32 [cuStreamWaitValue32_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_uint, flags: c_uint,
    ) @8000 => |next| swap::touch(next);
    fn cuStreamWaitValue32_v2 [cuStreamWaitValue32_v2_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_uint, flags: c_uint,
    ) @11070 => |next| swap::touch(next);
    fn cuStreamWaitValue64 [cuStreamWaitValue64_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_ulonglong, flags: c_uint,
    ) @9000 => |next| swap::touch(next);
    fn cuStreamWaitValue64_v2 [cuStreamWaitValue64_v2_ptsz](
        stream: CUstream, address: CUdeviceptr, value: c_ulonglong, flags: c_uint,
    ) @11070 => |next| swap::touch(next);
    fn cuStreamBatchMemOp [cuStreamBatchMemOp_ptsz](
        stream: CUstream, count: c_uint, operations: *mut c_void, flags: c_uint,
    ) @8000 => |next| swap::touch(next);
    fn cuStreamBatchMemOp_v2 [cuStreamBatchMemOp_v2_ptsz](
        stream: CUstream, count: c_uint, operations: *mut c_void, flags: c_uint,
    ) @11070 => |next| swap::touch(next);

    group Charged "arrays";

    fn cuArrayCreate(
        handle: *mut CUarray, allocate_array: *const CUDA_ARRAY_DESCRIPTOR_v1,
    ) @2000 => |next| array::create(handle, allocate_array, next);
    fn cuArrayCreate_v2(
        handle: *mut CUarray, allocate_array: *const CUDA_ARRAY_DESCRIPTOR,
    ) @3020 => |next| array::create(handle, allocate_array, next);
    fn cuArray3DCreate(
        handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
    ) @2000 => |next| array::create(handle, allocate_array, next);
    fn cuArray3DCreate_v2(
        handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR,
    ) @3020 => |next| array::create(handle, allocate_array, next);
    fn cuArrayDestroy(array: CUarray) @2000 => |next| array::destroy(array, next);
    fn cuMipmappedArrayCreate(
        handle: *mut CUmipmappedArray, mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR,
        num_mipmap_levels: c_uint,
    ) @5000 => |next| array::create_mipmapped(handle, mipmapped_array_desc, num_mipmap_levels, next);
    fn cuMipmappedArrayDestroy(mipmapped_array: CUmipmappedArray) @5000 => |next| array::destroy_mipmapped(mipmapped_array, next);

    group Query "memory sizes: the program's limit instead of the device's memory";

    fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) @2000 => |next| report::info(free, total, next);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) @3020 => |next| report::info(free, total, next);
    fn cuDeviceTotalMem(bytes: *mut c_uint, device: CUdevice) @2000 => |next| report::total(bytes, device, next);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) @3020 => |next| report::total(bytes, device, next);
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) @0 => |next| nvml::memory::info(device, memory, next);
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) @0 => |next| nvml::memory::info_v2(device, memory, next);

    group Query "devices: those of the process's group, numbered from 0";

    fn nvmlDeviceGetCount(count: *mut c_uint) @0 => |next| nvml::devices::count(count, next);
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) @0 => |next| nvml::devices::count(count, next);
    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut nvmlDevice_t) @0 => |next| nvml::devices::by_index(index, device, next);
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) @0 => |next| nvml::devices::by_index(index, device, next);
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_void, device: *mut nvmlDevice_t) @0 => |next| nvml::devices::found(device, next);
    fn nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, device: *mut nvmlDevice_t) @0 => |next| nvml::devices::found(device, next);
    fn nvmlDeviceGetHandleByPciBusId(address: *const c_void, device: *mut nvmlDevice_t) @0 => |next| nvml::devices::found(device, next);
    fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_void, device: *mut nvmlDevice_t) @0 => |next| nvml::devices::found(device, next);
    fn nvmlDeviceGetHandleBySerial(serial: *const c_void, device: *mut nvmlDevice_t) @0 => |next| nvml::devices::found(device, next);
    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: nvmlDevice_t, index: c_uint, instance: *mut nvmlDevice_t,
    ) @0 => |next| nvml::devices::found(instance, next);
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) @0 => |next| nvml::devices::index(device, index, next);
    fn nvmlDeviceGetTopologyNearestGpus(
        device: nvmlDevice_t, level: c_uint, count: *mut c_uint, devices: *mut nvmlDevice_t,
    ) @0 => |next| nvml::devices::nearest(device, level, count, devices, next);
    fn nvmlSystemGetTopologyGpuSet(
        cpu: c_uint, count: *mut c_uint, devices: *mut nvmlDevice_t,
    ) @0 => |next| nvml::devices::of_cpu(cpu, count, devices, next);

    group Query "processes on a device: a limited process sees only itself";

    fn nvmlDeviceGetComputeRunningProcesses(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v1_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetComputeRunningProcesses, true, next);
    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v2_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetComputeRunningProcesses_v2, true, next);
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v2_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetComputeRunningProcesses_v2, true, next);
    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v1_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetGraphicsRunningProcesses, false, next);
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v2_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetGraphicsRunningProcesses_v2, false, next);
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v2_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetGraphicsRunningProcesses_v2, false, next);
    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v1_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetMPSComputeRunningProcesses, false, next);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v2_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetMPSComputeRunningProcesses_v2, false, next);
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, list: *mut nvmlProcessInfo_v2_t,
    ) @0 => |next| nvml::processes::running(device, count, list, driver::nvmlDeviceGetMPSComputeRunningProcesses_v2, false, next);
    fn nvmlDeviceGetRunningProcessDetailList(
        device: nvmlDevice_t, list: *mut nvmlProcessDetailList_v1_t,
    ) @0 => |next| nvml::processes::details(device, list, next);

    group Gated "kernel launches";

    fn cuLaunchKernel [cuLaunchKernel_ptsz](
        function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
        block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
        stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void,
    ) @4000 => submit Kernel;
    fn cuLaunchKernelEx [cuLaunchKernelEx_ptsz](
        config: *const CUlaunchConfig, function: CUfunction, kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) @11060 => submit Kernel;
    fn cuLaunchCooperativeKernel [cuLaunchCooperativeKernel_ptsz](
        function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
        block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
        stream: CUstream, kernel_params: *mut *mut c_void,
    ) @9000 => submit Kernel;
    fn cuLaunchCooperativeKernelMultiDevice(
        launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: c_uint, flags: c_uint,
    ) @9000 => submit Kernel;
    fn cuLaunch(function: CUfunction) @2000 => submit Kernel;
    fn cuLaunchGrid(function: CUfunction, grid_width: c_int, grid_height: c_int) @2000 => submit Kernel;
    fn cuLaunchGridAsync(
        function: CUfunction, grid_width: c_int, grid_height: c_int, stream: CUstream,
    ) @2000 => submit Kernel;

    group Gated "graph launches, and the number of kernels in each";

    fn cuGraphLaunch [cuGraphLaunch_ptsz](
        exec: CUgraphExec, stream: CUstream,
    ) @10000 => |next| graph_exec::launch(exec, on(stream), &|| graph_memory::launch(exec, on(stream), next));

    group Gated "copies";

    fn cuMemcpy [cuMemcpy_ptds](dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) @4000 => submit Copy;
    fn cuMemcpy2D(copy: *const CUDA_MEMCPY2D_v1) @2000 => submit Copy;
    fn cuMemcpy2DAsync(copy: *const CUDA_MEMCPY2D_v1, stream: CUstream) @2000 => submit Copy;
    fn cuMemcpy2DAsync_v2 [cuMemcpy2DAsync_v2_ptsz](
        copy: *const CUDA_MEMCPY2D, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemcpy2DUnaligned(copy: *const CUDA_MEMCPY2D_v1) @2000 => submit Copy;
    fn cuMemcpy2DUnaligned_v2 [cuMemcpy2DUnaligned_v2_ptds](copy: *const CUDA_MEMCPY2D) @3020 => submit Copy;
    fn cuMemcpy2D_v2 [cuMemcpy2D_v2_ptds](copy: *const CUDA_MEMCPY2D) @3020 => submit Copy;
    fn cuMemcpy3D(copy: *const CUDA_MEMCPY3D_v1) @2000 => submit Copy;
    fn cuMemcpy3DAsync(copy: *const CUDA_MEMCPY3D_v1, stream: CUstream) @2000 => submit Copy;
    fn cuMemcpy3DAsync_v2 [cuMemcpy3DAsync_v2_ptsz](
        copy: *const CUDA_MEMCPY3D, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemcpy3DBatchAsync [cuMemcpy3DBatchAsync_ptsz](
        num_params: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong,
        stream: CUstream,
    ) @12080 => submit Copy;
    fn cuMemcpy3DBatchAsync_v2 [cuMemcpy3DBatchAsync_v2_ptsz](
        num_params: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream,
    ) @13000 => submit Copy;
    fn cuMemcpy3DPeer [cuMemcpy3DPeer_ptds](copy: *const CUDA_MEMCPY3D_PEER) @4000 => submit Copy;
    fn cuMemcpy3DPeerAsync [cuMemcpy3DPeerAsync_ptsz](
        copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream,
    ) @4000 => submit Copy;
    fn cuMemcpy3DWithAttributesAsync [cuMemcpy3DWithAttributesAsync_ptsz](
        op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream,
    ) @13020 => submit Copy;
    fn cuMemcpy3D_v2 [cuMemcpy3D_v2_ptds](copy: *const CUDA_MEMCPY3D) @3020 => submit Copy;
    fn cuMemcpyAsync [cuMemcpyAsync_ptsz](
        dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, stream: CUstream,
    ) @4000 => submit Copy;
    fn cuMemcpyAtoA(
        dst_array: CUarray, dst_offset: c_uint, src_array: CUarray, src_offset: c_uint, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyAtoA_v2 [cuMemcpyAtoA_v2_ptds](
        dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyAtoD(
        dst_device: CUdeviceptr_v1, src_array: CUarray, src_offset: c_uint, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyAtoD_v2 [cuMemcpyAtoD_v2_ptds](
        dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyAtoH(
        dst_host: *mut c_void, src_array: CUarray, src_offset: c_uint, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyAtoHAsync(
        dst_host: *mut c_void, src_array: CUarray, src_offset: c_uint, byte_count: c_uint, stream: CUstream,
    ) @2000 => submit Copy;
    fn cuMemcpyAtoHAsync_v2 [cuMemcpyAtoHAsync_v2_ptsz](
        dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemcpyAtoH_v2 [cuMemcpyAtoH_v2_ptds](
        dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyBatchAsync [cuMemcpyBatchAsync_ptsz](
        dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        attrs: *mut CUmemcpyAttributes, attr_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize,
        stream: CUstream,
    ) @12080 => submit Copy;
    fn cuMemcpyBatchAsync_v2 [cuMemcpyBatchAsync_v2_ptsz](
        dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        attrs: *mut CUmemcpyAttributes, attr_idxs: *mut usize, num_attrs: usize, stream: CUstream,
    ) @13000 => submit Copy;
    fn cuMemcpyDtoA(
        dst_array: CUarray, dst_offset: c_uint, src_device: CUdeviceptr_v1, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyDtoA_v2 [cuMemcpyDtoA_v2_ptds](
        dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyDtoD(
        dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyDtoDAsync(
        dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: c_uint, stream: CUstream,
    ) @3000 => submit Copy;
    fn cuMemcpyDtoDAsync_v2 [cuMemcpyDtoDAsync_v2_ptsz](
        dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemcpyDtoD_v2 [cuMemcpyDtoD_v2_ptds](
        dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyDtoH(
        dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyDtoHAsync(
        dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: c_uint, stream: CUstream,
    ) @2000 => submit Copy;
    fn cuMemcpyDtoHAsync_v2 [cuMemcpyDtoHAsync_v2_ptsz](
        dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemcpyDtoH_v2 [cuMemcpyDtoH_v2_ptds](
        dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyHtoA(
        dst_array: CUarray, dst_offset: c_uint, src_host: *const c_void, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyHtoAAsync(
        dst_array: CUarray, dst_offset: c_uint, src_host: *const c_void, byte_count: c_uint,
        stream: CUstream,
    ) @2000 => submit Copy;
    fn cuMemcpyHtoAAsync_v2 [cuMemcpyHtoAAsync_v2_ptsz](
        dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemcpyHtoA_v2 [cuMemcpyHtoA_v2_ptds](
        dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyHtoD(
        dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: c_uint,
    ) @2000 => submit Copy;
    fn cuMemcpyHtoDAsync(
        dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: c_uint, stream: CUstream,
    ) @2000 => submit Copy;
    fn cuMemcpyHtoDAsync_v2 [cuMemcpyHtoDAsync_v2_ptsz](
        dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemcpyHtoD_v2 [cuMemcpyHtoD_v2_ptds](
        dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
    ) @3020 => submit Copy;
    fn cuMemcpyPeer [cuMemcpyPeer_ptds](
        dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext,
        byte_count: usize,
    ) @4000 => submit Copy;
    fn cuMemcpyPeerAsync [cuMemcpyPeerAsync_ptsz](
        dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext,
        byte_count: usize, stream: CUstream,
    ) @4000 => submit Copy;
    fn cuMemcpyWithAttributesAsync [cuMemcpyWithAttributesAsync_ptsz](
        dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, stream: CUstream,
    ) @13020 => submit Copy;

    group Gated "sets";

    fn cuMemsetD16(dst_device: CUdeviceptr_v1, value: c_ushort, count: c_uint) @2000 => submit Copy;
    fn cuMemsetD16Async [cuMemsetD16Async_ptsz](
        dst_device: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemsetD16_v2 [cuMemsetD16_v2_ptds](
        dst_device: CUdeviceptr, value: c_ushort, count: usize,
    ) @3020 => submit Copy;
    fn cuMemsetD2D16(
        dst_device: CUdeviceptr_v1, dst_pitch: c_uint, value: c_ushort, width: c_uint, height: c_uint,
    ) @2000 => submit Copy;
    fn cuMemsetD2D16Async [cuMemsetD2D16Async_ptsz](
        dst_device: CUdeviceptr, dst_pitch: usize, value: c_ushort, width: usize, height: usize,
        stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemsetD2D16_v2 [cuMemsetD2D16_v2_ptds](
        dst_device: CUdeviceptr, dst_pitch: usize, value: c_ushort, width: usize, height: usize,
    ) @3020 => submit Copy;
    fn cuMemsetD2D32(
        dst_device: CUdeviceptr_v1, dst_pitch: c_uint, value: c_uint, width: c_uint, height: c_uint,
    ) @2000 => submit Copy;
    fn cuMemsetD2D32Async [cuMemsetD2D32Async_ptsz](
        dst_device: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize,
        stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemsetD2D32_v2 [cuMemsetD2D32_v2_ptds](
        dst_device: CUdeviceptr, dst_pitch: usize, value: c_uint, width: usize, height: usize,
    ) @3020 => submit Copy;
    fn cuMemsetD2D8(
        dst_device: CUdeviceptr_v1, dst_pitch: c_uint, value: c_uchar, width: c_uint, height: c_uint,
    ) @2000 => submit Copy;
    fn cuMemsetD2D8Async [cuMemsetD2D8Async_ptsz](
        dst_device: CUdeviceptr, dst_pitch: usize, value: c_uchar, width: usize, height: usize,
        stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemsetD2D8_v2 [cuMemsetD2D8_v2_ptds](
        dst_device: CUdeviceptr, dst_pitch: usize, value: c_uchar, width: usize, height: usize,
    ) @3020 => submit Copy;
    fn cuMemsetD32(dst_device: CUdeviceptr_v1, value: c_uint, count: c_uint) @2000 => submit Copy;
    fn cuMemsetD32Async [cuMemsetD32Async_ptsz](
        dst_device: CUdeviceptr, value: c_uint, count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemsetD32_v2 [cuMemsetD32_v2_ptds](
        dst_device: CUdeviceptr, value: c_uint, count: usize,
    ) @3020 => submit Copy;
    fn cuMemsetD8(dst_device: CUdeviceptr_v1, value: c_uchar, count: c_uint) @2000 => submit Copy;
    fn cuMemsetD8Async [cuMemsetD8Async_ptsz](
        dst_device: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream,
    ) @3020 => submit Copy;
    fn cuMemsetD8_v2 [cuMemsetD8_v2_ptds](
        dst_device: CUdeviceptr, value: c_uchar, count: usize,
    ) @3020 => submit Copy;

    group Gated "prefetch, discard and decompression, and copies over a fabric";

    fn cuMemPrefetchAsync [cuMemPrefetchAsync_ptsz](
        address: CUdeviceptr, count: usize, to: CUdevice, stream: CUstream,
    ) @8000 => submit Copy;
    fn cuMemPrefetchAsync_v2 [cuMemPrefetchAsync_v2_ptsz](
        address: CUdeviceptr, count: usize, to: CUmemLocation, flags: c_uint, stream: CUstream,
    ) @12020 => submit Copy;
    fn cuMemPrefetchBatchAsync [cuMemPrefetchBatchAsync_ptsz](
        addresses: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        location_idxs: *mut usize, num_locations: usize, flags: c_ulonglong, stream: CUstream,
    ) @13000 => submit Copy;
    fn cuMemDiscardBatchAsync [cuMemDiscardBatchAsync_ptsz](
        addresses: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: c_ulonglong, stream: CUstream,
    ) @13000 => submit Copy;
    fn cuMemDiscardAndPrefetchBatchAsync [cuMemDiscardAndPrefetchBatchAsync_ptsz](
        addresses: *mut CUdeviceptr, sizes: *mut usize, count: usize, locations: *mut CUmemLocation,
        location_idxs: *mut usize, num_locations: usize, flags: c_ulonglong, stream: CUstream,
    ) @13000 => submit Copy;
    fn cuMemBatchDecompressAsync [cuMemBatchDecompressAsync_ptsz](
        params: *mut CUmemDecompressParams, count: usize, flags: c_uint, error_index: *mut usize, stream: CUstream,
    ) @12060 => submit Copy;
    fn cuFabricCpyBatchAsync [cuFabricCpyBatchAsync_ptsz](
        num_ops: usize, op_list: *mut CUDA_FABRIC_COPY_BATCH_OP, flags: c_ulonglong, stream: CUstream,
    ) @13050 => submit Copy;
}
