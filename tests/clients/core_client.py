"""Uses cuda-core in a governed process: device, stream, program, memory."""
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode
from cuda.core import launch as launch_kernel

from kernels import PTX
from obey import name_of, obey

device = Device(0)
device.set_current()
stream = device.create_stream()
kernel = ObjectCode.from_ptx(PTX).get_kernel("gcgroup_spin")
blocks = []


def alloc(count):
    blocks.append(device.allocate(count, stream=stream))
    stream.sync()


def free():
    blocks.pop().close(stream)
    stream.sync()


def launch(count):
    for _ in range(count):
        launch_kernel(stream, LaunchConfig(grid=1, block=1), kernel, 1)
    stream.sync()


obey(
    {"total": lambda: str(driver.cuMemGetInfo()[2]), "alloc": alloc, "free": free, "launch": launch},
    name_of,
)
