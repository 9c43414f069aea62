//! Queries about devices and the driver.

use std::ffi::{c_char, c_void};

use simgpu::{Driver, Quirk};

use crate::abi::{CUcontext, CUdevice, CUerror, CUresult, CUuuid, Out, Raw, Text};
use crate::call::{Call, driver};
use crate::checkpoint;
use crate::error::{self, INVALID_DEVICE, INVALID_VALUE, NOT_FOUND, PEER_ACCESS_ALREADY_ENABLED};
use crate::module::SHARED_AT_MOST;
use crate::process;

/// Device attributes by `CUdevice_attribute`: those of an H100 where known, 0 where a simulated card lacks a
/// feature. Attributes not listed are invalid.
const ATTRIBUTES: &[(u32, i32)] = &[
    (1, 1024),                          // MAX_THREADS_PER_BLOCK
    (2, 1024),                          // MAX_BLOCK_DIM_X
    (3, 1024),                          // MAX_BLOCK_DIM_Y
    (4, 64),                            // MAX_BLOCK_DIM_Z
    (5, i32::MAX),                      // MAX_GRID_DIM_X
    (6, 65_535),                        // MAX_GRID_DIM_Y
    (7, 65_535),                        // MAX_GRID_DIM_Z
    (8, 48 << 10),                      // MAX_SHARED_MEMORY_PER_BLOCK
    (9, 64 << 10),                      // TOTAL_CONSTANT_MEMORY
    (10, 32),                           // WARP_SIZE
    (11, i32::MAX),                     // MAX_PITCH
    (12, 64 << 10),                     // MAX_REGISTERS_PER_BLOCK
    (13, 1_980_000),                    // CLOCK_RATE, kHz
    (14, 512),                          // TEXTURE_ALIGNMENT
    (15, 1),                            // GPU_OVERLAP
    (17, 0),                            // KERNEL_EXEC_TIMEOUT
    (18, 0),                            // INTEGRATED
    (19, 1),                            // CAN_MAP_HOST_MEMORY
    (20, 0),                            // COMPUTE_MODE
    (21, 131_072),                      // MAXIMUM_TEXTURE1D_WIDTH
    (22, 131_072),                      // MAXIMUM_TEXTURE2D_WIDTH
    (23, 65_536),                       // MAXIMUM_TEXTURE2D_HEIGHT
    (24, 16_384),                       // MAXIMUM_TEXTURE3D_WIDTH
    (25, 16_384),                       // MAXIMUM_TEXTURE3D_HEIGHT
    (26, 16_384),                       // MAXIMUM_TEXTURE3D_DEPTH
    (27, 32_768),                       // MAXIMUM_TEXTURE2D_LAYERED_WIDTH
    (28, 32_768),                       // MAXIMUM_TEXTURE2D_LAYERED_HEIGHT
    (29, 2048),                         // MAXIMUM_TEXTURE2D_LAYERED_LAYERS
    (30, 512),                          // SURFACE_ALIGNMENT
    (31, 1),                            // CONCURRENT_KERNELS
    (32, 0),                            // ECC_ENABLED
    (34, 0),                            // PCI_DEVICE_ID
    (35, 0),                            // TCC_DRIVER
    (36, 2_619_000),                    // MEMORY_CLOCK_RATE, kHz
    (37, 5120),                         // GLOBAL_MEMORY_BUS_WIDTH
    (38, 50 << 20),                     // L2_CACHE_SIZE
    (39, 2048),                         // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 3),                            // ASYNC_ENGINE_COUNT
    (41, 1),                            // UNIFIED_ADDRESSING
    (42, 32_768),                       // MAXIMUM_TEXTURE1D_LAYERED_WIDTH
    (43, 2048),                         // MAXIMUM_TEXTURE1D_LAYERED_LAYERS
    (44, 1),                            // CAN_TEX2D_GATHER
    (45, 32_768),                       // MAXIMUM_TEXTURE2D_GATHER_WIDTH
    (46, 32_768),                       // MAXIMUM_TEXTURE2D_GATHER_HEIGHT
    (47, 8192),                         // MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE
    (48, 8192),                         // MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE
    (49, 32_768),                       // MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE
    (50, 0),                            // PCI_DOMAIN_ID
    (51, 32),                           // TEXTURE_PITCH_ALIGNMENT
    (52, 32_768),                       // MAXIMUM_TEXTURECUBEMAP_WIDTH
    (53, 32_768),                       // MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH
    (54, 2046),                         // MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS
    (55, 32_768),                       // MAXIMUM_SURFACE1D_WIDTH
    (56, 131_072),                      // MAXIMUM_SURFACE2D_WIDTH
    (57, 65_536),                       // MAXIMUM_SURFACE2D_HEIGHT
    (58, 16_384),                       // MAXIMUM_SURFACE3D_WIDTH
    (59, 16_384),                       // MAXIMUM_SURFACE3D_HEIGHT
    (60, 16_384),                       // MAXIMUM_SURFACE3D_DEPTH
    (61, 32_768),                       // MAXIMUM_SURFACE1D_LAYERED_WIDTH
    (62, 2048),                         // MAXIMUM_SURFACE1D_LAYERED_LAYERS
    (63, 32_768),                       // MAXIMUM_SURFACE2D_LAYERED_WIDTH
    (64, 32_768),                       // MAXIMUM_SURFACE2D_LAYERED_HEIGHT
    (65, 2048),                         // MAXIMUM_SURFACE2D_LAYERED_LAYERS
    (66, 32_768),                       // MAXIMUM_SURFACECUBEMAP_WIDTH
    (67, 32_768),                       // MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH
    (68, 2046),                         // MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS
    (69, 268_435_456),                  // MAXIMUM_TEXTURE1D_LINEAR_WIDTH
    (70, 131_072),                      // MAXIMUM_TEXTURE2D_LINEAR_WIDTH
    (71, 65_000),                       // MAXIMUM_TEXTURE2D_LINEAR_HEIGHT
    (72, 2_097_120),                    // MAXIMUM_TEXTURE2D_LINEAR_PITCH
    (73, 32_768),                       // MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH
    (74, 32_768),                       // MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT
    (75, simgpu::COMPUTE_CAPABILITY.0), // COMPUTE_CAPABILITY_MAJOR
    (76, simgpu::COMPUTE_CAPABILITY.1), // COMPUTE_CAPABILITY_MINOR
    (77, 32_768),                       // MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH
    (78, 1),                            // STREAM_PRIORITIES_SUPPORTED
    (79, 1),                            // GLOBAL_L1_CACHE_SUPPORTED
    (80, 1),                            // LOCAL_L1_CACHE_SUPPORTED
    (81, 228 << 10),                    // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    (82, 64 << 10),                     // MAX_REGISTERS_PER_MULTIPROCESSOR
    (83, 1),                            // MANAGED_MEMORY
    (84, 0),                            // MULTI_GPU_BOARD
    (85, 0),                            // MULTI_GPU_BOARD_GROUP_ID
    (86, 0),                            // HOST_NATIVE_ATOMIC_SUPPORTED
    (87, 2),                            // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
    (88, 0),                            // PAGEABLE_MEMORY_ACCESS
    (89, 1),                            // CONCURRENT_MANAGED_ACCESS
    (90, 1),                            // COMPUTE_PREEMPTION_SUPPORTED
    (91, 1),                            // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (92, 1),                            // CAN_USE_STREAM_MEM_OPS_V1
    (93, 1),                            // CAN_USE_64_BIT_STREAM_MEM_OPS_V1
    (94, 1),                            // CAN_USE_STREAM_WAIT_VALUE_NOR_V1
    (95, 1),                            // COOPERATIVE_LAUNCH
    (96, 0),                            // COOPERATIVE_MULTI_DEVICE_LAUNCH
    (97, SHARED_AT_MOST.cast_signed()), // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    (98, 1),                            // CAN_FLUSH_REMOTE_WRITES
    (99, 1),                            // HOST_REGISTER_SUPPORTED
    (100, 0),                           // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
    (101, 0),                           // DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
    (102, 1),                           // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (103, 1),                           // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (104, 0),                           // HANDLE_TYPE_WIN32_HANDLE_SUPPORTED
    (105, 0),                           // HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED
    (106, 32),                          // MAX_BLOCKS_PER_MULTIPROCESSOR
    (107, 0),                           // GENERIC_COMPRESSION_SUPPORTED
    (108, 32_768 << 10),                // MAX_PERSISTING_L2_CACHE_SIZE
    (109, 134_213_632),                 // MAX_ACCESS_POLICY_WINDOW_SIZE
    (110, 0),                           // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    (111, 1024),                        // RESERVED_SHARED_MEMORY_PER_BLOCK
    (112, 1),                           // SPARSE_CUDA_ARRAY_SUPPORTED
    (113, 1),                           // READ_ONLY_HOST_REGISTER_SUPPORTED
    (114, 0),                           // TIMELINE_SEMAPHORE_INTEROP_SUPPORTED
    (115, 1),                           // MEMORY_POOLS_SUPPORTED
    (116, 0),                           // GPU_DIRECT_RDMA_SUPPORTED
    (117, 0),                           // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
    (118, 0),                           // GPU_DIRECT_RDMA_WRITES_ORDERING
    (119, 1),                           // MEMPOOL_SUPPORTED_HANDLE_TYPES
    (120, 1),                           // CLUSTER_LAUNCH
    (121, 1),                           // DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED
    (122, 1),                           // CAN_USE_64_BIT_STREAM_MEM_OPS
    (123, 1),                           // CAN_USE_STREAM_WAIT_VALUE_NOR
    (124, 0),                           // DMA_BUF_SUPPORTED
    (125, 1),                           // IPC_EVENT_SUPPORTED
    (126, 4),                           // MEM_SYNC_DOMAIN_COUNT
    (127, 1),                           // TENSOR_MAP_ACCESS_SUPPORTED
    (128, 0),                           // HANDLE_TYPE_FABRIC_SUPPORTED
    (129, 1),                           // UNIFIED_FUNCTION_POINTERS
    (130, 0),                           // NUMA_CONFIG
    (131, -1),                          // NUMA_ID
    (132, 1),                           // MULTICAST_SUPPORTED
    (134, 0),                           // HOST_NUMA_ID
    (135, 0),                           // D3D12_CIG_SUPPORTED
    (136, 0),                           // MEM_DECOMPRESS_ALGORITHM_MASK
    (137, 0),                           // MEM_DECOMPRESS_MAXIMUM_LENGTH
    (138, 0),                           // VULKAN_CIG_SUPPORTED
    (139, 0x2330_10de),                 // GPU_PCI_DEVICE_ID
    (140, 0),                           // GPU_PCI_SUBSYSTEM_ID
    (141, 1),                           // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (142, 0),                           // HOST_NUMA_MEMORY_POOLS_SUPPORTED
    (143, 0),                           // HOST_NUMA_MULTINODE_IPC_SUPPORTED
    (144, 0),                           // HOST_MEMORY_POOLS_SUPPORTED
    (145, 1),                           // HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (146, 0),                           // HOST_ALLOC_DMA_BUF_SUPPORTED
    (147, 0),                           // ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED
    (148, 0),                           // ATOMIC_REDUCTION_SUPPORTED
];

