"""Measures the cost of moving memory under a fixed address, and checks whether programs notice: kernels,
copies, graphs, atomics.

Memory is of three kinds: on the device, on the host's NUMA node by cuMemCreate, and pinned by cuMemHostAlloc."""
import ctypes
import json
import os
import sys
from ctypes import c_size_t, c_uint64, c_void_p

from lib import measure, vmm
from lib.cuda import HOST_NUMA_ID, INVALID_VALUE, MIB, NOT_SUPPORTED, VMM, Driver, Refused, drop_privileges
from lib.sums import Sums, constant, filled
from lib.questions import Questions
from answer import Skip, main
from program import Program

KINDS = {"device": vmm.DEVICE, "host_numa": vmm.HOST_NUMA}


def granularity(driver, kind):
    """Returns the minimum and the recommended granularity of sizes, or the error."""
    properties = vmm.Properties(type=1, location=vmm.location(driver, kind))
    try:
        return [driver.get(c_size_t, "cuMemGetAllocationGranularity", ctypes.byref(properties), option)
                for option in (0, 1)]
    except Refused as refused:
        return str(refused)


def steps(driver, size, kind):
    """Returns the microseconds of each step from nothing to usable memory, and back."""
    took = {}

    def timed(name, *arguments):
        answer = []
        took[name] = measure.usec(lambda: answer.append(arguments[0](*arguments[1:])))
        return answer[0]

    handle = timed("create", vmm.create, driver, size, kind)
    address = timed("reserve", vmm.reserve, driver, size)
    timed("map", driver.cuMemMap, address, size, 0, handle, 0)
    timed("set_access", vmm.allow, driver, address, size)
    timed("first_use", lambda: (driver.cuMemsetD8_v2(address, 1, size), driver.cuCtxSynchronize()))
    timed("unmap", driver.cuMemUnmap, address, size)
    timed("release", driver.cuMemRelease, handle)
    timed("address_free", driver.cuMemAddressFree, address, size)
    return took


def pinned_steps(driver, size):
    """Returns the microseconds of each step for memory of cuMemHostAlloc."""
    took, address = {}, c_void_p()
    took["create"] = measure.usec(lambda: driver.cuMemHostAlloc(ctypes.byref(address), size, 2))
    took["first_use"] = measure.usec(
        lambda: (driver.cuMemsetD8_v2(address, 1, size), driver.cuCtxSynchronize()))
    took["release"] = measure.usec(lambda: driver.cuMemFreeHost(address))
    return took


def costs(driver, sim):
    """Returns medians in microseconds by kind, MiB and step."""
    table = {}
    kinds = {**{name: lambda size, kind=kind: steps(driver, size, kind) for name, kind in KINDS.items()},
             "pinned": lambda size: pinned_steps(driver, size)}
    for name, once in kinds.items():
        table[name] = {}
        for mib in (2, 8) if sim else (2, 8, 32, 64, 128, 256, 512):
            try:
                runs = measure.repeat(lambda: once(mib * MIB), 0.3, 8)
            except Refused as refused:
                table[name] = {"refused": str(refused)}
                break
            table[name][mib] = {step: measure.spread([run[step] for run in runs], 1) for step in runs[0]}
    return table


def bandwidth(driver, sums, sim):
    """Returns GB/s of kernels that read or write memory of each kind, and of copies between it and device
    memory."""
    size, table = (2 if sim else 256) * MIB, {}
    other = driver.alloc(size)
    for name, kind in {**KINDS, "pinned": None}.items():
        try:
            chunk = vmm.Chunk(driver, size, kind) if kind else None
            address = chunk.address if chunk else driver.get(c_uint64, "cuMemHostAlloc", size, 2)
        except Refused as refused:
            table[name] = {"refused": str(refused)}
            continue
        work = {"kernel_writes": lambda: sums.fill(address, size, 1),
                "kernel_reads": lambda: sums.add(address, size, sums.out),
                "copy_in": lambda: driver.cuMemcpyAsync(address, other, size, None),
                "copy_out": lambda: driver.cuMemcpyAsync(other, address, size, None)}
        table[name] = {}
        for what, submit in work.items():
            try:
                milliseconds = min(driver.milliseconds(submit) for _ in range(2 if sim else 4))
                table[name][what] = round(size / 1e6 / max(milliseconds, 1e-6), 2)
            except Refused as refused:
                table[name][what] = str(refused)
        chunk.close() if chunk else driver.cuMemFreeHost(address)
    driver.cuMemFree_v2(other)
    return table


