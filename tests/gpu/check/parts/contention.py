"""Bursts beside a batch job: alone, both ungoverned, and with the batch frozen for each run of bursts."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
from part import load, main, report, require


def bursts(sim):
    with load("latency", "--count", 20 if sim else 200) as program:
        return report(program)


def body(sim, facts):
    facts["alone"] = bursts(sim)
    with load("throughput", "--duration", 60) as batch:
        batch.until("ready")
        facts["beside"] = bursts(sim)
        control.freeze(batch.pid)
        before = control.flat(batch.pid, "compute.stat")["nr_launches"]
        facts["frozen"] = bursts(sim)
        require(control.flat(batch.pid, "compute.stat")["nr_launches"] == before, "frozen, it launched")
        control.thaw(batch.pid)
        batch.until("kernels")
    return "p99 of a burst, usec: " + ", ".join(f"{arm} {r['p99_usec']:.0f}" for arm, r in facts.items())


main(body)
