"""What tasks and actors of the tests do on a GPU, in a worker."""

import ctypes
import os
import pathlib

from cuda.bindings import driver

PTX = (pathlib.Path(__file__).parent.parent / "load" / "kernels.ptx").read_bytes() + b"\0"


class CudaError(Exception):
    pass


def check(result):
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(status.name)
    return values[0] if len(values) == 1 else values or None


def name_of(call):
    """Return the name of the error that a call ends with, or "ok"."""
    try:
        call()
    except CudaError as error:
        return str(error)
    return "ok"


def open_gpu():
    """Make the context of the first visible GPU current."""
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))


def allocate(size):
    return name_of(lambda: check(driver.cuMemFree(check(driver.cuMemAlloc(size)))))


def facts():
    return {
        "pid": os.getpid(),
        "group": os.environ.get("GCGROUP_GROUP"),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def try_sizes(*sizes):
    """Open the GPU, and return what is shown as its memory and how allocations of these sizes end."""
    opened = name_of(open_gpu)
    if opened != "ok":
        return {**facts(), "opened": opened}
    total = check(driver.cuMemGetInfo())[1]
    return {**facts(), "opened": opened, "total": total, "allocated": [allocate(size) for size in sizes]}


def spin(microseconds):
    """Run a kernel for a time, and wait for it."""
    module = check(driver.cuModuleLoadData(PTX))
    kernel = check(driver.cuModuleGetFunction(module, b"gcgroup_spin"))
    arguments = ((microseconds,), (ctypes.c_ulonglong,))
    check(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0))
    check(driver.cuCtxSynchronize())
