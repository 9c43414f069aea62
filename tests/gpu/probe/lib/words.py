"""Provides words of host memory that the device writes and the host reads without a driver call."""
import ctypes
import mmap
import os
from ctypes import c_uint32, c_uint64

PAGE = 4096
PORTABLE, DEVICE_MAP = 1, 2  # CU_MEMHOSTREGISTER_*


class Words:
    """A registered page: `memory[i]` is word i for the host, `at(i)` its address for the device."""

    def __init__(self, driver, mapping=None, size=PAGE):
        self.driver, self.size = driver, size
        self.mapping = mapping or mmap.mmap(-1, size)
        self.memory = (c_uint32 * (size // 4)).from_buffer(self.mapping)
        self.address = ctypes.addressof(self.memory)
        driver.cuMemHostRegister_v2(self.address, size, PORTABLE | DEVICE_MAP)
        self.device = driver.get(c_uint64, "cuMemHostGetDevicePointer_v2", self.address, 0)

    def at(self, index):
        """Returns the word's device address."""
        return self.device + 4 * index

    def close(self):
        """Unregisters the memory."""
        self.driver.cuMemHostUnregister(self.address)


def shared_memory(name, seals=0):
    """Creates a memfd of one page and returns its descriptor."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, PAGE)
    if seals:
        import fcntl
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
