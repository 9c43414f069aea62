"""Records driver behaviour that the documentation does not specify: which function a look-up returns, and how
much memory each kind of allocation takes."""
import ctypes
import functools
import math
import pathlib
import re
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from lib.cuda import MIB, Driver
from lib.elf import Elf, loaded
from lib.questions import Questions
from lib.vmm import Location
from answer import main

SYMBOLS = pathlib.Path(__file__).resolve().parent / "../../data/libcuda-13.5.symbols"
LEGACY, PER_THREAD = 1, 2
VERSIONS = [2000, 2010, 2020, 3000, 3010, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 7050, 8000, 9000, 9020,
            10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040, 11060, 11070, 12000, 12010, 12020, 12030, 12040,
            12050, 12060, 12080, 12090, 13000, 13010, 13020, 13030, 13040, 13050]


def looked_up(driver, name, version, flags):
    """Returns the result of cuGetProcAddress_v2: status, symbol state, address."""
    address, state = c_void_p(1), c_int(-1)
    status = driver.function("cuGetProcAddress_v2")(
        c_char_p(name.encode()), byref(address), c_int(version), c_uint64(flags), byref(state))
    return status, state.value, address.value


def addresses(driver):
    """Compares the looked-up addresses with the exports. Returns the names whose address is no export, and
    the export of each other name."""
    path, _ = loaded("libcuda.so")
    exports = {name: ctypes.cast(getattr(driver.loaded, name), c_void_p).value
               for name in Elf(path).exports() if re.fullmatch(r"cu[A-Z]\w*", name)}
    names = {}
    for name, address in exports.items():
        names.setdefault(address, []).append(name)
    known = {line.split()[0] for line in SYMBOLS.read_text(encoding="ascii").splitlines() if line.startswith("cu")}
    bases = sorted({re.sub(r"(_v\d+)?(_pts[zd])?$", "", name) for name in {*exports, *known}} | {*exports})
    current = driver.get(c_int, "cuDriverGetVersion")
    versions = [version for version in VERSIONS if version < current] + [current]
    given, elsewhere, unanswered = {}, {}, {}
    for base in bases:
        for flags in (0, LEGACY, PER_THREAD):
            last = None
            for version in versions:
                status, _, address = looked_up(driver, base, version, flags)
                if status or not address:
                    continue
                export = names.get(address)
                if export is None:
                    elsewhere.setdefault(base, {}).setdefault(flags, []).append(version)
                if export != last:
                    given.setdefault(base, {}).setdefault(flags, []).append([version, *(export or ["(no export)"])])
                    last = export
        if base not in given:
            unanswered[base] = looked_up(driver, base, current, 0)[:2]
    return {"exports": len(exports), "asked": len(bases), "given": given, "not_an_export": elsewhere,
            "never_given": unanswered, "aliases": sorted(alike for alike in names.values() if len(alike) > 1)}


def unknown(driver):
    """Returns the results for names that do not exist: status, symbol state, and whether the pointer is
    written."""
    current = driver.get(c_int, "cuDriverGetVersion")
    cases = {"no such function": ("cuNoSuchFunction", current, 0), "empty": ("", current, 0),
             "versioned": ("cuMemAlloc_v2", current, 0), "per thread by name": ("cuLaunchKernel_ptsz", current, 0),
             "not of the driver": ("malloc", current, 0), "version 0": ("cuMemAlloc", 0, 0),
             "version 1000": ("cuMemAlloc", 1000, 0), "older than it": ("cuMemAllocAsync", 11000, 0),
             "a later version": ("cuMemAlloc", 99000, 0), "both flags": ("cuLaunchKernel", current, 3),
             "unknown flag": ("cuLaunchKernel", current, 64)}
    answer = {}
    for what, (name, version, flags) in cases.items():
        status, state, address = looked_up(driver, name, version, flags)
        answer[what] = {"asked": [name, version, flags], "status": driver.error(status) if status else "CUDA_SUCCESS",
                        "symbol_state": state, "pointer": "untouched" if address == 1 else "null" if not address
                        else "set"}
        first = c_void_p(1)
        old = driver.function("cuGetProcAddress")(c_char_p(name.encode()), byref(first), c_int(version), c_uint64(flags))
        answer[what]["first_version_of_the_call"] = [
            driver.error(old) if old else "CUDA_SUCCESS",
            "untouched" if first.value == 1 else "null" if not first.value else "same" if first.value == address
            else "another"]
    return answer


