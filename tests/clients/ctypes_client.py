"""Calls the driver through ctypes, as scripts do. Arguments: the library, and the number of kernels to
launch.

Prints `pid PID` and `launched N`; ends after a line on stdin."""
import ctypes
import os
import sys

from kernels import PTX

cuda = ctypes.CDLL(sys.argv[1])
count = int(sys.argv[2])


def check(status):
    if status:
        raise SystemExit(f"error {status}")


context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"gcgroup_spin"))
microseconds = ctypes.c_ulonglong(1)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(microseconds))
for _ in range(count):
    check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
check(cuda.cuCtxSynchronize())
print("pid", os.getpid(), flush=True)
print("launched", count, flush=True)
sys.stdin.readline()
