"""What must hold for a job of any framework: governed, capped, frozen, thawed, counted, unchanged."""
import threading

import control
from part import Skip, job, nvml_bytes, require

GIB = 1 << 30


class Counter:
    """Reads the steps of a job as they come, so that it never waits for its reader."""

    def __init__(self, program):
        self.program, self.count = program, 0
        self.reader = threading.Thread(target=self.read, daemon=True)
        program.tell("steps")
        self.reader.start()

    def read(self):
        for line in self.program.process.stdout:
            words = line.split()
            if words and words[0] in ("step", "stopped"):
                self.count = int(words[1])
            if words and words[0] == "stopped":
                return

    def go_on(self, steps=3):
        """Waits for so many more steps."""
        goal = self.count + steps
        control.until(f"step {goal}", lambda: self.count >= goal)

    def stop(self):
        """Lets the job listen again."""
        self.program.tell("stop")
        self.reader.join(20)
        require(not self.reader.is_alive(), "the job does not stop")


def stands_still(program, facts):
    """Freezes a job at work, and lets it go on."""
    counter = Counter(program)
    counter.go_on()
    facts["freeze_seconds"] = control.freeze(program.pid)
    # What ended before the freeze may still be on its way to us: two equal readings, then a third.
    seen = [None]

    def settled():
        last, seen[0] = seen[0], counter.count
        threading.Event().wait(0.2)
        return last == seen[0]

    control.until("the steps settle", settled)
    threading.Event().wait(0.5)
    require(counter.count == seen[0], f"frozen, it went from step {seen[0]} to {counter.count}")
    control.thaw(program.pid)
    counter.go_on()
    counter.stop()


def check(kind, facts, env=None):
    """All of it; the numbers go to `facts`, the first that does not hold is raised."""
    with job(kind, bare=True, env=env) as bare, job(kind, env=env) as program:
        try:
            bare.until("ready")
        except AssertionError as error:
            raise Skip(f"no {kind} job runs here, hook or none: {str(error).splitlines()[-1]}") from error
        expected = bare.ask("hash", "hash")
        bare.process.kill()
        program.until("ready")
        pid = program.pid
        require(control.governed(pid), "no directory for it")
        require(program.ask("hash", "hash") == expected, "results differ under the hook")
        current, nvml = int(control.get(pid, "memory.current")), nvml_bytes(pid)
        facts.update(memory_current=current, nvml=nvml)
        if nvml is not None:
            facts["beyond_ledger"] = nvml - current
            require(-(64 << 20) <= nvml - current <= 2 * GIB, f"the ledger has {current}, NVML {nvml}")
        facts["launches"] = int(control.flat(pid, "compute.stat")["nr_launches"])
        require(facts["launches"] > 0, "no launch was counted")
        stands_still(program, facts)
        limit = int(control.get(pid, "memory.current")) + GIB
        control.put(pid, "memory.limit", limit)
        info = program.ask("info", "info")
        if info != ["none"]:
            require(int(info[1]) == limit, f"the limit is {limit}, the total it sees {info[1]}")
        program.ask(f"alloc {256 << 20}", "allocated")
        program.ask(f"alloc {2 * GIB}", "oom")
        require(program.ask("hash", "hash") == expected, "results differ after a refusal")
    control.until("its directory goes", lambda: not control.governed(pid))
    return "governed, capped, frozen and thawed; results unchanged"
