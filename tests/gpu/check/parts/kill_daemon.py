"""Kills the daemon with SIGKILL: the process continues and registers with the next daemon, which has its
limit."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
import daemon
from part import load, main, require


def body(sim, facts):
    with load("obey") as program:
        program.until("ready")
        limit = control.charged(program.pid) + (64 << 20)
        control.put(program.pid, "memory.limit", limit)
        daemon.kill()
        program.ask("launch 1", "launched")
        require(program.ask("alloc linear 128M", "refused")[0] == "CUDA_ERROR_OUT_OF_MEMORY",
                "the limit is not enforced without the daemon")
        daemon.start(control.MOUNT)
        control.until("the process has registered again", lambda: control.governed(program.pid))
        require(int(control.get(program.pid, "memory.limit")) == limit, "the process lost its limit")
    return "the process continued and registered with the new daemon, which has its limit"


main(body)