class Descriptor(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                ("channels", c_uint), ("flags", c_uint)]


class Requirements(ctypes.Structure):
    """CUDA_ARRAY_MEMORY_REQUIREMENTS."""
    _fields_ = [("size", c_size_t), ("alignment", c_size_t), ("reserved", c_uint * 4)]


def arrays(driver):
    """Returns what cuArrayGetMemoryRequirements reports and how much the free memory decreases, for plain,
    deferred and sparse arrays."""
    byte, half, single = (0x01, 1), (0x10, 2), (0x20, 4)
    shapes = {"1d": (1000, 0, 0, byte, 1), "2d": (1024, 1024, 0, single, 4), "odd": (1000, 3, 0, byte, 1),
              "3d": (128, 128, 128, half, 4), "large": (8192, 4096, 0, single, 1)}
    rows = []
    for what, (width, height, depth, (form, size), channels) in shapes.items():
        for kind, flags in (("plain", 0), ("deferred", 0x80), ("sparse", 0x40)):
            row = {"shape": what, "kind": kind, "texels": width * max(height, 1) * max(depth, 1) * size * channels}
            descriptor, array = Descriptor(width, height, depth, form, channels, flags), c_void_p()
            free = driver.free_memory()
            status = driver.function("cuArray3DCreate_v2")(byref(array), byref(descriptor))
            if status:
                row["refused"] = driver.error(status)
            else:
                row["taken"] = free - driver.free_memory()
                needs = Requirements()
                status = driver.function("cuArrayGetMemoryRequirements")(byref(needs), array, c_int(driver.device))
                row["requirements"] = driver.error(status) if status else [needs.size, needs.alignment]
                driver.cuArrayDestroy(array)
            rows.append(row)
    return rows


