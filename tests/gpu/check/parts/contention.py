"""Bursts of kernels beside a batch job, both gcgroup-load."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from arms import Arms
from part import load, main, report


def body(sim, facts):
    def bursts(priority):
        with load("latency", "--kernel", "work", "--count", 10 if sim else 60, priority=priority) as program:
            return report(program)

    arms = Arms(facts, bursts)
    with load("throughput", "--kernel", "work", "--duration", 60) as batch:
        batch.until("ready")
        arms.beside(batch.pid, 0.3 if sim else 1)
    return arms.verdict()


main(body)
