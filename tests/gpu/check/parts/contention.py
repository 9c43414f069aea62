"""Measures bursts of kernels beside a batch job, both by gcgroup-load."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from arms import REPETITIONS, Arms
from part import load, main, work


def body(sim, facts):
    count = 10 if sim else 60
    kernels = work()

    def bursts(priority):
        with load("latency", *kernels, "--count", REPETITIONS * count, "--trace", priority=priority) as program:
            yield program.until("ready")
            for _ in range(REPETITIONS):
                yield [float(program.until("burst").split()[2]) for _ in range(count)]

    arms = Arms(facts, bursts)
    with load("throughput", *kernels, "--duration", 600) as batch:
        batch.until("ready")
        arms.beside(batch.pid, 0.3 if sim else 1)
    return arms.verdict()


main(body)