const MULTIPROCESSOR_COUNT: u32 = 16;
const PCI_BUS_ID: u32 = 33;
const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: u32 = 110;
const GPU_DIRECT_RDMA_SUPPORTED: u32 = 116;
const MPS_ENABLED: u32 = 133;

fn attribute(call: Call, attribute: u32, device: CUdevice) -> Result<i32, CUerror> {
    let device = call.process.on_machine(device)?;
    let of_its_own = match attribute {
        MULTIPROCESSOR_COUNT => Some(device.multiprocessors()),
        PCI_BUS_ID => Some(device.pci_bus()),
        GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED | GPU_DIRECT_RDMA_SUPPORTED => {
            Some(u32::from(Quirk::Rdma.is_on() || Quirk::RdmaRefused.is_on()))
        }
        MPS_ENABLED => Some(u32::from(checkpoint::is_mps())),
        _ => None,
    };
    if let Some(value) = of_its_own {
        return i32::try_from(value).map_err(|_| INVALID_VALUE);
    }
    let row = ATTRIBUTES.iter().find(|(number, _)| *number == attribute);
    row.map(|(_, value)| *value).ok_or(INVALID_VALUE)
}

fn describe(number: u32, text: Out<*const c_char>, name: bool) -> CUresult {
    let Some((names, describes)) = error::describe(number) else {
        text.set_if(std::ptr::null());
        return Err(INVALID_VALUE);
    };
    text.set(if name { names } else { describes }.as_ptr())
}

