"""Checks what the driver permits on each kind of memory: GPUDirect RDMA, SYNC_MEMOPS, IPC, export, and looking
up the handle of a mapping."""
import ctypes
from ctypes import c_int, c_uint, c_uint64, c_ubyte, c_void_p

from lib import vmm
from lib.cuda import MIB, Driver, Refused
from lib.questions import Questions
from answer import main

RDMA, RDMA_VMM, DMA_BUF = 116, 110, 124  # CU_DEVICE_ATTRIBUTE_*
SYNC_MEMOPS, RDMA_CAPABLE = 6, 15  # CU_POINTER_ATTRIBUTE_*
FILE_DESCRIPTOR, DMA_BUF_FD = 1, 1  # CU_MEM_HANDLE_TYPE_*, CU_MEM_RANGE_HANDLE_TYPE_*
SIZE = 2 * MIB


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""
    _fields_ = [("bytes", c_ubyte * 64)]


class Mapped:
    """Memory of cuMemCreate."""

    def __init__(self, driver, kind=vmm.DEVICE, rdma=0, handle_types=0):
        properties = vmm.Properties(type=1, handle_types=handle_types, location=vmm.location(driver, kind), rdma=rdma)
        self.handle = driver.get(c_uint64, "cuMemCreate", SIZE, ctypes.byref(properties), 0)
        self.address = vmm.reserve(driver, SIZE)
        vmm.map_memory(driver, self.address, SIZE, self.handle)


class Linear:
    """Memory of cuMemAlloc."""

    def __init__(self, driver):
        self.address = driver.alloc(SIZE)


KINDS = {
    "linear": Linear,
    "mapped": Mapped,
    "mapped_rdma": lambda driver: Mapped(driver, rdma=1),
    "mapped_exportable": lambda driver: Mapped(driver, handle_types=FILE_DESCRIPTOR),
    "mapped_host": lambda driver: Mapped(driver, vmm.HOST_NUMA),
}


def uses(driver, memory):
    """Returns the result of each use of the memory."""
    address, one = c_uint64(memory.address), c_uint(1)
    value, handle, ipc, descriptor = c_ubyte(0), c_uint64(), IpcHandle(), c_int(-1)
    calls = {
        "rdma_capable": ("cuPointerGetAttribute", ctypes.byref(value), c_uint(RDMA_CAPABLE), address),
        "sync_memops": ("cuPointerSetAttribute", ctypes.byref(one), c_uint(SYNC_MEMOPS), address),
        "ipc": ("cuIpcGetMemHandle", ctypes.byref(ipc), address),
        "retain": ("cuMemRetainAllocationHandle", ctypes.byref(handle), c_void_p(memory.address)),
        "dma_buf": ("cuMemGetHandleForAddressRange", ctypes.byref(descriptor), address, ctypes.c_size_t(SIZE),
                    c_int(DMA_BUF_FD), c_uint64(0)),
    }
    if isinstance(memory, Mapped):
        calls["export"] = ("cuMemExportToShareableHandle", ctypes.byref(c_int()), c_uint64(memory.handle),
                           c_int(FILE_DESCRIPTOR), c_uint64(0))
    answer = {}
    for name, (call, *arguments) in calls.items():
        try:
            answer[name] = driver.error(driver.function(call)(*arguments))
        except Refused as refused:
            answer[name] = str(refused)
    if answer["rdma_capable"] == "CUDA_SUCCESS":
        answer["rdma_capable"] = bool(value.value)
    if answer["retain"] == "CUDA_SUCCESS":
        driver.cuMemRelease(handle.value)
    return answer


def table(driver):
    """Returns the results by kind of memory; a refusal to create it is an answer."""
    rows = {}
    for name, create in KINDS.items():
        try:
            rows[name] = uses(driver, create(driver))
        except Refused as refused:
            rows[name] = {"created": str(refused)}
    return rows


def body(sim, facts):
    driver, questions = Driver(), Questions(facts)
    attributes = questions.ask("attributes", lambda: {
        name: driver.attribute(number) for name, number in (("rdma", RDMA), ("rdma_vmm", RDMA_VMM), ("dma_buf", DMA_BUF))})
    rows = questions.ask("uses", table, driver)
    works = lambda use: ", ".join(name for name, row in rows.items() if row.get(use) in (True, "CUDA_SUCCESS")) or "nothing"
    return questions.verdict(
        attributes and "the device " + ("has" if attributes["rdma_vmm"] else "has no") + " GPUDirect RDMA for mapped memory",
        rows and "; ".join(f"{use} works on {works(use)}" for use in
                           ("rdma_capable", "sync_memops", "ipc", "retain", "export", "dma_buf")))


if __name__ == "__main__":
    main(body)
