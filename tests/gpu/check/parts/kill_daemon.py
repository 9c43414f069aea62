"""kill -9 of the daemon: the process goes on, and a new daemon has it back with its limit."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
import daemon
from part import load, main, require


def body(sim, facts):
    with load("obey") as program:
        program.until("ready")
        limit = int(control.get(program.pid, "memory.current")) + (64 << 20)
        control.put(program.pid, "memory.limit", limit)
        daemon.kill()
        program.ask("launch 1", "launched")
        require(program.ask("alloc linear 128M", "refused")[0] == "CUDA_ERROR_OUT_OF_MEMORY", "the limit went")
        daemon.start(control.MOUNT)
        control.until("it is back", lambda: control.governed(program.pid))
        require(int(control.get(program.pid, "memory.limit")) == limit, "its limit is lost")
    return "the process went on; the new daemon has it back with its limit"


main(body)
