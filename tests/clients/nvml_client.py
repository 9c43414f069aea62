"""Uses nvidia-ml-py and the driver in one governed process, like a monitoring program.

Answers each line of stdin with `TOTAL USED PID:BYTES...`: the first device's memory and its compute
processes, checked to be equal in all calls that report them."""
import ctypes
import os
import sys

import pynvml as nvml

if "cuda" in sys.argv:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)


def told():
    one = nvml.nvmlDeviceGetMemoryInfo(handle)
    two = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    assert (one.total, one.used, one.free) == (two.total, two.used, two.free), (one, two)
    assert two.reserved + two.used + two.free == two.total, two
    lists = [
        nvml.nvmlDeviceGetComputeRunningProcesses(handle),
        nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle),
        nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
        nvml.nvmlDeviceGetRunningProcessDetailList(
            handle, nvml.nvmlProcessDetailList_v1, nvml.NVML_PROCESS_MODE_COMPUTE
        ),
    ]
    lists = [sorted((process.pid, process.usedGpuMemory) for process in list) for list in lists]
    assert all(list == lists[0] for list in lists), lists
    for other in nvml.nvmlDeviceGetGraphicsRunningProcesses, nvml.nvmlDeviceGetMPSComputeRunningProcesses:
        assert other(handle) == []
    try:
        nvml.nvmlDeviceGetProcessesUtilizationInfo(handle, 0)
    except nvml.NVMLError_NotFound:
        pass
    try:
        nvml.nvmlDeviceGetAccountingStats_v2(handle, os.getpid())
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):
        pass  # This NVML lacks the function or does not support accounting.
    if os.getpid() in dict(lists[0]):
        assert nvml.nvmlSystemGetProcessName(os.getpid())
    return [one.total, one.used] + ["%d:%d" % process for process in lists[0]]


print("ready", flush=True)
for _ in sys.stdin:
    print(*told(), flush=True)
