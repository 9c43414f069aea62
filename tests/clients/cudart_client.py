"""Initialises NVIDIA's runtime library, given as argument, until its check of the driver. Prints the results
of its calls."""
import ctypes
import sys

runtime = ctypes.CDLL(sys.argv[1])
count = ctypes.c_int()
print(runtime.cudaGetDeviceCount(ctypes.byref(count)), runtime.cudaFree(None))
