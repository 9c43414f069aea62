"""Executes driver calls that a test sends on stdin: each line is a Python statement or expression, answered
by one line with the expression's value or the exception.

An argument of a call is a number, a string, bytes, None, or a ctypes object, which is passed by its address.
The value of a call is the driver's result."""

import ctypes
import os
import sys
from ctypes import (POINTER, Structure, byref, c_byte, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64,
                    c_ushort, c_void_p, sizeof)

DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4
PINNED = 1
POSIX_FD = 1
MIB = 1 << 20


class Location(Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(Structure):
    """CUmemAllocationProp."""
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p),
                ("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4)]


class Access(Structure):
    """CUmemAccessDesc."""
    _fields_ = [("location", Location), ("flags", c_int)]


class PoolProperties(Structure):
    """CUmemPoolProps."""
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p),
                ("max", c_size_t), ("usage", c_ushort), ("reserved", c_ubyte * 54)]


class Library:
    """Calls exported functions: `cu.NAME(...)`."""

    def __init__(self, name):
        self.library = ctypes.CDLL(name)

    def has(self, name):
        return hasattr(self.library, name)

    def __getattr__(self, name):
        function = getattr(self.library, name)
        return lambda *arguments: function(*map(passed, arguments))


def passed(argument):
    if isinstance(argument, bool) or isinstance(argument, int):
        return c_uint64(argument & (1 << 64) - 1)
    if isinstance(argument, str):
        return c_char_p(argument.encode())
    if isinstance(argument, (bytes, type(None), float)):
        return argument
    if isinstance(argument, ctypes._Pointer) or isinstance(argument, ctypes._CFuncPtr):
        return argument
    return byref(argument)


class Failed(Exception):
    pass


def ok(result):
    """Raises Failed unless the result of a call is 0."""
    if result:
        raise Failed(result)


def got(kind, name, *arguments):
    """Returns what a call stores through its first argument, an object of type `kind`, or `error N` if the
    call fails."""
    out = kind()
    result = getattr(cu, name)(out, *arguments)
    return getattr(out, "value", out) if result == 0 else f"error {result}"


def got_of(first, kind, name, *arguments):
    """Returns what a call stores through its second argument, or `error N` if the call fails."""
    out = kind()
    result = getattr(cu, name)(first, out, *arguments)
    return getattr(out, "value", out) if result == 0 else f"error {result}"


def location(kind, id=0):
    return Location(kind, id)


def properties(kind=DEVICE, id=0, handles=0):
    return Properties(type=PINNED, handles=handles, location=location(kind, id))


def pool_properties(kind=DEVICE, id=0, handles=0, most=0):
    return PoolProperties(type=PINNED, handles=handles, location=location(kind, id), max=most)


def start(device=0):
    """Initialises the driver and makes the primary context of a device current."""
    ok(cu.cuInit(0))
    context = c_uint64()
    ok(cu.cuDevicePrimaryCtxRetain(context, device))
    ok(cu.cuCtxSetCurrent(context.value))
    return context.value


def alloc(size):
    return got(c_uint64, "cuMemAlloc_v2", size)


def put(address, data):
    """Copies bytes to the device."""
    ok(cu.cuMemcpyHtoD_v2(address, data, len(data)))


def look(address, length):
    """Copies bytes from the device."""
    data = (c_char * length)()
    ok(cu.cuMemcpyDtoH_v2(data, address, length))
    return data.raw


def free_memory():
    free, total = c_size_t(), c_size_t()
    ok(cu.cuMemGetInfo_v2(free, total))
    return free.value


def attribute(address, number, kind=c_uint64):
    out = kind()
    result = cu.cuPointerGetAttribute(out, number, address)
    return out.value if result == 0 else f"error {result}"


def pool_attribute(pool, number):
    out = c_uint64()
    result = cu.cuMemPoolGetAttribute(pool, number, out)
    return out.value if result == 0 else f"error {result}"


def map_new(size, kind=DEVICE, id=0, at=None, access=((DEVICE, 0),), handles=0):
    """Maps new memory, with access from the given locations. Returns the address and the handle."""
    handle = got(c_uint64, "cuMemCreate", size, properties(kind, id, handles), 0)
    if at is None:
        at = got(c_uint64, "cuMemAddressReserve", size, 0, 0, 0)
    ok(cu.cuMemMap(at, size, 0, handle, 0))
    allow(at, size, access)
    return at, handle


