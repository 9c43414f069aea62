"""Calls NVML's functions by name."""
import ctypes
from ctypes import byref, c_char_p, c_int, c_uint, c_uint32, c_uint64, c_void_p

from answer import Skip

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 3, 4, 6, 7, 13
MOST = 512


class Refused(Exception):
    """NVML returned a status other than success."""

    def __init__(self, call, status, text):
        super().__init__(f"{call}: {text}")
        self.status = status


class Process(ctypes.Structure):
    """nvmlProcessInfo_t, 24 bytes."""
    _fields_ = [("pid", c_uint32), ("used", c_uint64), ("instance", c_uint32), ("compute_instance", c_uint32)]


class Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t, 32 bytes; time in microseconds, the other fields in percent."""
    _fields_ = [("pid", c_uint32), ("time", c_uint64), ("sm", c_uint32), ("mem", c_uint32), ("enc", c_uint32),
                ("dec", c_uint32)]


class Memory(ctypes.Structure):
    """nvmlMemory_t."""
    _fields_ = [("total", c_uint64), ("free", c_uint64), ("used", c_uint64)]


class Rates(ctypes.Structure):
    """nvmlUtilization_t."""
    _fields_ = [("gpu", c_uint32), ("memory", c_uint32)]


class Nvml:
    """Loads and initialises libnvidia-ml.so.1. Queries concern the device with the given PCI bus id."""

    def __init__(self, bus_id=None):
        try:
            self.loaded = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise Skip(f"no NVML: {error}") from error
        self.loaded.nvmlErrorString.restype = c_char_p
        self.nvmlInit_v2()
        self.device = c_void_p()
        if bus_id:
            self.nvmlDeviceGetHandleByPciBusId_v2(bus_id, byref(self.device))

    def __getattr__(self, name):
        function = self.function(name)

        def call(*arguments):
            status = function(*arguments)
            if status in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                raise Skip(f"{name} is not supported here")
            if status:
                raise Refused(name, status, self.text(status))

        return call

    def function(self, name):
        """Returns the exported function."""
        if not name.startswith("nvml"):
            raise AttributeError(name)
        try:
            return getattr(self.loaded, name)
        except AttributeError:
            raise Skip(f"NVML has no {name}") from None

    def text(self, status):
        """Returns NVML's text for a status."""
        return self.loaded.nvmlErrorString(c_int(status)).decode()

    def each_device(self):
        """Iterates over the devices; queries concern the current one."""
        count = c_uint()
        self.nvmlDeviceGetCount_v2(byref(count))
        for index in range(count.value):
            self.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(self.device))
            yield index

    def processes(self, name="nvmlDeviceGetComputeRunningProcesses_v2"):
        """Returns the bytes of each process by pid; None if NVML has no number."""
        count, found = c_uint(MOST), (Process * MOST)()
        getattr(self, name)(self.device, byref(count), found)
        return {one.pid: None if one.used == (1 << 64) - 1 else one.used for one in found[:count.value]}

    def memory(self):
        """Calls nvmlDeviceGetMemoryInfo."""
        memory = Memory()
        self.nvmlDeviceGetMemoryInfo(self.device, byref(memory))
        return memory

    def rates(self):
        """Calls nvmlDeviceGetUtilizationRates, which covers the whole device."""
        rates = Rates()
        self.nvmlDeviceGetUtilizationRates(self.device, byref(rates))
        return rates

    def samples(self, since=0):
        """Returns the processes' utilisation samples newer than `since`."""
        count, found = c_uint(MOST), (Sample * MOST)()
        try:
            self.nvmlDeviceGetProcessUtilization(self.device, found, byref(count), c_uint64(since))
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return []
            raise
        return found[:count.value]


def bus_id(driver):
    """Returns the PCI bus id of device 0, by which NVML finds the device."""
    text = ctypes.create_string_buffer(64)
    driver.cuDeviceGetPCIBusId(text, 64, driver.device)
    return text
