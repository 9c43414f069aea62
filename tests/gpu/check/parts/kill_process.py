"""Kills a process that allocates and frees with SIGKILL."""
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
        control.until("an allocation is charged", lambda: int(control.get(pid, "memory.peak")) > 0)
        threading.Event().wait(0.3)
        facts["nvml_before"] = account.number(pid)
        program.process.kill()
        program.process.wait()
        control.until("the killed process's directory is removed", lambda: not control.governed(pid))
        untold = ""
        try:
            account.names(pid)
            control.until("NVML no longer lists the killed process", lambda: not account.names(pid))
        except Untold as reason:
            untold = f"; not checked in NVML: {reason}"
    with load("obey") as program:
        program.until("ready")
        require(program.ask("alloc linear 1M", "allocated"), "no memory afterwards")
    return f"the killed process's directory is removed, its memory is free{untold}"


main(body)