driver! {
    early fn cuInit(flags: u32) { if flags == 0 { process::init() } else { Err(INVALID_VALUE) } }
    early fn cuDriverGetVersion(version: Out<i32>) { version.set(Driver::of_process().cuda_version) }
    early fn cuGetErrorName(number: u32, text: Out<*const c_char>) { describe(number, text, true) }
    early fn cuGetErrorString(number: u32, text: Out<*const c_char>) { describe(number, text, false) }
    /// Reports that no internal function table of NVIDIA exists.
    early fn cuGetExportTable(table: Out<*const c_void>, _id: Raw) {
        table.set_if(std::ptr::null());
        Err(NOT_FOUND)
    }

    fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) |call| {
        call.process.device(ordinal)?;
        device.set(ordinal)
    }
    fn cuDeviceGetCount(count: Out<i32>) |call| { count.set(i32::try_from(call.process.devices.len()).unwrap_or(0)) }
    fn cuDeviceGetName(name: Out<c_char>, length: i32, device: CUdevice) |call| {
        name.set_text(&call.process.on_machine(device)?.name(), length)
    }
    /// For an instance: the UUID of its parent device.
    fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: CUdevice) |call| {
        let device = call.process.on_machine(device)?;
        uuid.set(CUuuid(device.part_of().map_or(device, |(parent, _)| parent).uuid()))
    }
    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: CUdevice) |call| { uuid.set(CUuuid(call.process.on_machine(device)?.uuid())) }
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) |call| {
        bytes.set(usize::try_from(call.process.on_machine(device)?.memory_total()).unwrap_or(usize::MAX))
    }
    fn cuDeviceGetAttribute(value: Out<i32>, attr: u32, device: CUdevice) |call| { value.set(attribute(call, attr, device)?) }
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: CUdevice) |call| {
        major.set(attribute(call, 75, device)?)?;
        minor.set(attribute(call, 76, device)?)
    }
    fn cuDeviceGetProperties(properties: Out<[i32; 14]>, device: CUdevice) |call| {
        let numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        let mut values = [0; 14];
        for (value, number) in values.iter_mut().zip(numbers) {
            *value = attribute(call, number, device)?;
        }
        properties.set(values)
    }
    fn cuDeviceGetPCIBusId(text: Out<c_char>, length: i32, device: CUdevice) |call| {
        // A four-digit domain, as in the driver; NVML has eight digits.
        let address = call.process.on_machine(device)?.pci_address();
        text.set_text(&address[4..], length)
    }
    fn cuDeviceGetByPCIBusId(device: Out<CUdevice>, text: Text) |call| {
        let wanted = text.get()?.to_ascii_uppercase();
        let count = CUdevice::try_from(call.process.devices.len()).unwrap_or(0);
        for ordinal in 0..count {
            let address = call.process.on_machine(ordinal)?.pci_address();
            if [&address[..], &address[4..], &address[9..], &address[9..14]].contains(&wanted.as_str()) {
                return device.set(ordinal);
            }
        }
        Err(INVALID_VALUE)
    }
    fn cuDeviceGetLuid(_luid: Out<c_char>, _mask: Out<u32>, _device: CUdevice) |_| { Err(error::NOT_SUPPORTED) }
    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, _kind: u32, device: CUdevice) |call| {
        call.process.device(device)?;
        supported.set(0)
    }
    fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, _format: u32, _channels: u32, device: CUdevice) |call| {
        call.process.device(device)?;
        width.set(1 << 28)
    }
    fn cuFlushGPUDirectRDMAWrites(_target: u32, _scope: u32) |call| { call.context().map(|_| ()) }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: CUdevice, peer: CUdevice) |call| {
        call.process.device(device)?;
        call.process.device(peer)?;
        can.set(i32::from(device != peer))
    }
    fn cuDeviceGetP2PAttribute(value: Out<i32>, attr: u32, src: CUdevice, dst: CUdevice) |call| {
        call.process.device(src)?;
        call.process.device(dst)?;
        if src == dst {
            return Err(INVALID_DEVICE);
        }
        // Access is supported (2), all else is not or is zero.
        value.set(i32::from(attr == 2))
    }
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) |call| {
        let context = call.context()?;
        let peer = call.context_of(peer)?;
        match () {
            () if flags != 0 => Err(INVALID_VALUE),
            () if peer.device == context.device => Err(INVALID_DEVICE),
            () if !context.add_peer(peer.handle) => Err(PEER_ACCESS_ALREADY_ENABLED),
            () => Ok(()),
        }
    }
    fn cuCtxDisablePeerAccess(peer: CUcontext) |call| {
        if call.context()?.remove_peer(peer) { Ok(()) } else { Err(error::PEER_ACCESS_NOT_ENABLED) }
    }
    fn cuProfilerStart() |_| { Ok(()) }
    fn cuProfilerStop() |_| { Ok(()) }
}
