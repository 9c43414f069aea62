"""Wraps virtual memory management: address ranges, physical memory, and mappings between them."""
import ctypes
from ctypes import c_int, c_uint16, c_uint32, c_uint64, c_ubyte, c_void_p

from .cuda import HOST_NUMA_ID, MIB

DEVICE, HOST_NUMA = 1, 3  # CUmemLocationType
READ_WRITE = 3


class Location(ctypes.Structure):
    """CUmemLocation."""
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp, 32 bytes."""
    _fields_ = [("type", c_int), ("handle_types", c_int), ("location", Location), ("win32", c_void_p),
                ("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_uint16), ("reserved", c_ubyte * 4)]


class Access(ctypes.Structure):
    """CUmemAccessDesc, 12 bytes."""
    _fields_ = [("location", Location), ("flags", c_int)]


def location(driver, kind):
    """Returns the location of the device's own memory, or of the host memory nearest to it."""
    return Location(kind, driver.device if kind == DEVICE else max(driver.attribute(HOST_NUMA_ID), 0))


def create(driver, size, kind):
    """Creates physical memory and returns its handle."""
    properties = Properties(type=1, location=location(driver, kind))
    return driver.get(c_uint64, "cuMemCreate", size, ctypes.byref(properties), 0)


def reserve(driver, size):
    """Reserves an address range without memory."""
    return driver.get(c_uint64, "cuMemAddressReserve", size, 0, 0, 0)


def map_memory(driver, address, size, handle):
    """Maps physical memory and permits the device to access it."""
    driver.cuMemMap(address, size, 0, handle, 0)
    allow(driver, address, size)


def allow(driver, address, size):
    """Permits the device to read and write mapped memory."""
    access = Access(location(driver, DEVICE), READ_WRITE)
    driver.cuMemSetAccess(address, size, ctypes.byref(access), 1)


class Chunk:
    """Memory at an address that stays fixed while the physical memory behind it changes."""

    def __init__(self, driver, size=64 * MIB, kind=DEVICE):
        self.driver, self.size = driver, size
        self.address = reserve(driver, size)
        self.handle = create(driver, size, kind)
        map_memory(driver, self.address, size, self.handle)

    def move(self, kind):
        """Copies the content to memory of another kind and maps that at the same address."""
        driver, size = self.driver, self.size
        fresh, aside = create(driver, size, kind), reserve(driver, size)
        map_memory(driver, aside, size, fresh)
        driver.cuMemcpy(aside, self.address, size)
        driver.cuCtxSynchronize()
        driver.cuMemUnmap(aside, size)
        driver.cuMemAddressFree(aside, size)
        driver.cuMemUnmap(self.address, size)
        driver.cuMemRelease(self.handle)
        self.handle = fresh
        map_memory(driver, self.address, size, fresh)

    def close(self):
        """Frees the memory and the address range."""
        self.driver.cuMemUnmap(self.address, self.size)
        self.driver.cuMemRelease(self.handle)
        self.driver.cuMemAddressFree(self.address, self.size)


def told(driver, address):
    """Returns the attributes that the driver reports for an address."""
    facts = {}
    attributes = {"memory_type": (2, c_uint32), "host_pointer": (4, c_uint64), "is_managed": (8, c_uint32),
                  "device_ordinal": (9, c_int), "legacy_ipc": (10, c_uint32), "range_start": (11, c_uint64),
                  "range_size": (12, c_uint64), "mapped": (13, c_uint32), "mapping_size": (18, c_uint64)}
    for name, (number, kind) in attributes.items():
        value = kind()
        status = driver.function("cuPointerGetAttribute")(ctypes.byref(value), c_int(number), c_uint64(address))
        facts[name] = driver.error(status) if status else value.value
    base, size = c_uint64(), c_uint64()
    status = driver.function("cuMemGetAddressRange_v2")(ctypes.byref(base), ctypes.byref(size), c_uint64(address))
    facts["address_range"] = driver.error(status) if status else [base.value - address, size.value]
    facts["range_start"] = facts["range_start"] - address if isinstance(facts["range_start"], int) else facts["range_start"]
    return facts
