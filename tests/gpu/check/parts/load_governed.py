"""Checks that gcgroup-load is limited, frozen and counted."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
from part import load, main, require


def body(sim, facts):
    with load("obey") as program:
        program.until("ready")
        pid = program.pid
        program.ask("launch 5", "launched")
        program.ask("sync", "synchronised")
        require(int(control.flat(pid, "compute.stat")["nr_launches"]) >= 5, "the launches are not counted")
        program.ask("alloc linear 64M", "allocated")
        limit = control.charged(pid) + (64 << 20)
        control.put(pid, "memory.limit", limit)
        require(int(program.ask("meminfo", "meminfo")[1]) == limit, "the program's total memory is not the limit")
        require(program.ask("alloc linear 128M", "refused")[0] == "CUDA_ERROR_OUT_OF_MEMORY", "another error")
        require(program.ask("verify", "verified") == ["1"], "the program's memory changed")
        facts["freeze_seconds"] = control.freeze(pid)
        control.thaw(pid)
        program.ask("launch 1", "launched")
    return "counted, capped, frozen and thawed"


main(body)
