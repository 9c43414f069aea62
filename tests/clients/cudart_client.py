"""NVIDIA's runtime library up to the check it makes of its driver: argv names it. Prints what its calls answer."""
import ctypes
import sys

runtime = ctypes.CDLL(sys.argv[1])
count = ctypes.c_int()
print(runtime.cudaGetDeviceCount(ctypes.byref(count)), runtime.cudaFree(None))
