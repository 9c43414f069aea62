//! Results of driver functions.

use std::ffi::CStr;
use std::num::NonZeroU32;

/// A result other than `CUDA_SUCCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct CUerror(pub(crate) NonZeroU32);

/// Return type of driver functions: size and values of the driver's `CUresult`.
pub(crate) type CUresult = Result<(), CUerror>;

const _: () = assert!(size_of::<CUresult>() == 4);

impl CUerror {
    /// Returns the error with this number; 0 becomes `CUDA_ERROR_UNKNOWN`.
    pub(crate) const fn new(number: u32) -> CUerror {
        match NonZeroU32::new(number) {
            Some(number) => CUerror(number),
            None => UNKNOWN,
        }
    }
}

macro_rules! errors {
    ($($number:literal $short:ident $name:literal $text:literal;)*) => {
        $(
            #[doc = $name]
            #[allow(dead_code, reason = "the list is whole")]
            pub(crate) const $short: CUerror = CUerror(NonZeroU32::new($number).expect("not 0"));
        )*

        /// Returns name and description of a result, if the driver defines it.
        pub(crate) fn describe(number: u32) -> Option<(&'static CStr, &'static CStr)> {
            Some(match number {
                0 => (c"CUDA_SUCCESS", c"no error"),
                $( $number => (c_str(concat!($name, "\0")), c_str(concat!($text, "\0"))), )*
                _ => return None,
            })
        }
    };
}

const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    }
}

