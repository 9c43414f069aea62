"""Measures a stream of 10 us kernels ungoverned, and with the gate in each state in which a program runs: run,
track and arbitrate."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from statistics import median

import control
from part import load, main, require

# A quota of all GPU time: the process is arbitrated and never throttled for long.
ALL_OF_IT = "100000 100000"


# A busy machine may delay the program's lines, so that a short run has too few.
MOST_SECONDS = 16


def measured(state, seconds):
    """Returns the kernels per second in a state; runs again for twice as long if nothing was measured."""
    while not (rate := run(state, seconds)):
        seconds *= 2
        require(seconds <= MOST_SECONDS, f"no kernels between the progress lines of {seconds // 2} s, {state}")
    return rate


def run(state, seconds):
    """Returns the kernels per second in a state, 0 if the program printed fewer than three lines."""
    arguments = ("throughput", "--kernel", "spin", "--kernel-usec", 10, "--depth", 64, "--duration", seconds,
                 "--interval", 0.1)
    with load(*arguments, bare=state == "bare") as program:
        program.until("ready")
        if state == "arbitrate":
            control.put(program.pid, "compute.max", ALL_OF_IT)
        rates = []
        while (line := program.line()).startswith("kernels"):
            if state == "track":
                # Reading it has the process publish when its work begins and ends. On a busy machine the
                # program may have ended before its lines are read.
                with contextlib.suppress(control.Refused):
                    control.get(program.pid, "compute.stat")
            rates.append(line.split())
        return between(rates)


def between(lines):
    """Returns the kernels per second between the second and the last progress line."""
    if len(lines) < 3:
        return 0
    first, last = lines[1], lines[-1]
    kernels, nsec = (int(last[index]) - int(first[index]) for index in (1, -1))
    return kernels / max(nsec, 1) * 1e9


def body(sim, facts):
    seconds, rounds = (1, 1) if sim else (2, 3)
    rates = {}
    for _ in range(rounds):
        for state in ("bare", "run", "track", "arbitrate"):
            rates.setdefault(state, []).append(measured(state, seconds))
            facts["kernels_per_second"] = rates
    alone = median(rates["bare"])
    facts["of_ungoverned"] = {state: median(seen) / alone for state, seen in rates.items() if state != "bare"}
    return f"{alone:.0f} kernels of 10 usec a second ungoverned; of that " + ", ".join(
        f"{state} {part:.3f}" for state, part in facts["of_ungoverned"].items())


main(body)