def allow(at, size, access=((DEVICE, 0),), flags=3):
    list = (Access * len(access))(*(Access(location(*one), flags) for one in access))
    ok(cu.cuMemSetAccess(at, size, list, len(access)))


class IpcHandle(Structure):
    """CUipcMemHandle and CUipcEventHandle; passed by value."""
    _fields_ = [("data", c_ubyte * 64)]


def ipc_handle(hexadecimal):
    return IpcHandle((c_ubyte * 64)(*bytes.fromhex(hexadecimal)))


def exported(name, what):
    """Returns an interprocess handle in hexadecimal."""
    out = IpcHandle()
    result = getattr(cu, name)(out, what)
    return bytes(out.data).hex() if result == 0 else f"error {result}"


def opened(name, hexadecimal, *arguments):
    """Opens an interprocess handle. Returns the address or the event."""
    out = c_uint64()
    function = getattr(cu.library, name)
    result = function(byref(out), ipc_handle(hexadecimal), *map(passed, arguments))
    return out.value if result == 0 else f"error {result}"


def descriptor_of(handle):
    return got(c_int, "cuMemExportToShareableHandle", handle, POSIX_FD, 0)


def borrow(pid, descriptor):
    """Duplicates a descriptor of another process with pidfd_getfd(2), like passing it over a socket."""
    other = ctypes.CDLL(None, use_errno=True).syscall(434, pid, 0)
    own = ctypes.CDLL(None, use_errno=True).syscall(438, other, descriptor, 0)
    os.close(other)
    return own


def bytes_at(address, length):
    """Reads bytes at a host address."""
    return ctypes.string_at(address, length)


PTX = """.version 7.8
.target sm_75
.address_size 64
.visible .entry gcgroup_spin(.param .u64 us) { ret; }
.visible .entry gcgroup_fill(.param .u64 dst, .param .u64 n, .param .u32 value) { ret; }
.visible .entry gcgroup_condition(.param .u64 handle, .param .u64 counter) { ret; }
.visible .entry gcgroup_checksum(.param .u64 src, .param .u64 n, .param .u64 out) { ret; }
"""


def kernel(name):
    module = got(c_uint64, "cuModuleLoadData", PTX)
    return got(c_uint64, "cuModuleGetFunction", module, name)


def launch(function, *arguments, stream=0):
    values = [c_uint64(argument) for argument in arguments]
    parameters = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    return cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)


class KernelNode(Structure):
    """CUDA_KERNEL_NODE_PARAMS of the first version; keeps its arguments alive."""
    _fields_ = [("function", c_uint64), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
                ("params", c_void_p), ("extra", c_void_p)]


def kernel_node(function, *arguments):
    values = [c_uint64(argument) for argument in arguments]
    list = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    one = (c_uint * 3)(1, 1, 1)
    node = KernelNode(function, one, one, 0, ctypes.addressof(list))
    node.kept = values, list
    return node


class ConditionalNode(Structure):
    """CUgraphNodeParams of a conditional node."""
    _fields_ = [("type", c_int), ("reserved", c_int * 3), ("handle", c_uint64), ("kind", c_uint), ("size", c_uint),
                ("graphs", POINTER(c_uint64)), ("context", c_uint64), ("rest", c_ubyte * 208)]


class MemOp(Structure):
    """CUstreamBatchMemOpParams."""
    _fields_ = [("operation", c_uint), ("address", c_uint64), ("value", c_uint64), ("flags", c_uint), ("rest", c_ubyte * 20)]


class BatchNode(Structure):
    """CUDA_BATCH_MEM_OP_NODE_PARAMS."""
    _fields_ = [("context", c_uint64), ("count", c_uint), ("list", c_void_p), ("flags", c_uint)]


def mem_ops(*rows):
    return (MemOp * len(rows))(*(MemOp(*row) for row in rows))


def graph_of():
    return got(c_uint64, "cuGraphCreate", 0)


def run_graph(graph, stream=0):
    """Instantiates and launches a graph, and waits for it. Returns the executable graph."""
    executable = got(c_uint64, "cuGraphInstantiateWithFlags", graph, 0)
    ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuCtxSynchronize())
    return executable


def sizes(*numbers):
    return (c_size_t * len(numbers))(*numbers)


