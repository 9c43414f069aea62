"""numba-cuda as a governed process: it compiles a kernel, launches it, and meets the limit.

Reads commands on stdin, answers a line each: `total`, `alloc BYTES`, `free`, `launch N`."""
import sys

import numpy
from numba import cuda


@cuda.jit
def add_one(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += 1


context = cuda.current_context()
small = cuda.to_device(numpy.zeros(64, dtype=numpy.float32))
blocks = []
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    try:
        if verb == "total":
            answer = f"{context.get_memory_info().total}"
        elif verb == "alloc":
            blocks.append(cuda.device_array(int(arguments[0]), dtype=numpy.uint8))
            answer = "ok"
        elif verb == "free":
            blocks.pop()
            context.deallocations.clear()
            answer = "ok"
        elif verb == "launch":
            for _ in range(int(arguments[0])):
                add_one[1, 64](small)
            cuda.synchronize()
            answer = "ok"
        else:
            answer = "unknown command"
    except cuda.cudadrv.driver.CudaAPIError as error:
        answer = "CUDA_ERROR_OUT_OF_MEMORY" if "OUT_OF_MEMORY" in str(error) else str(error)
    print(answer, flush=True)
