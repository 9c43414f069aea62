"""Checks two programs in a group: one limit and one freeze for both."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
from part import has_overhead, load, main, require

GROUP, BLOCK, BLOCKS = "gpu-check", 64 << 20, 4


def fill(programs):
    """Allocates blocks in turn until every program is refused. Returns the number of allocated blocks."""
    got, left = 0, list(programs)
    while left:
        for program in list(left):
            program.tell(f"alloc linear {BLOCK}")
            answer = program.line().split()
            if answer[0] == "allocated":
                got += 1
                require(got <= 2 * BLOCKS, "the limit does not hold")
            else:
                require(answer[1] == "CUDA_ERROR_OUT_OF_MEMORY", f"another error: {answer[1]}")
                left.remove(program)
    return got


def body(sim, facts):
    with load("obey", group=GROUP) as one, load("obey", group=GROUP) as other:
        programs = (one, other)
        for program in programs:
            program.until("ready")
            program.ask("launch 1", "launched")
            program.ask("sync", "synchronised")
        facts["contexts_are_measured"] = [has_overhead(program.pid) for program in programs]
        members = sorted(control.get(GROUP, "gcgroup.procs").split())
        require(members == sorted(str(program.pid) for program in programs), f"the group's members are {members}")
        limit = control.charged(GROUP) + BLOCKS * BLOCK
        control.put(GROUP, "memory.limit", limit)
        facts["blocks"] = fill(programs)
        # The memory of the contexts may have changed meanwhile.
        require(BLOCKS - 1 <= facts["blocks"] <= BLOCKS, f"{facts['blocks']} blocks fit where {BLOCKS} should")
        current = int(control.get(GROUP, "memory.current"))
        facts["current"], facts["limit"] = current, limit
        require(current <= limit, f"{current} bytes in a group with a limit of {limit}")
        apart = sum(int(control.get(program.pid, "memory.current")) for program in programs)
        require(current == apart, f"the group has {current}, its members {apart}")
        free, total = map(int, one.ask("meminfo", "meminfo"))
        require(total == limit and free < BLOCK, f"a member sees {free} of {total} bytes")
        one.ask("free all", "freed")
        require(fill([other]) >= 1, "one member cannot allocate what the other has freed")
        facts["freeze_seconds"] = control.freeze(GROUP)
        for program in programs:
            require(control.flat(program.pid, "gcgroup.events")["frozen"] == "1", "a member is not frozen")
        control.thaw(GROUP)
        for program in programs:
            program.ask("launch 1", "launched")
            program.ask("verify", "verified")
    return f"{facts['blocks']} blocks fit where {BLOCKS} should; both were frozen together"


main(body)
