"""nvidia-ml-py beside the driver in one governed process, as a monitoring program sees the card.

Prints `TOTAL USED` of the device's memory at each line of stdin."""
import ctypes
import sys

import pynvml

if "cuda" in sys.argv:
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
for _ in sys.stdin:
    one = pynvml.nvmlDeviceGetMemoryInfo(handle)
    two = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert (one.total, one.used) == (two.total, two.used), (one.total, two.total, one.used, two.used)
    print(one.total, one.used, flush=True)
