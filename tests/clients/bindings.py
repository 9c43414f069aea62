"""Uses cuda-bindings in a governed process: queries the device memory, and allocates up to the limit."""
import ctypes

from cuda.bindings import driver

from kernels import PTX
from obey import name_of, obey


def check(result):
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(status.name)
    return values[0] if len(values) == 1 else values or None


check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
context = check(driver.cuDevicePrimaryCtxRetain(device))
check(driver.cuCtxSetCurrent(context))
module = check(driver.cuModuleLoadData(PTX))
spin = check(driver.cuModuleGetFunction(module, b"gcgroup_spin"))
blocks = []


def launch(count):
    for _ in range(count):
        check(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ((1,), (ctypes.c_ulonglong,)), 0))
    check(driver.cuCtxSynchronize())


obey(
    {
        "total": lambda: f"{check(driver.cuMemGetInfo())[1]} {check(driver.cuDeviceTotalMem(device))}",
        "alloc": lambda count: blocks.append(check(driver.cuMemAlloc(count))),
        "free": lambda: check(driver.cuMemFree(blocks.pop())),
        "launch": launch,
    },
    name_of,
)