errors! {
    1 INVALID_VALUE "CUDA_ERROR_INVALID_VALUE" "invalid argument";
    2 OUT_OF_MEMORY "CUDA_ERROR_OUT_OF_MEMORY" "out of memory";
    3 NOT_INITIALIZED "CUDA_ERROR_NOT_INITIALIZED" "initialization error";
    4 DEINITIALIZED "CUDA_ERROR_DEINITIALIZED" "driver shutting down";
    5 PROFILER_DISABLED "CUDA_ERROR_PROFILER_DISABLED" "profiler disabled";
    6 PROFILER_NOT_INITIALIZED "CUDA_ERROR_PROFILER_NOT_INITIALIZED" "profiler not initialized";
    7 PROFILER_ALREADY_STARTED "CUDA_ERROR_PROFILER_ALREADY_STARTED" "profiler already started";
    8 PROFILER_ALREADY_STOPPED "CUDA_ERROR_PROFILER_ALREADY_STOPPED" "profiler already stopped";
    34 STUB_LIBRARY "CUDA_ERROR_STUB_LIBRARY" "stub library";
    36 CALL_REQUIRES_NEWER_DRIVER "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER" "call requires newer driver";
    46 DEVICE_UNAVAILABLE "CUDA_ERROR_DEVICE_UNAVAILABLE" "device unavailable";
    47 MULTICAST_RESOURCE_FULL "CUDA_ERROR_MULTICAST_RESOURCE_FULL" "multicast resource full";
    100 NO_DEVICE "CUDA_ERROR_NO_DEVICE" "no CUDA-capable device is detected";
    101 INVALID_DEVICE "CUDA_ERROR_INVALID_DEVICE" "invalid device ordinal";
    102 DEVICE_NOT_LICENSED "CUDA_ERROR_DEVICE_NOT_LICENSED" "device not licensed";
    200 INVALID_IMAGE "CUDA_ERROR_INVALID_IMAGE" "device kernel image is invalid";
    201 INVALID_CONTEXT "CUDA_ERROR_INVALID_CONTEXT" "invalid device context";
    202 CONTEXT_ALREADY_CURRENT "CUDA_ERROR_CONTEXT_ALREADY_CURRENT" "context already current";
    205 MAP_FAILED "CUDA_ERROR_MAP_FAILED" "map failed";
    206 UNMAP_FAILED "CUDA_ERROR_UNMAP_FAILED" "unmap failed";
    207 ARRAY_IS_MAPPED "CUDA_ERROR_ARRAY_IS_MAPPED" "array is mapped";
    208 ALREADY_MAPPED "CUDA_ERROR_ALREADY_MAPPED" "already mapped";
    209 NO_BINARY_FOR_GPU "CUDA_ERROR_NO_BINARY_FOR_GPU" "no kernel image is available for execution on the device";
    210 ALREADY_ACQUIRED "CUDA_ERROR_ALREADY_ACQUIRED" "already acquired";
    211 NOT_MAPPED "CUDA_ERROR_NOT_MAPPED" "not mapped";
    212 NOT_MAPPED_AS_ARRAY "CUDA_ERROR_NOT_MAPPED_AS_ARRAY" "not mapped as array";
    213 NOT_MAPPED_AS_POINTER "CUDA_ERROR_NOT_MAPPED_AS_POINTER" "not mapped as pointer";
    214 ECC_UNCORRECTABLE "CUDA_ERROR_ECC_UNCORRECTABLE" "ecc uncorrectable";
    215 UNSUPPORTED_LIMIT "CUDA_ERROR_UNSUPPORTED_LIMIT" "unsupported limit";
    216 CONTEXT_ALREADY_IN_USE "CUDA_ERROR_CONTEXT_ALREADY_IN_USE" "context already in use";
    217 PEER_ACCESS_UNSUPPORTED "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" "peer access unsupported";
    218 INVALID_PTX "CUDA_ERROR_INVALID_PTX" "a PTX JIT compilation failed";
    219 INVALID_GRAPHICS_CONTEXT "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT" "invalid graphics context";
    220 NVLINK_UNCORRECTABLE "CUDA_ERROR_NVLINK_UNCORRECTABLE" "nvlink uncorrectable";
    221 JIT_COMPILER_NOT_FOUND "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" "jit compiler not found";
    222 UNSUPPORTED_PTX_VERSION "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" "unsupported ptx version";
    223 JIT_COMPILATION_DISABLED "CUDA_ERROR_JIT_COMPILATION_DISABLED" "jit compilation disabled";
    224 UNSUPPORTED_EXEC_AFFINITY "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY" "unsupported exec affinity";
    225 UNSUPPORTED_DEVSIDE_SYNC "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC" "unsupported devside sync";
    226 CONTAINED "CUDA_ERROR_CONTAINED" "contained";
    227 INSUFFICIENT_LOADER_VERSION "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION" "insufficient loader version";
    300 INVALID_SOURCE "CUDA_ERROR_INVALID_SOURCE" "invalid source";
    301 FILE_NOT_FOUND "CUDA_ERROR_FILE_NOT_FOUND" "file not found";
    302 SHARED_OBJECT_SYMBOL_NOT_FOUND "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND" "shared object symbol not found";
    303 SHARED_OBJECT_INIT_FAILED "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED" "shared object init failed";
    304 OPERATING_SYSTEM "CUDA_ERROR_OPERATING_SYSTEM" "operating system";
    400 INVALID_HANDLE "CUDA_ERROR_INVALID_HANDLE" "invalid resource handle";
    401 ILLEGAL_STATE "CUDA_ERROR_ILLEGAL_STATE" "illegal state";
    402 LOSSY_QUERY "CUDA_ERROR_LOSSY_QUERY" "lossy query";
    500 NOT_FOUND "CUDA_ERROR_NOT_FOUND" "named symbol not found";
    600 NOT_READY "CUDA_ERROR_NOT_READY" "device not ready";
    700 ILLEGAL_ADDRESS "CUDA_ERROR_ILLEGAL_ADDRESS" "an illegal memory access was encountered";
    701 LAUNCH_OUT_OF_RESOURCES "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" "too many resources requested for launch";
    702 LAUNCH_TIMEOUT "CUDA_ERROR_LAUNCH_TIMEOUT" "launch timeout";
    703 LAUNCH_INCOMPATIBLE_TEXTURING "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING" "launch incompatible texturing";
    704 PEER_ACCESS_ALREADY_ENABLED "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" "peer access already enabled";
    705 PEER_ACCESS_NOT_ENABLED "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" "peer access not enabled";
    708 PRIMARY_CONTEXT_ACTIVE "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" "primary context active";
    709 CONTEXT_IS_DESTROYED "CUDA_ERROR_CONTEXT_IS_DESTROYED" "context is destroyed";
    710 ASSERT "CUDA_ERROR_ASSERT" "assert";
    711 TOO_MANY_PEERS "CUDA_ERROR_TOO_MANY_PEERS" "too many peers";
    712 HOST_MEMORY_ALREADY_REGISTERED "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" "host memory already registered";
    713 HOST_MEMORY_NOT_REGISTERED "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" "host memory not registered";
    714 HARDWARE_STACK_ERROR "CUDA_ERROR_HARDWARE_STACK_ERROR" "hardware stack error";
    715 ILLEGAL_INSTRUCTION "CUDA_ERROR_ILLEGAL_INSTRUCTION" "illegal instruction";
    716 MISALIGNED_ADDRESS "CUDA_ERROR_MISALIGNED_ADDRESS" "misaligned address";
    717 INVALID_ADDRESS_SPACE "CUDA_ERROR_INVALID_ADDRESS_SPACE" "invalid address space";
    718 INVALID_PC "CUDA_ERROR_INVALID_PC" "invalid pc";
    719 LAUNCH_FAILED "CUDA_ERROR_LAUNCH_FAILED" "unspecified launch failure";
    720 COOPERATIVE_LAUNCH_TOO_LARGE "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" "cooperative launch too large";
    721 TENSOR_MEMORY_LEAK "CUDA_ERROR_TENSOR_MEMORY_LEAK" "tensor memory leak";
    800 NOT_PERMITTED "CUDA_ERROR_NOT_PERMITTED" "operation not permitted";
    801 NOT_SUPPORTED "CUDA_ERROR_NOT_SUPPORTED" "operation not supported";
    802 SYSTEM_NOT_READY "CUDA_ERROR_SYSTEM_NOT_READY" "system not ready";
    803 SYSTEM_DRIVER_MISMATCH "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" "system driver mismatch";
    804 COMPAT_NOT_SUPPORTED_ON_DEVICE "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" "compat not supported on device";
    805 MPS_CONNECTION_FAILED "CUDA_ERROR_MPS_CONNECTION_FAILED" "mps connection failed";
    806 MPS_RPC_FAILURE "CUDA_ERROR_MPS_RPC_FAILURE" "mps rpc failure";
    807 MPS_SERVER_NOT_READY "CUDA_ERROR_MPS_SERVER_NOT_READY" "mps server not ready";
    808 MPS_MAX_CLIENTS_REACHED "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" "mps max clients reached";
    809 MPS_MAX_CONNECTIONS_REACHED "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" "mps max connections reached";
    810 MPS_CLIENT_TERMINATED "CUDA_ERROR_MPS_CLIENT_TERMINATED" "mps client terminated";
    811 CDP_NOT_SUPPORTED "CUDA_ERROR_CDP_NOT_SUPPORTED" "cdp not supported";
    812 CDP_VERSION_MISMATCH "CUDA_ERROR_CDP_VERSION_MISMATCH" "cdp version mismatch";
    900 STREAM_CAPTURE_UNSUPPORTED "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" "operation not permitted when stream is capturing";
    901 STREAM_CAPTURE_INVALIDATED "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" "operation failed due to a previous error during capture";
    902 STREAM_CAPTURE_MERGE "CUDA_ERROR_STREAM_CAPTURE_MERGE" "stream capture merge";
    903 STREAM_CAPTURE_UNMATCHED "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" "stream capture unmatched";
    904 STREAM_CAPTURE_UNJOINED "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" "stream capture unjoined";
    905 STREAM_CAPTURE_ISOLATION "CUDA_ERROR_STREAM_CAPTURE_ISOLATION" "stream capture isolation";
    906 STREAM_CAPTURE_IMPLICIT "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" "stream capture implicit";
    907 CAPTURED_EVENT "CUDA_ERROR_CAPTURED_EVENT" "captured event";
    908 STREAM_CAPTURE_WRONG_THREAD "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" "stream capture wrong thread";
    909 TIMEOUT "CUDA_ERROR_TIMEOUT" "timeout";
    910 GRAPH_EXEC_UPDATE_FAILURE "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" "graph exec update failure";
    911 EXTERNAL_DEVICE "CUDA_ERROR_EXTERNAL_DEVICE" "external device";
    912 INVALID_CLUSTER_SIZE "CUDA_ERROR_INVALID_CLUSTER_SIZE" "invalid cluster size";
    913 FUNCTION_NOT_LOADED "CUDA_ERROR_FUNCTION_NOT_LOADED" "function not loaded";
    914 INVALID_RESOURCE_TYPE "CUDA_ERROR_INVALID_RESOURCE_TYPE" "invalid resource type";
    915 INVALID_RESOURCE_CONFIGURATION "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" "invalid resource configuration";
    916 KEY_ROTATION "CUDA_ERROR_KEY_ROTATION" "key rotation";
    917 STREAM_DETACHED "CUDA_ERROR_STREAM_DETACHED" "stream detached";
    918 GRAPH_RECAPTURE_FAILURE "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE" "graph recapture failure";
    919 FABRIC_NOT_READY "CUDA_ERROR_FABRIC_NOT_READY" "fabric not ready";
    999 UNKNOWN "CUDA_ERROR_UNKNOWN" "unknown error";
}
