"""Calls the driver's functions by name: `driver.cuMemAlloc_v2(...)` raises Refused unless the result is
CUDA_SUCCESS. Needs only libcuda.so.1, no compiler and no runtime library."""
import ctypes
import functools
import os
import pathlib
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from answer import Skip
from .elf import loaded

HERE = pathlib.Path(__file__).resolve().parent
TEST_KERNELS, OWN_KERNELS = HERE / "../../../load/kernels.ptx", HERE / "probe.ptx"
MIB = 1 << 20
INVALID_VALUE, NOT_SUPPORTED = 1, 801

# Values of CUdevice_attribute.
MULTIPROCESSORS, HOST_NUMA_ID, VMM, COMPUTE_CAPABILITY = 16, 134, 102, (75, 76)


class Refused(Exception):
    """The driver returned a status other than CUDA_SUCCESS."""

    def __init__(self, call, status, name):
        super().__init__(f"{call}: {name}")
        self.call, self.status, self.name = call, status, name


class Missing(Refused, Skip):
    """The driver lacks the function or reports that it is not supported. Counts as skipped, not as failed."""

    def __init__(self, call, why="not supported by the driver"):
        super().__init__(call, NOT_SUPPORTED, why)


def pointer_sized(argument):
    """Converts integers to 64 bits; ctypes would truncate them to 32."""
    return c_uint64(argument) if isinstance(argument, int) else argument


class Driver:
    """Loads and initialises libcuda.so.1, and makes device 0's primary context current unless `context` is
    False."""

    def __init__(self, context=True):
        try:
            self.loaded = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Skip(f"no driver: {error}") from error
        self.cuInit(0)
        self.device = self.get(c_int, "cuDeviceGet", 0)
        if context:
            self.context = self.get(c_void_p, "cuDevicePrimaryCtxRetain", self.device)
            self.cuCtxSetCurrent(c_void_p(self.context))

    def __getattr__(self, name):
        function = self.function(name)

        def call(*arguments):
            status = function(*map(pointer_sized, arguments))
            if status == NOT_SUPPORTED:
                raise Missing(name)
            if status:
                raise Refused(name, status, self.error(status))

        setattr(self, name, call)
        return call

    def function(self, name):
        """Returns the exported function, which returns a status and raises nothing."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        try:
            return getattr(self.loaded, name)
        except AttributeError:
            raise Missing(name, "not in the driver") from None

    def error(self, status):
        """Returns the name of a status."""
        name = c_char_p()
        self.loaded.cuGetErrorName(c_int(status), byref(name))
        return name.value.decode() if name.value else f"CUDA error {status}"

    def get(self, kind, name, *arguments):
        """Returns the value that a function stores through its first argument."""
        value = kind()
        getattr(self, name)(byref(value), *arguments)
        return value if isinstance(value, ctypes.Structure) else value.value

    def path(self):
        """Returns the path of the library, which identifies the driver."""
        return loaded("libcuda.so")[0]

    def attribute(self, number):
        """Returns a device attribute."""
        return self.get(c_int, "cuDeviceGetAttribute", number, self.device)

    def alloc(self, size):
        """Allocates device memory and returns its address."""
        return self.get(c_uint64, "cuMemAlloc_v2", size)

    def stream(self, flags=0):
        """Creates a stream: blocking, or non-blocking with flag 1."""
        return c_void_p(self.get(c_void_p, "cuStreamCreate", flags))

    def event(self, flags=0):
        """Creates an event: timed, or without timing with flag 2."""
        return c_void_p(self.get(c_void_p, "cuEventCreate", flags))

    def free_memory(self):
        """Returns the bytes that are free on the device."""
        free, total = c_size_t(), c_size_t()
        self.cuMemGetInfo_v2(byref(free), byref(total))
        return free.value

    def read_words(self, address, count):
        """Reads 64-bit words from a device address."""
        words = (c_uint64 * count)()
        self.cuMemcpyDtoH_v2(words, address, ctypes.sizeof(words))
        return list(words)

    def milliseconds(self, work, stream=None):
        """Returns the device time in milliseconds of what `work()` submits to a stream."""
        before, after = self.event(), self.event()
        self.cuEventRecord(before, stream)
        work()
        self.cuEventRecord(after, stream)
        self.cuEventSynchronize(after)
        took = self.get(c_float, "cuEventElapsedTime", before, after)
        self.cuEventDestroy_v2(before)
        self.cuEventDestroy_v2(after)
        return took

    def kernels(self, path=TEST_KERNELS):
        """Loads the test kernels that every driver here knows: spin, fill, checksum."""
        return Kernels(self, text(path))

    def own_kernels(self):
        """Loads the probes' own kernels. Skips if the driver does not execute them."""
        kernels = self.kernels(OWN_KERNELS)
        out = self.alloc(64)
        self.cuMemsetD8_v2(out, 0, 64)
        kernels("probe_atomics", out, block=32)
        self.cuCtxSynchronize()
        done = self.read_words(out, 1)[0]
        self.cuMemFree_v2(out)
        if done != 32:
            raise Skip("this driver executes no code: it recognises some kernels by name")
        return kernels


class Kernels:
    """A module. Calling it with a kernel's name and its arguments, all of 64 bits, launches the kernel."""

    def __init__(self, driver, image):
        self.driver, self.functions = driver, {}
        self.module = c_void_p(driver.get(c_void_p, "cuModuleLoadData", image))

    def function(self, name):
        """Returns the CUfunction of a kernel."""
        if name not in self.functions:
            self.functions[name] = c_void_p(
                self.driver.get(c_void_p, "cuModuleGetFunction", self.module, name.encode()))
        return self.functions[name]

    def prepared(self, name, *arguments, grid=1, block=1, stream=None):
        """Returns the arguments of cuLaunchKernel, for repeated use."""
        cells = [c_uint64(argument) for argument in arguments]
        params = (c_void_p * len(cells))(*[ctypes.addressof(cell) for cell in cells])
        params.cells = cells
        size = [c_uint32(n) for n in (grid, 1, 1, block, 1, 1)]
        return (self.function(name), *size, c_uint32(0), stream, params, None)

    def __call__(self, name, *arguments, **shape):
        self.driver.cuLaunchKernel(*self.prepared(name, *arguments, **shape))


@functools.lru_cache(maxsize=None)
def text(path):
    """Returns a PTX file, terminated for the driver."""
    return path.read_bytes() + b"\0"


def drop_privileges():
    """Becomes the user nobody, after reading the files that this user may not be able to read. Returns
    whether the process was root."""
    text(TEST_KERNELS)
    if os.geteuid():
        return False
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    return True
