"""kill -9 of a process that allocates and frees."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import threading

import control
from held import Account, Untold
from part import load, main, require


def body(sim, facts):
    account = Account()
    with load("overhead", "--call", "alloc-free", "--rounds", 1000000, "--size", "1M") as program:
        program.until("ready")
        pid = program.pid
        control.until("it counts allocations", lambda: int(control.get(pid, "memory.peak")) > 0)
        threading.Event().wait(0.3)
        facts["nvml_before"] = account.number(pid)
        program.process.kill()
        program.process.wait()
        control.until("its directory goes", lambda: not control.governed(pid))
        untold = ""
        try:
            account.names(pid)
            control.until("NVML forgets it", lambda: not account.names(pid))
        except Untold as reason:
            untold = f"; whether NVML has forgotten it is not known: {reason}"
    with load("obey") as program:
        program.until("ready")
        require(program.ask("alloc linear 1M", "allocated"), "no memory afterwards")
    return f"its directory went, its memory is free{untold}"


main(body)
