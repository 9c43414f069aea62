"""Checks a job of any framework: it is governed, limited, frozen, thawed and counted, and its results do not
change."""
import threading

import control
from held import Account, Untold
from part import STARTS_WITHIN, Skip, has_overhead, job, require

GIB = 1 << 30


class Counter:
    """Reads the steps of a job in a thread, so that the job never waits for its reader."""

    def __init__(self, program):
        self.program, self.count = program, 0
        self.reader = threading.Thread(target=self.read, daemon=True)
        program.tell("steps")
        self.reader.start()

    def read(self):
        words = [""]
        while words[0] != "stopped":
            try:
                words = self.program.line(None).split() or [""]
            except (AssertionError, OSError, ValueError):
                return  # The job has ended; the next command to it fails.
            if words[0] in ("step", "stopped"):
                self.count = int(words[1])

    def go_on(self, steps=3):
        """Waits until the job has completed so many more steps."""
        goal = self.count + steps
        control.until(f"the job reaches step {goal}", lambda: self.count >= goal)

    def stop(self):
        """Stops the steps, so that the job accepts commands again."""
        self.program.tell("stop")
        self.reader.join(20)
        require(not self.reader.is_alive(), "the job does not stop")


def stands_still(program, facts):
    """Freezes a working job, checks that it stands still, and thaws it."""
    counter = Counter(program)
    counter.go_on()
    facts["freeze_seconds"] = control.freeze(program.pid)
    # Lines of steps completed before the freeze may still arrive: two equal readings, then a third.
    seen = [None]

    def settled():
        last, seen[0] = seen[0], counter.count
        threading.Event().wait(0.2)
        return last == seen[0]

    control.until("the count of steps is stable", settled)
    threading.Event().wait(0.5)
    require(counter.count == seen[0], f"the frozen job went from step {seen[0]} to {counter.count}")
    control.thaw(program.pid)
    counter.go_on()
    counter.stop()


def expected(kind, env):
    """Returns the result of an ungoverned job. Skips if that job does not run."""
    with job(kind, bare=True, env=env) as bare:
        try:
            bare.until("ready", STARTS_WITHIN)
        except AssertionError as error:
            raise Skip(f"no {kind} job runs here, even without the hook: {str(error).splitlines()[-1]}") from error
        return bare.ask("hash", "hash")


def compared(pid, account, facts):
    """Compares the ledger with NVML's number. Returns a remark for the verdict, empty if the comparison was
    possible."""
    has_overhead(pid)
    facts["memory_current"] = current = control.charged(pid)
    try:
        facts["nvml"] = held = account.bytes_of(pid)
    except Untold as reason:
        facts["nvml"] = {"not_possible": str(reason)}
        return f"; not compared with NVML: {reason}"
    facts["beyond_ledger"] = held - current
    require(-(64 << 20) <= held - current <= 2 * GIB, f"{current} bytes are charged, NVML reports {held}")
    return ""


def capped(program, facts):
    """Checks that the job sees the limit as its total memory and cannot allocate more."""
    limit = control.charged(program.pid) + 2 * GIB
    control.put(program.pid, "memory.limit", limit)
    info = program.ask("info", "info")
    facts["limit"], facts["info"] = limit, info
    if info != ["none"]:
        require(int(info[1]) == limit, f"the limit is {limit}, the job sees a total of {info[1]}")
    program.ask(f"alloc {256 << 20}", "allocated")
    program.ask(f"alloc {3 * GIB}", "oom")


def check(kind, facts, env=None):
    """Runs all checks of a job. Stores numbers in `facts`, and raises at the first failure."""
    account = Account()
    with job(kind, env=env) as program:
        right = expected(kind, env)
        program.until("ready", STARTS_WITHIN)
        pid = program.pid
        require(control.governed(pid), "the job has no directory")
        require(program.ask("hash", "hash") == right, "results differ under the hook")
        untold = compared(pid, account, facts)
        facts["compute_stat"], facts["memory_stat"] = (control.flat(pid, f"{name}.stat") for name in ("compute", "memory"))
        require(int(facts["compute_stat"]["nr_launches"]) > 0, "no launch was counted")
        stands_still(program, facts)
        capped(program, facts)
        require(program.ask("hash", "hash") == right, "results differ after a refusal")
    control.until("the job's directory is removed", lambda: not control.governed(pid))
    return f"governed, capped, frozen and thawed; results unchanged{untold}"
