"""Uses numba-cuda in a governed process: compiles and launches a kernel, and allocates up to the limit."""
import numpy
from numba import cuda

from obey import name_of, obey


@cuda.jit
def add_one(values):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += 1


context = cuda.current_context()
small = cuda.to_device(numpy.zeros(64, dtype=numpy.float32))
blocks = []


def free():
    blocks.pop()
    context.deallocations.clear()


def launch(count):
    for _ in range(count):
        add_one[1, 64](small)
    cuda.synchronize()


obey(
    {
        "total": lambda: str(context.get_memory_info().total),
        "alloc": lambda count: blocks.append(cuda.device_array(count, dtype=numpy.uint8)),
        "free": free,
        "launch": launch,
    },
    name_of,
)
