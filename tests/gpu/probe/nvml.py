"""Measures NVML's per-process numbers: their granularity, delay and cost, and the memory of a context before
the program allocates anything."""
import sys
import time
from ctypes import Structure, byref, c_char, c_int, c_uint, c_uint32, c_uint64, c_void_p

from lib import measure
from lib.cuda import MIB, Driver
from lib.nvml import MOST, Nvml, Process, Refused, bus_id
from lib.questions import Questions
from lib.rival import Lead, Rival, serve
from answer import Skip, main

SEEN_WITHIN = 0.5
SHARED = 64 * MIB
LAZY_PEER_ACCESS = 1


class IpcHandle(Structure):
    """CUipcMemHandle."""
    _fields_ = [("data", c_char * 64)]


class Stages(Rival):
    """A process that initialises CUDA step by step."""

    def __init__(self):
        self.kept = []

    def do_init(self):
        """Calls cuInit."""
        self.driver = Driver(context=False)
        return "done"

    def do_context(self):
        """Creates the primary context."""
        self.driver.context = self.driver.get(c_void_p, "cuDevicePrimaryCtxRetain", self.driver.device)
        self.driver.cuCtxSetCurrent(c_void_p(self.driver.context))
        return self.done()

    def do_module(self):
        """Loads the test kernels."""
        self.kernels = self.driver.kernels()
        return self.done()

    def do_launch(self):
        """Launches a kernel on a stream of its own."""
        self.stream = self.driver.stream(1)
        self.kernels("gcgroup_spin", 10, stream=self.stream)
        self.driver.cuCtxSynchronize()
        return self.done()

    def do_streams(self, count):
        """Creates more streams."""
        self.more = [self.driver.stream(1) for _ in range(int(count))]
        return self.done()

    def do_alloc(self, size):
        """Allocates memory."""
        self.kept.append(self.driver.alloc(int(size)))
        return self.done()

    def do_free(self):
        """Frees the last allocation."""
        self.driver.cuMemFree_v2(self.kept.pop())
        return self.done()

    def do_share(self, size):
        """Allocates memory that another process can open."""
        self.kept.append(self.driver.alloc(int(size)))
        handle = self.driver.get(IpcHandle, "cuIpcGetMemHandle", c_uint64(self.kept[-1]))
        return f"shared {bytes(handle).hex()}"

    def do_open(self, hexadecimal):
        """Opens memory of another process."""
        handle = IpcHandle.from_buffer_copy(bytes.fromhex(hexadecimal))
        self.driver.get(c_uint64, "cuIpcOpenMemHandle_v2", handle, c_uint(LAZY_PEER_ACCESS))
        return self.done()

    def done(self):
        """Returns the answer with the free bytes of the device."""
        return f"done {self.driver.free_memory()}"


class Watch:
    """Observes a process through NVML."""

    def __init__(self, nvml):
        self.nvml = nvml
        self.before = set(nvml.processes())
        self.pid = None

    def bytes_of(self, child):
        """Returns the bytes that NVML reports for the child, or None."""
        table = self.nvml.processes()
        if self.pid is None:
            fresh = set(table) - self.before
            # In a container NVML may use pids of another namespace.
            self.pid = child.pid if child.pid in table else fresh.pop() if len(fresh) == 1 else None
        return table.get(self.pid)

    def stage(self, child, line):
        """Returns the numbers after a step of the child."""
        free = child.ask(line, "done")
        return {"process": self.bytes_of(child), "device_used": self.nvml.memory().used,
                "cuda_free": int(free) if free else None}

    def seen(self, child, line):
        """Returns by how much a step of the child changes NVML's number, and after how many microseconds."""
        before = self.bytes_of(child)
        child.ask(line, "done")
        began, now = time.perf_counter(), before
        while now == before and time.perf_counter() - began < SEEN_WITHIN:
            now = self.bytes_of(child)
        return {"step": line, "bytes": now - before, "usec": round((time.perf_counter() - began) * 1e6)
                if now != before else None}


def stages(watch, child):
    """Returns the bytes after each step from nothing to a first launch."""
    answer = {}
    for line in ("init", "context", "module", "launch", "streams 8", "streams 64"):
        answer[line] = watch.stage(child, line)
    answer["pid"] = {"ours": child.pid, "nvml": watch.pid}
    return answer


def granularity(watch, child):
    """Returns by how much and when the process's number changes for allocations of several sizes."""
    if watch.bytes_of(child) is None:
        raise Skip("NVML has no number for the process")
    sizes = (1, 1, 512 << 10, MIB, MIB, 2 * MIB, 2 * MIB, 2 * MIB + 1, 16 * MIB, 33 * MIB, 256 * MIB)
    rows = [watch.seen(child, f"alloc {size}") for size in sizes]
    return rows + [watch.seen(child, "free") for _ in sizes]


def opened(nvml, child):
    """Returns by how much a process's number changes when it opens another's memory: a change means that the
    memory counts twice."""
    watch = Watch(nvml)
    with Lead(__file__, "child") as other:
        for line in ("init", "context"):
            other.ask(line, "done")
        if watch.bytes_of(other) is None:
            raise Skip("NVML has no number for the process")
        return watch.seen(other, "open " + child.ask(f"share {SHARED}", "shared")) | {"step": "open"}


