"""Checks whether the driver's checkpoints work on a plain process, measures the seconds for each GiB, and
verifies the memory afterwards. cuCheckpointProcess* act on a process of the probe's own, which is killed if
anything goes wrong."""
import ctypes
import os
import sys
import time
from ctypes import c_int, c_uint32, c_uint64

from lib.cuda import MIB, Driver, Missing, Refused
from lib.nvml import Nvml, bus_id
from lib.questions import Questions
from lib.rival import Lead, Rival, serve
from lib.sums import Sums
from lib.words import PAGE, Words, shared_memory
from answer import Skip, main

STATES = ("running", "locked", "checkpointed", "failed")
LOCK_TIMEOUT_MS = 10_000


class Held(Rival):
    """Holds device memory with known content."""

    def __init__(self):
        super().__init__()
        self.sums, self.kept = Sums(self.driver), []

    def do_hold(self, mib, *more):
        """Allocates and fills memory, and optionally makes registered host memory or a pool."""
        self.size = int(mib) * MIB
        self.address = self.driver.alloc(self.size)
        self.sums.fill(self.address, self.size, 7)
        if "registered" in more:
            import mmap
            self.kept.append(Words(self.driver, mmap.mmap(shared_memory("probe"), PAGE)))
        if "pool" in more:
            self.kept.append(self.driver.get(c_uint64, "cuMemAllocAsync", 8 * MIB, self.stream))
        self.driver.cuCtxSynchronize()
        return "holding"

    def do_spin(self, usec):
        """Starts a kernel of `usec` microseconds."""
        self.kernels("gcgroup_spin", int(usec), stream=self.stream)
        return "spinning"

    def do_check(self):
        """Answers whether the memory is intact, and runs a kernel."""
        intact = self.sums.holds(self.address, self.size, 7)
        self.sums.fill(self.address, self.size, 7)
        self.driver.cuCtxSynchronize()
        return f"intact {int(intact)}"


def host_bytes(pid):
    """Returns the bytes of a process in host memory."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file if line.startswith("Vm"))
    return int(fields["VmRSS"].split()[0]) << 10


class Checkpoints:
    """Calls the checkpoint functions and times them."""

    def __init__(self, driver):
        self.driver = driver
        try:
            self.nvml = Nvml(bus_id(driver))
        except Skip:
            self.nvml = None

    def used(self):
        """Returns the bytes in use on the device by all processes."""
        return self.nvml.memory().used if self.nvml else None

    def state(self, pid):
        """Returns the checkpoint state of a process."""
        state = c_int(-1)
        self.driver.cuCheckpointProcessGetState(c_int(pid), ctypes.byref(state))
        return STATES[state.value] if 0 <= state.value < len(STATES) else state.value

    def step(self, verb, pid):
        """Returns the seconds that a step takes."""
        arguments = (c_uint64 * 8)()
        if verb == "Lock":
            ctypes.cast(arguments, ctypes.POINTER(c_uint32))[0] = LOCK_TIMEOUT_MS
        began = time.perf_counter()
        getattr(self.driver, f"cuCheckpointProcess{verb}")(c_int(pid), arguments)
        return round(time.perf_counter() - began, 6)

    def cycle(self, mib, *more, spin=0):
        """Checkpoints and restores a process, and returns what was observed."""
        with Lead(__file__, "child") as child:
            child.ask(f"hold {mib} {' '.join(more)}", "holding")
            facts = {"mib": mib, "with": list(more), "states": [self.state(child.pid)], "seconds": {},
                     "device_used": [self.used()], "host_bytes": [host_bytes(child.pid)]}
            if spin:
                child.ask(f"spin {spin}", "spinning")
            try:
                self.steps(child, facts)
            except Refused as refused:
                facts["refused"] = str(refused)
                return facts
            facts["intact"] = child.told("intact") == "1"
            return facts

    def steps(self, child, facts):
        """Locks, checkpoints, restores and unlocks the process; a driver call made meanwhile should wait."""
        for verb in ("Lock", "Checkpoint", "Restore", "Unlock"):
            facts["seconds"][verb.lower()] = self.step(verb, child.pid)
            facts["states"].append(self.state(child.pid))
            facts["device_used"].append(self.used())
            facts["host_bytes"].append(host_bytes(child.pid))
            if verb == "Lock":
                child.tell("check")
            if verb == "Checkpoint":
                facts["calls_wait"] = not child.answers_within(0.3)


def body(sim, facts):
    driver, questions = Driver(context=False), Questions(facts)
    facts["uid"] = os.geteuid()
    checkpoints = Checkpoints(driver)
    try:
        checkpoints.state(os.getpid())
    except Missing:
        raise
    except Refused as refused:
        facts["of_itself"] = str(refused)
    small, large = (16, 64) if sim else (256, 2048)
    first = questions.ask("small", checkpoints.cycle, small)
    if not first or "refused" in first:
        return questions.verdict(first and f"checkpoints are refused: {first['refused']}")
    second = questions.ask("large", checkpoints.cycle, large)
    questions.ask("registered_memory", checkpoints.cycle, small, "registered")
    questions.ask("pool", checkpoints.cycle, small, "pool")
    loaded = questions.ask("while_a_kernel_runs", lambda: checkpoints.cycle(small, spin=300_000))
    if not second or "refused" in second:
        return questions.verdict("checkpoints work for a small process only")
    more = (large - small) / 1024
    rate = {verb: (second["seconds"][verb] - first["seconds"][verb]) / more for verb in ("checkpoint", "restore")}
    facts["seconds_per_gib"] = rate
    return questions.verdict(
        f"{rate['checkpoint']:.2f} s out and {rate['restore']:.2f} s in for each GiB, "
        f"{first['seconds']['checkpoint']:.2f} and {first['seconds']['restore']:.2f} s for {small} MiB",
        "data intact" if first["intact"] and second["intact"] else "data is NOT intact",
        "calls of the process wait meanwhile" if first["calls_wait"] else "calls of the process do NOT wait",
        loaded and ("refused while a kernel runs" if "refused" in loaded else
                    f"locking behind a kernel of 0.3 s takes {loaded['seconds']['lock']:.2f} s"))


if __name__ == "__main__":
    serve(Held) if sys.argv[1:] == ["child"] else main(body)