def linear(driver):
    """Returns how much device memory cuMemAlloc takes, and the distance to the next block."""
    rows, kept = [], []
    for size in (1, 1, 511, 513, 4096, 65537, MIB, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 5 * MIB, 64 * MIB):
        free = driver.free_memory()
        address, base, length = driver.alloc(size), c_uint64(), c_size_t()
        kept.append(address)
        driver.cuMemGetAddressRange_v2(byref(base), byref(length), address)
        rows.append({"size": size, "taken": free - driver.free_memory(), "range": length.value,
                     "from_the_last": address - kept[-2] if len(kept) > 1 else None})
    for address in kept:
        driver.cuMemFree_v2(address)
    return rows


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps, 88 bytes."""
    _fields_ = [("type", c_int), ("handle_types", c_int), ("location", Location), ("security", c_void_p),
                ("most", c_size_t), ("reserved", ctypes.c_ubyte * 56)]


RELEASE_THRESHOLD, RESERVED, USED = 4, 5, 7  # CUmemPool_attribute


def pools(driver, sim):
    """Returns the reserved bytes of a pool after each allocation, free and trim, with automatic release
    disabled."""
    stream, properties = driver.stream(1), PoolProperties(type=1, location=Location(1, driver.device))
    pool = c_void_p(driver.get(c_void_p, "cuMemPoolCreate", byref(properties)))
    driver.cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, byref(c_uint64((1 << 64) - 1)))
    rows, kept = [], []

    def note(step):
        reserved, used = c_uint64(), c_uint64()
        driver.cuMemPoolGetAttribute(pool, RESERVED, byref(reserved))
        driver.cuMemPoolGetAttribute(pool, USED, byref(used))
        rows.append({"step": step, "reserved": reserved.value, "used": used.value, "free": driver.free_memory()})

    note("created")
    for size in (1, 1, MIB, MIB, 2 * MIB, 30 * MIB, 31 * MIB, 32 * MIB, 33 * MIB, 40 * MIB, 64 * MIB, 65 * MIB,
                 100 * MIB, 200 * MIB, 3 * MIB):
        kept.append(driver.get(c_uint64, "cuMemAllocFromPoolAsync", size, pool, stream))
        driver.cuStreamSynchronize(stream)
        note(f"alloc {size}")
    while kept:
        driver.cuMemFreeAsync(kept.pop(), stream)
    driver.cuStreamSynchronize(stream)
    note("freed")
    for keep in (100 * MIB, 1, 0):
        driver.cuMemPoolTrimTo(pool, keep)
        note(f"trim {keep}")
    driver.cuMemPoolDestroy(pool)
    reserved = [row["reserved"] for row in rows]
    return {"steps": rows, "granularity": functools.reduce(math.gcd, reserved),
            "grown_by": sorted({b - a for a, b in zip(reserved, reserved[1:]) if b > a})}


def graphs(driver):
    """Returns the device's graph memory after each step of a graph that allocates and frees 40 MiB."""
    stream, graph, run, rows = driver.stream(1), c_void_p(), c_void_p(), []

    def note(step):
        row = {"step": step}
        for number, name in enumerate(("used", "used_high", "reserved", "reserved_high")):
            value = c_uint64()
            driver.cuDeviceGetGraphMemAttribute(driver.device, number, byref(value))
            row[name] = value.value
        rows.append({**row, "free": driver.free_memory()})

    note("nothing")
    driver.cuStreamBeginCapture_v2(stream, 2)
    address = driver.get(c_uint64, "cuMemAllocAsync", 40 * MIB, stream)
    driver.cuMemsetD8Async(address, 1, 40 * MIB, stream)
    driver.cuMemFreeAsync(address, stream)
    driver.cuStreamEndCapture(stream, byref(graph))
    note("captured")
    driver.cuGraphInstantiateWithFlags(byref(run), graph, 0)
    note("instantiated")
    for turn in range(2):
        driver.cuGraphLaunch(run, stream)
        note(f"launched {turn}")
        driver.cuStreamSynchronize(stream)
        note(f"ended {turn}")
    driver.cuDeviceGraphMemTrim(driver.device)
    note("trimmed")
    driver.cuGraphLaunch(run, stream)
    driver.cuStreamSynchronize(stream)
    note("launched again")
    driver.cuGraphExecDestroy(run)
    driver.cuGraphDestroy(graph)
    note("destroyed")
    driver.cuDeviceGraphMemTrim(driver.device)
    note("trimmed again")
    return rows


def body(sim, facts):
    driver, questions = Driver(), Questions(facts)
    found = questions.ask("addresses", addresses, driver)
    none = questions.ask("unknown_names", unknown, driver)
    rows = questions.ask("arrays", arrays, driver)
    questions.ask("linear", linear, driver)
    pool = questions.ask("pool", pools, driver, sim)
    graph = questions.ask("graph", graphs, driver)
    deferred = [row for row in rows or [] if row["kind"] == "deferred" and "requirements" in row]
    plain = [row for row in rows or [] if row["kind"] == "plain"]
    answers = lambda rows: sum(isinstance(row.get("requirements"), list) for row in rows)
    return questions.verdict(
        found and (f"{len(found['not_an_export'])} of {len(found['given'])} names are looked up to what no export is"
                   if found["not_an_export"] else
                   f"all {len(found['given'])} names are looked up to exports"),
        none and "an unknown name: {status}, state {symbol_state}, pointer {pointer}".format(**none["no such function"])
        + "; the empty one: {status}, pointer {pointer}".format(**none["empty"]),
        rows and f"memory requirements: of {answers(plain)} of {len(plain)} plain arrays, of {answers(deferred)} of "
        f"{len(deferred)} deferred",
        pool and f"a pool reserves multiples of {pool['granularity'] / MIB:g} MiB",
        graph and "graph memory is reserved " + next(
            (f"when {row['step']}" for row in graph if row["reserved"]), "never"))


if __name__ == "__main__":
    main(body)