def costs(nvml, sim):
    """Returns the microseconds of each call."""
    count, found = c_uint(), (Process * MOST)()
    listed = lambda name: lambda: getattr(nvml, name)(nvml.device, byref(c_uint(MOST)), found)
    mode = c_int()
    table = {
        "nothing": lambda: measure.NOTHING(0),
        "nvmlDeviceGetCount_v2": lambda: nvml.nvmlDeviceGetCount_v2(byref(count)),
        "nvmlDeviceGetComputeRunningProcesses_v2": listed("nvmlDeviceGetComputeRunningProcesses_v2"),
        "nvmlDeviceGetGraphicsRunningProcesses_v2": listed("nvmlDeviceGetGraphicsRunningProcesses_v2"),
        "nvmlDeviceGetMemoryInfo": nvml.memory,
        "nvmlDeviceGetUtilizationRates": nvml.rates,
        "nvmlDeviceGetProcessUtilization": nvml.samples,
        "nvmlDeviceGetAccountingMode": lambda: nvml.nvmlDeviceGetAccountingMode(nvml.device, byref(mode)),
    }
    answer = {}
    for name, call in table.items():
        try:
            answer[name] = measure.spread(measure.repeat(lambda: measure.usec(call), 0.5, 20 if sim else 300), 2)
        except (Skip, Refused) as reason:
            answer[name] = str(reason)
    return answer


def utilisation(nvml, watch, child, sim):
    """Returns the utilisation of a process that keeps the device busy: delay, period and values."""
    newest = max((sample.time for sample in nvml.samples()), default=0)
    child.ask("batch 1000 4", "batching")
    began, rows, rates = time.perf_counter(), [], []
    while time.perf_counter() - began < (0.5 if sim else 3):
        for sample in nvml.samples(newest):
            newest = max(newest, sample.time)
            rows.append({"after_ms": round((time.perf_counter() - began) * 1000), "time": sample.time,
                         "pid": sample.pid, "sm": sample.sm, "mem": sample.mem})
        rates.append(nvml.rates().gpu)
        time.sleep(0.02)
    child.ask("stop", "batch")
    own = [row for row in rows if row["pid"] == watch.pid]
    times = sorted({row["time"] for row in own})
    return {"samples": rows[:100], "of_the_process": len(own),
            "first_busy_after_ms": next((row["after_ms"] for row in own if row["sm"]), None),
            "period_usec": measure.spread([b - a for a, b in zip(times, times[1:])], 0),
            "sm": measure.spread([row["sm"] for row in own if row["sm"] <= 100], 0), "device": measure.spread(rates, 0)}


def accounting(nvml, watch):
    """Returns whether accounting is enabled (it is not changed here), and the status for the process."""
    mode, buffer = c_int(), c_uint()
    nvml.nvmlDeviceGetAccountingMode(nvml.device, byref(mode))
    nvml.nvmlDeviceGetAccountingBufferSize(nvml.device, byref(buffer))
    stats = (c_uint64 * 32)()
    status = nvml.function("nvmlDeviceGetAccountingStats")(nvml.device, c_uint32(watch.pid or 0), stats)
    return {"enabled": bool(mode.value), "buffer": buffer.value, "stats": nvml.text(status)}


def body(sim, facts):
    driver, questions = Driver(context=False), Questions(facts)
    nvml = Nvml(bus_id(driver))
    watch = Watch(nvml)
    with Lead(__file__, "child") as child:
        grown = questions.ask("stages", stages, watch, child)
        steps = questions.ask("steps", granularity, watch, child)
        twice = questions.ask("opened", opened, nvml, child)
        cost = questions.ask("usec", costs, nvml, sim)
        busy = questions.ask("utilisation", utilisation, nvml, watch, child, sim)
        count = questions.ask("accounting", accounting, nvml, watch)
    context = grown and grown["launch"]["process"]
    late = [step["usec"] for step in steps or [] if step["usec"] is not None]
    name = "nvmlDeviceGetComputeRunningProcesses_v2"
    return questions.verdict(
        grown and ("no number for a process" if context is None else
                   f"a context with a kernel takes {context / MIB:.0f} MiB"),
        late and f"a change of memory shows within {max(late)} usec, by steps of "
        f"{min(abs(step['bytes']) for step in steps if step['bytes']) / MIB:.0f} MiB",
        twice and ("memory that another process shares counts for both" if twice["bytes"] >= SHARED else
                   "memory that another process shares counts for that one"),
        cost and isinstance(cost[name], dict) and f"asking takes {cost[name]['median']:.0f} usec",
        busy and (f"utilisation of the process {busy['sm']['median']:.0f} % each {busy['period_usec'].get('median', 0) / 1000:.0f}"
                  f" ms, first after {busy['first_busy_after_ms']} ms" if busy["of_the_process"] and busy["sm"]["n"] else
                  "no utilisation of the process"),
        count and ("accounting is on" if count["enabled"] else "accounting is off"))


if __name__ == "__main__":
    serve(Stages) if sys.argv[1:] == ["child"] else main(body)