def captured(driver, sums, chunk):
    """Returns the replay of a graph that fills the chunk with values from 11 on and adds its sum to the
    second word of `out`."""
    stream, graph, run = driver.stream(1), c_void_p(), c_void_p()
    driver.cuStreamBeginCapture_v2(stream, 2)
    driver.cuMemsetD8Async(sums.out + 8, 0, 8, stream)
    sums.fill(chunk.address, chunk.size, 11, stream)
    sums.add(chunk.address, chunk.size, sums.out + 8, stream)
    driver.cuMemcpyDtoDAsync_v2(sums.out + 4096, chunk.address, 4096, stream)
    driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    driver.cuGraphInstantiateWithFlags(ctypes.byref(run), graph, 0)

    def replay():
        driver.cuMemsetD8_v2(sums.out + 4096, 0, 4096)
        driver.cuGraphLaunch(run, stream)
        driver.cuStreamSynchronize(stream)
        copied = driver.read_words(sums.out + 4096, 512) == words(11, 512)
        return driver.read_words(sums.out + 8, 1)[0] == filled(chunk.size, 11) and copied

    return replay


def words(value, count):
    """Returns the first 64-bit words of memory filled with values from `value` on."""
    return [(value + 2 * i) | (value + 2 * i + 1) << 32 for i in range(count)]


class Checks:
    """Stores the result of each condition by name: true, false, or the error. Raises for an error other than
    a refused call."""

    def __init__(self):
        self.holds = {}

    def __call__(self, name, condition):
        try:
            self.holds[name] = condition()
        except Refused as refused:
            self.holds[name] = str(refused)
            if refused.status not in (INVALID_VALUE, NOT_SUPPORTED):
                raise

    def wrong(self):
        """Returns the names of the conditions that do not hold."""
        return [name for name, held in self.holds.items() if held is not True]


