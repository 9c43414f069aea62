"""Moves memory under what keeps its address: tensor maps, cuBLAS and a block of several GiB, and measures the
speed of the latter whole and in pieces."""
import ctypes
import os
import sys
import time
from ctypes import byref, c_float, c_int, c_ubyte, c_uint32, c_uint64, c_void_p

from lib import vmm
from lib.cuda import COMPUTE_CAPABILITY, HERE, MIB, VMM, Driver
from lib.questions import Questions
from lib.sums import Sums
from answer import Skip, main

TILE = HERE / "tile.ptx"
SIDE, ROW = 16, 64  # Words of a tile's side, and of a row of the tensor.
UINT32 = 2  # CU_TENSOR_MAP_DATA_TYPE_UINT32
PIECE = 256 * MIB
CUBLAS = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")


class TensorMap(ctypes.Structure):
    """CUtensorMap: 128 bytes, aligned to 64."""
    _fields_ = [("words", c_uint64 * 16)]


def tensor_map(driver, address):
    """Returns a tensor map of ROW x ROW words at an address, with tiles of SIDE x SIDE words, and what keeps it
    alive."""
    room = (c_ubyte * (128 + 64))()
    at = -(-ctypes.addressof(room) // 64) * 64
    encode = driver.function("cuTensorMapEncodeTiled")
    sizes, strides = (c_uint64 * 2)(ROW, ROW), (c_uint64 * 1)(4 * ROW)
    box, steps = (c_uint32 * 2)(SIDE, SIDE), (c_uint32 * 2)(1, 1)
    status = encode(c_void_p(at), c_int(UINT32), c_uint32(2), c_void_p(address), sizes, strides, box, steps,
                    c_int(0), c_int(0), c_int(0), c_int(0))
    if status:
        raise Skip(f"cuTensorMapEncodeTiled: {driver.error(status)}")
    return at, room


def tile_sum(value):
    """Returns the sum of a tile of memory filled with values from `value` on."""
    return sum(value + row * ROW + column for row in range(SIDE) for column in range(SIDE)) % (1 << 32)


def tensor_maps(driver, sums):
    """Returns whether a kernel loads the right tile through a tensor map that was made before the memory behind
    its address moved, on the host and back on the device."""
    capability = [driver.attribute(number) for number in COMPUTE_CAPABILITY]
    chunk = vmm.Chunk(driver, 2 * MIB)
    at, room = tensor_map(driver, chunk.address)
    if capability < [9, 0]:
        raise Skip(f"kernels use tensor maps from compute capability 9.0 on; here {capability}")
    kernels = driver.kernels(TILE)

    def loads(value):
        sums.fill(chunk.address, chunk.size, value)
        out = c_uint64(sums.out)
        parameters = (c_void_p * 2)(at, ctypes.addressof(out))
        driver.cuLaunchKernel(kernels.function("probe_tile"), *map(c_uint32, (1, 1, 1, 1, 1, 1, 0)), None, parameters, None)
        driver.cuCtxSynchronize()
        return driver.read_words(sums.out, 1)[0] % (1 << 32) == tile_sum(value)

    answer = {"before": loads(3)}
    for name, kind in (("on_the_host", vmm.HOST_NUMA), ("back", vmm.DEVICE)):
        chunk.move(kind)
        answer[name] = loads(5)
    del room
    chunk.close()
    return answer


def cublas():
    """Returns the cuBLAS library: that of the system, or of a Python package."""
    names = list(CUBLAS)
    for path in sys.path:
        for release in ("cublas", "cu13"):
            names += [os.path.join(path, "nvidia", release, "lib", name) for name in CUBLAS]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Skip("no cuBLAS here")


def products(driver, sim):
    """Returns whether cublasSgemm computes the same from operands that have moved to the host and back, and the
    milliseconds on each."""
    if sim:
        raise Skip("needs NVIDIA's cuBLAS")
    library, side = cublas(), 1024
    handle = c_void_p()
    if status := library.cublasCreate_v2(byref(handle)):
        raise Skip(f"cublasCreate: {status}")
    one, zero = c_float(1), c_float(0)
    chunks = [vmm.Chunk(driver, 4 * side * side) for _ in range(3)]
    for index, chunk in enumerate(chunks):
        driver.cuMemsetD32_v2(chunk.address, 0x3F800000 + index, side * side)

    def product():
        def multiply():
            a, b, c = (c_void_p(chunk.address) for chunk in chunks)
            if status := library.cublasSgemm_v2(handle, 0, 0, side, side, side, byref(one), a, side, b, side,
                                                byref(zero), c, side):
                raise AssertionError(f"cublasSgemm: {status}")
        milliseconds = driver.milliseconds(multiply)
        return driver.read_words(chunks[2].address, 512), round(milliseconds, 3)

    product()
    right, took = product()
    answer = {"ms": {"device": took}}
    for name, kind in (("host", vmm.HOST_NUMA), ("back", vmm.DEVICE)):
        for chunk in chunks:
            chunk.move(kind)
        driver.cuMemsetD8_v2(chunks[2].address, 0, chunks[2].size)
        found, answer["ms"][name] = product()
        answer[name] = found == right
    library.cublasDestroy_v2(handle)
    for chunk in chunks:
        chunk.close()
    return answer


def available():
    """Returns the bytes of host memory that are available."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


class Pieces:
    """An address range with memory in pieces."""

    def __init__(self, driver, size, piece):
        self.driver, self.size, self.piece = driver, size, piece
        self.address = vmm.reserve(driver, size)
        self.handles = {offset: None for offset in range(0, size, piece)}
        for offset in self.handles:
            self.handles[offset] = vmm.create(driver, piece, vmm.DEVICE)
            vmm.map_memory(driver, self.address + offset, piece, self.handles[offset])

    def move(self, kind):
        """Moves one piece after the other. Returns the seconds of it, and of creating memory alone."""
        began, creating = time.perf_counter(), 0.0
        aside = vmm.reserve(self.driver, self.piece)
        for offset, handle in self.handles.items():
            before = time.perf_counter()
            fresh = vmm.create(self.driver, self.piece, kind)
            creating += time.perf_counter() - before
            vmm.map_memory(self.driver, aside, self.piece, fresh)
            self.driver.cuMemcpy(aside, self.address + offset, self.piece)
            self.driver.cuCtxSynchronize()
            self.driver.cuMemUnmap(aside, self.piece)
            self.driver.cuMemUnmap(self.address + offset, self.piece)
            self.driver.cuMemRelease(handle)
            self.handles[offset] = fresh
            vmm.map_memory(self.driver, self.address + offset, self.piece, fresh)
        self.driver.cuMemAddressFree(aside, self.piece)
        return {"seconds": round(time.perf_counter() - began, 3), "creating": round(creating, 3)}

    def close(self):
        """Frees everything."""
        for offset, handle in self.handles.items():
            self.driver.cuMemUnmap(self.address + offset, self.piece)
            self.driver.cuMemRelease(handle)
        self.driver.cuMemAddressFree(self.address, self.size)


def large(driver, sums, sim):
    """Returns the seconds to move a block of 8 GiB, or of what this machine has room for, out and in, whole and
    in pieces, and whether its content stays."""
    room = 32 * MIB if sim else min(8 << 30, available() // 3, driver.free_memory() // 3)
    piece = 8 * MIB if sim else PIECE
    size = room // piece * piece
    if not size:
        raise Skip(f"no room for {piece >> 20} MiB")
    answer = {"gib": size / (1 << 30)}
    for name, each in (("whole", size), ("in_pieces", piece)):
        block = Pieces(driver, size, each)
        sums.fill(block.address, size, 7)
        right = sums.sum(block.address, size)
        answer[name] = {"out": block.move(vmm.HOST_NUMA), "in": block.move(vmm.DEVICE)}
        answer[name]["intact"] = sums.sum(block.address, size) == right
        block.close()
    return answer


def speed(row, gib, way):
    """Returns GiB per second."""
    return gib / max(row[way]["seconds"], 1e-6)


def body(sim, facts):
    driver = Driver()
    if not driver.attribute(VMM):
        raise Skip("the device has no virtual memory management")
    sums, questions = Sums(driver), Questions(facts)
    block = questions.ask("large", large, driver, sums, sim)
    tensors = questions.ask("tensor_maps", tensor_maps, driver, sums)
    blas = questions.ask("cublas", products, driver, sim)
    wrong = [f"{name} {where}" for name, row in (("tensor maps", tensors), ("cuBLAS", blas)) if row
             for where, right in row.items() if right is False]
    return questions.verdict(
        block and "{:.1f} GiB at GiB/s out and in: whole {:.1f} and {:.1f}, in pieces {:.1f} and {:.1f}{}".format(
            block["gib"], *(speed(block[name], block["gib"], way) for name in ("whole", "in_pieces") for way in ("out", "in")),
            "" if block["whole"]["intact"] and block["in_pieces"]["intact"] else ", content is LOST"),
        (tensors or blas) and ("WRONG: " + ", ".join(wrong) if wrong else "what keeps the address works after a move"))


if __name__ == "__main__":
    main(body)
