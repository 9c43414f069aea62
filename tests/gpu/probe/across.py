"""Checks whether copies, sets, kernels and graphs work on a range of addresses of which a part is on the device
and a part on the host, as large allocations are while one of their parts is swapped out."""
import ctypes
from ctypes import c_size_t, c_uint, c_uint64, c_void_p

from lib import vmm
from lib.cuda import MIB, Driver, Refused
from lib.sums import Sums, constant, filled
from answer import main

PART = 2 * MIB
SIZE = 2 * PART
# Bytes copied or set around the boundary, and their first address in the range.
LENGTH = MIB
FIRST = PART - LENGTH // 2
PITCH = 4096
ROWS = LENGTH // PITCH


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""
    _fields_ = [(side + name, kind) for side in ("src", "dst") for name, kind in (
        ("XInBytes", c_size_t), ("Y", c_size_t), ("MemoryType", c_uint), ("Host", c_void_p), ("Device", c_uint64),
        ("Array", c_void_p), ("Pitch", c_size_t))] + [("WidthInBytes", c_size_t), ("Height", c_size_t)]


class Range:
    """Two pieces of memory behind each other, one of each kind."""

    def __init__(self, driver, kinds):
        self.address = vmm.reserve(driver, SIZE)
        for number, kind in enumerate(kinds):
            vmm.map_memory(driver, self.address + number * PART, PART, vmm.create(driver, PART, kind))


def rows(source, target):
    """Returns a two-dimensional copy between device addresses, of half of each row."""
    return Copy2D(srcMemoryType=2, srcDevice=source, srcPitch=PITCH, dstMemoryType=2, dstDevice=target,
                  dstPitch=PITCH, WidthInBytes=PITCH // 2, Height=ROWS)


def replayed(driver, submit):
    """Captures what `submit` gives a stream and runs it as a graph."""
    stream, graph, run = driver.stream(1), c_void_p(), c_void_p()
    driver.cuStreamBeginCapture_v2(stream, 2)
    submit(stream)
    driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    driver.cuGraphInstantiateWithFlags(ctypes.byref(run), graph, 0)
    driver.cuGraphLaunch(run, stream)
    driver.cuStreamSynchronize(stream)


def uses(driver, sums, whole, plain):
    """Returns pairs of a name and a function that tells whether that use of the range works. `whole` is its
    address, `plain` that of device memory."""
    at, host = whole + FIRST, (ctypes.c_ubyte * LENGTH)()

    def given(address, value):
        sums.fill(address, LENGTH, value)
        driver.cuCtxSynchronize()

    def holds(address, value):
        driver.cuCtxSynchronize()
        return sums.holds(address, LENGTH, value)

    def is_set(value):
        driver.cuCtxSynchronize()
        return sums.sum(at, LENGTH) == constant(LENGTH, value)

    def through_host():
        given(at, 31)
        driver.cuMemcpyDtoH_v2(host, at, LENGTH)
        driver.cuMemsetD32_v2(at, 0, LENGTH // 4)
        driver.cuMemcpyHtoD_v2(at, host, LENGTH)
        return holds(at, 31)

    def in_rows():
        given(plain, 37)
        driver.cuMemsetD32_v2(plain + MIB, 0, LENGTH // 4)
        driver.cuMemcpy2D_v2(ctypes.byref(rows(plain, at)))
        driver.cuMemcpy2D_v2(ctypes.byref(rows(at, plain + MIB)))
        driver.cuMemcpy2D_v2(ctypes.byref(rows(plain, plain + MIB)))
        driver.cuCtxSynchronize()
        words = [driver.read_words(base, PITCH // 16) for base in (plain, at, plain + MIB)]
        return words[0] == words[1] == words[2]

    return [
        ("kernel", lambda: sums.fill(whole, SIZE, 3) or sums.sum(whole, SIZE) == filled(SIZE, 3)),
        ("copy_to_device", lambda: given(at, 5) or driver.cuMemcpyDtoD_v2(plain, at, LENGTH) or holds(plain, 5)),
        ("copy_from_device", lambda: given(plain, 7) or driver.cuMemcpyDtoD_v2(at, plain, LENGTH) or holds(at, 7)),
        ("copy_async", lambda: given(plain, 11) or driver.cuMemcpyAsync(at, plain, LENGTH, None) or holds(at, 11)),
        ("copy_by_host", through_host),
        ("copy_2d", in_rows),
        ("set_8", lambda: driver.cuMemsetD8_v2(at, 1, LENGTH) or is_set(0x01010101)),
        ("set_32", lambda: driver.cuMemsetD32_v2(at, 13, LENGTH // 4) or is_set(13)),
        ("set_2d", lambda: driver.cuMemsetD2D32_v2(at, PITCH, 17, PITCH // 4, ROWS) or is_set(17)),
        ("graph_copy", lambda: given(plain, 19) or replayed(
            driver, lambda stream: driver.cuMemcpyDtoDAsync_v2(at, plain, LENGTH, stream)) or holds(at, 19)),
        ("graph_set", lambda: replayed(
            driver, lambda stream: driver.cuMemsetD32Async(at, 23, LENGTH // 4, stream)) or is_set(23)),
    ]


def body(sim, facts):
    driver = Driver()
    sums, plain, wrong = Sums(driver), driver.alloc(SIZE), []
    for name, kinds in (("device_host", (vmm.DEVICE, vmm.HOST_NUMA)), ("host_device", (vmm.HOST_NUMA, vmm.DEVICE))):
        facts[name] = answers = {}
        for use, works in uses(driver, sums, Range(driver, kinds).address, plain):
            try:
                answers[use] = works()
            except Refused as refused:
                answers[use] = str(refused)
            facts.save()
            if answers[use] is not True:
                wrong.append(f"{name}: {use} {'has a wrong result' if answers[use] is False else answers[use]}")
    assert not wrong, ("programs fail on an allocation of which a part is swapped out: " + "; ".join(wrong))
    return "copies, sets, kernels and graphs work on memory that is partly on the device and partly on the host"


if __name__ == "__main__":
    main(body)