def correctness(driver, sums, sim):
    """Checks all uses of memory that was moved under its address."""
    size, check = (2 if sim else 64) * MIB, Checks()
    facts = {"mib": size // MIB, "holds": check.holds}
    try:
        moved(driver, sums, size, check, facts)
    except Refused as refused:
        # The error may have destroyed the context.
        facts["ended_by"] = str(refused)
    facts["wrong"] = check.wrong()
    return facts


def moved(driver, sums, size, check, facts):
    """Checks each use of memory before a move to the host, after it, and after the move back."""
    chunk, other = vmm.Chunk(driver, size), driver.alloc(size)
    at, replay = chunk.address, captured(driver, sums, chunk)
    check("graph_before_the_move", replay)
    facts["device_told"] = vmm.told(driver, at + MIB)
    sums.fill(at, size, 7)
    facts["out_usec"] = measure.usec(lambda: chunk.move(vmm.HOST_NUMA))
    facts["host_told"] = vmm.told(driver, at + MIB)
    check("kernel_reads", lambda: sums.holds(at, size, 7))
    check("copy_to_host", lambda: driver.read_words(at, 512) == words(7, 512))
    sums.fill(at, size, 9)
    check("kernel_writes", lambda: sums.holds(at, size, 9))
    check("copy_to_device", lambda: driver.cuMemcpyDtoD_v2(other, at, size) or sums.holds(other, size, 9))
    sums.fill(other, size, 13)
    check("copy_from_device", lambda: driver.cuMemcpyDtoDAsync_v2(at, other, size, None) or sums.holds(at, size, 13))
    check("set", lambda: driver.cuMemsetD32_v2(at, 5, size // 4) or sums.sum(at, size) == constant(size, 5))
    check("copy_from_host", lambda: driver.cuMemcpyHtoD_v2(at, (c_uint64 * 512)(*words(21, 512)), 4096)
          or driver.read_words(at, 512) == words(21, 512))
    driver.cuMemsetD8_v2(at, 0, 64)
    sums.add(other, size, at)
    driver.cuCtxSynchronize()
    check("atomic_add", lambda: driver.read_words(at, 1)[0] == filled(size, 13))
    try:
        check("atomic_cas_max", lambda: atomics(driver, at))
    except Skip as reason:
        facts["atomic_cas_max"] = str(reason)
    # Last use of the host memory: a graph may keep properties of the memory from its creation.
    check("graph_after_the_move", lambda: replay() and sums.holds(at, size, 11))
    sums.fill(at, size, 17)
    facts["in_usec"] = measure.usec(lambda: chunk.move(vmm.DEVICE))
    check("after_the_way_back", lambda: sums.holds(at, size, 17))
    check("graph_after_the_way_back", replay)
    chunk.close()
    driver.cuMemFree_v2(other)


def atomics(driver, address):
    """Checks add, maximum and compare-and-swap by 256 threads on the same three words."""
    kernels = driver.own_kernels()
    driver.cuMemsetD8_v2(address, 0, 64)
    kernels("probe_atomics", address, grid=8, block=32)
    driver.cuCtxSynchronize()
    return driver.read_words(address, 3) == [256, 255, 256]


def unprivileged():
    """Maps, writes and reads host memory as the user nobody."""
    facts = {"was_root": drop_privileges(), "uid": os.getuid()}
    driver = Driver()
    sums, size = Sums(driver), 2 * MIB
    chunk = vmm.Chunk(driver, size, vmm.HOST_NUMA)
    sums.fill(chunk.address, size, 3)
    facts["works"] = sums.holds(chunk.address, size, 3)
    chunk.close()
    return facts


def privileges():
    """Runs `unprivileged` in another process: as nobody if this process is root, as the current user
    otherwise."""
    with Program([sys.executable, os.path.abspath(__file__), "child"]) as program:
        answer = json.loads(program.until("{"))
    if "unable" in answer:
        raise Skip(answer["unable"])
    return answer


def body(sim, facts):
    driver = Driver()
    facts["attributes"] = {"vmm": driver.attribute(VMM), "host_numa_id": driver.attribute(HOST_NUMA_ID)}
    if not facts["attributes"]["vmm"]:
        raise Skip("the device has no virtual memory management")
    facts["granularity"] = {name: granularity(driver, kind) for name, kind in KINDS.items()}
    sums, questions = Sums(driver), Questions(facts)
    cost = questions.ask("usec", costs, driver, sim)
    gb = questions.ask("gb_per_second", bandwidth, driver, sums, sim)
    # After the questions that use this context: an error may destroy it.
    right = questions.ask("moved", correctness, driver, sums, sim)
    nobody = questions.ask("unprivileged", privileges)
    largest = cost and {name: rows[max(rows)]["create"]["median"] / max(rows)
                        for name, rows in cost.items() if "refused" not in rows}
    return questions.verdict(
        right and told(right),
        reads(gb),
        largest and "creating a MiB takes usec: " + ", ".join(f"{k} {v:.1f}" for k, v in largest.items()),
        nobody and ("an unprivileged process can do it" if nobody["works"] else "an unprivileged process gets wrong results"))


def reads(table):
    """Describes the kernels' read bandwidths."""
    return table and "kernels read at GB/s: " + ", ".join(
        f"{kind} {row.get('kernel_reads', row.get('refused'))}" for kind, row in table.items())


def told(right):
    """Describes the result of moving memory."""
    if "out_usec" not in right:
        return f"memory does not move to host NUMA memory: {right.get('ended_by')}"
    if right["wrong"] or "ended_by" in right:
        return f"WRONG after a move: {', '.join(right['wrong'])} {right.get('ended_by', '')}".rstrip()
    return "memory moves to host NUMA memory and back under its address, and all is right"


def child():
    try:
        answer = unprivileged()
    except (Refused, Skip, OSError) as reason:
        answer = {"unable": str(reason)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else main(body)
