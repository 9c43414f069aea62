"""cuda-bindings as a governed process: what it is told of the card, and what happens at the limit.

Reads commands on stdin, answers a line each: `total`, `alloc BYTES`, `free`, `launch N`."""
import sys

from cuda.bindings import driver

from kernels import PTX


def check(result):
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(status.name)
    return values[0] if len(values) == 1 else values


check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
context = check(driver.cuDevicePrimaryCtxRetain(device))
check(driver.cuCtxSetCurrent(context))
module = check(driver.cuModuleLoadData(PTX))
spin = check(driver.cuModuleGetFunction(module, b"gcgroup_spin"))
blocks = []
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    try:
        if verb == "total":
            answer = f"{check(driver.cuMemGetInfo())[1]} {check(driver.cuDeviceTotalMem(device))}"
        elif verb == "alloc":
            blocks.append(check(driver.cuMemAlloc(int(arguments[0]))))
            answer = "ok"
        elif verb == "free":
            check(driver.cuMemFree(blocks.pop()))
            answer = "ok"
        elif verb == "launch":
            import ctypes

            for _ in range(int(arguments[0])):
                check(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ((1,), (ctypes.c_ulonglong,)), 0))
            check(driver.cuCtxSynchronize())
            answer = "ok"
        else:
            answer = "unknown command"
    except RuntimeError as error:
        answer = str(error)
    print(answer, flush=True)
