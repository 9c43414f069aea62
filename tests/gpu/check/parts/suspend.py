"""Measures how fast `gcgroupfs suspend` moves all memory of an unprepared program to the host, and `resume` back"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import subprocess
import time

import control
from part import Skip, load, main, require

MIB, BLOCKS = 1 << 20, 8


def moved(action, pid, whole):
    """Suspends or resumes a process. Returns GB per second. Skips where the driver cannot."""
    began = time.monotonic()
    done = subprocess.run([control.GCGROUPFS, action, "--wait", str(pid)], capture_output=True, text=True, timeout=60,
                          check=False)
    if done.returncode:
        raise Skip(f"{action}: {done.stderr.strip()[-300:]}")
    return round(whole / 1e9 / (time.monotonic() - began), 3)


def body(sim, facts):
    size = (16 if sim else 512) * MIB
    with load("obey") as program:
        program.until("ready")
        for _ in range(BLOCKS):
            program.ask(f"alloc linear {size}", "allocated")
        facts["bytes"] = whole = BLOCKS * size
        facts["out_gb_per_s"] = moved("suspend", program.pid, whole)
        facts["memory_current_suspended"] = int(control.get(program.pid, "memory.current"))
        facts["in_gb_per_s"] = moved("resume", program.pid, whole)
        require(program.ask("verify", "verified") == [str(BLOCKS)], "the memory is wrong after the resumption")
    return f"{whole >> 20} MiB: out {facts['out_gb_per_s']} GB/s, in {facts['in_gb_per_s']} GB/s, contents verified"


main(body)