class AccountingStats(Structure):
    """nvmlAccountingStats_t."""
    _fields_ = [("gpu", c_uint), ("memory", c_uint), ("peak", c_uint64), ("time", c_uint64), ("began", c_uint64),
                ("running", c_uint), ("reserved", c_uint * 5)]


def nvml(device=0):
    """Initialises NVML. Returns the library and the handle of a device."""
    library, handle = Library("libnvidia-ml.so.1"), c_uint64()
    ok(library.nvmlInit_v2())
    ok(library.nvmlDeviceGetHandleByIndex_v2(device, handle))
    return library, handle.value


def numbers(count, kind=c_uint64):
    return (kind * count)()


class Operand(Structure):
    """CUmemcpy3DOperand."""
    _fields_ = [("type", c_uint), ("words", c_uint64 * 4)]


class Op3d(Structure):
    """CUDA_MEMCPY3D_BATCH_OP."""
    _fields_ = [("src", Operand), ("dst", Operand), ("extent", c_size_t * 3), ("order", c_uint), ("flags", c_uint)]


def pointer(address, row=0, height=0):
    return Operand(1, (c_uint64 * 4)(address, row, height, 0))


def part(array, x=0, y=0, z=0):
    return Operand(2, (c_uint64 * 4)(array, x, y, z))


def op_3d(src, dst, *extent, order=1):
    return Op3d(src, dst, (c_size_t * 3)(*extent), order, 0)


class Resource(Structure):
    """CUdevResource."""
    _fields_ = [("type", c_uint), ("internal", c_ubyte * 92), ("count", c_uint), ("rest", c_ubyte * 36), ("next", c_void_p)]


def green_of(count, device=0, flags=1):
    """Creates a green context with `count` multiprocessors. Returns it and its CUcontext."""
    whole, part, number = got_of(device, Resource, "cuDeviceGetDevResource", 1), Resource(), c_uint(1)
    ok(cu.cuDevSmResourceSplitByCount(part, number, whole, None, 0, count))
    description = got(c_uint64, "cuDevResourceGenerateDesc", part, 1)
    green = got(c_uint64, "cuGreenCtxCreate", description, device, flags)
    return green, got(c_uint64, "cuCtxFromGreenCtx", green)


class MapInfo(Structure):
    """CUarrayMapInfo of tiles."""
    _fields_ = [("resource_type", c_uint), ("resource", c_uint64), ("subresource_type", c_uint), ("pad", c_uint),
                ("level", c_uint), ("layer", c_uint), ("at", c_uint * 3), ("extent", c_uint * 3), ("operation", c_uint),
                ("handle_type", c_uint), ("handle", c_uint64), ("offset", c_uint64), ("mask", c_uint), ("flags", c_uint),
                ("reserved", c_uint * 2)]


def map_info(resource, handle=0, at=(0, 0, 0), extent=(0, 0, 0), type=0, offset=0, mask=1, level=0, tail=0):
    """Maps a part of an array (type 0) or mipmapped array (type 1) to memory; without a handle, unmaps it."""
    return MapInfo(resource_type=type, resource=resource, subresource_type=tail, level=level, at=(c_uint * 3)(*at),
                   extent=(c_uint * 3)(*extent), operation=1 if handle else 2, handle=handle, offset=offset, mask=mask)


def array_of(width, height, depth=0, flags=0, channels=1):
    """Creates an array with elements of four bytes for each channel."""
    descriptor = (c_uint64 * 5)(width, height, depth, 3 | channels << 32, flags)
    return got(c_uint64, "cuArray3DCreate_v2", descriptor)


def tile_pool(size):
    wish = properties()
    wish.usage = 1
    return got(c_uint64, "cuMemCreate", size, wish, 0)


class CopyAttributes(Structure):
    """CUmemcpyAttributes."""
    _fields_ = [("order", c_uint), ("src", Location), ("dst", Location), ("flags", c_uint)]


def main():
    names = globals()
    # Output of the driver on stdout must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        try:
            try:
                code = compile(line.strip(), "line", "eval")
            except SyntaxError:
                code = compile(line, "line", "exec")
            answer = repr(eval(code, names))
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        answers.write(answer.replace("\n", " ") + "\n")
        answers.flush()


cu = Library("libcuda.so.1")
main()
