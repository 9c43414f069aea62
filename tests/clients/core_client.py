"""cuda-core as a governed process: device, stream, program, memory.

Reads commands on stdin, answers a line each: `total`, `alloc BYTES`, `free`, `launch N`."""
import sys

from cuda.bindings import driver
try:
    from cuda.core import Device, LaunchConfig, ObjectCode, launch
except ImportError:
    from cuda.core.experimental import Device, LaunchConfig, ObjectCode, launch

from kernels import PTX

device = Device(0)
device.set_current()
stream = device.create_stream()
kernel = ObjectCode.from_ptx(PTX).get_kernel("gcgroup_spin")
blocks = []
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    try:
        if verb == "total":
            answer = f"{driver.cuMemGetInfo()[2]}"
        elif verb == "alloc":
            blocks.append(device.allocate(int(arguments[0]), stream=stream))
            stream.sync()
            answer = "ok"
        elif verb == "free":
            blocks.pop().close(stream)
            stream.sync()
            answer = "ok"
        elif verb == "launch":
            for _ in range(int(arguments[0])):
                launch(stream, LaunchConfig(grid=1, block=1), kernel, 1)
            stream.sync()
            answer = "ok"
        else:
            answer = "unknown command"
    except Exception as error:  # cuda-core has no public base class for driver errors
        answer = "CUDA_ERROR_OUT_OF_MEMORY" if "OUT_OF_MEMORY" in str(error) else f"{error}".replace("\n", " ")
    print(answer, flush=True)
