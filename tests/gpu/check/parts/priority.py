"""Measures the shares of two batch jobs of different priorities under each policy, and the GPU time of one
job with a quota."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import statistics
import time

import control
from arms import REPETITIONS
from part import load, main, require, work

QUOTA_USEC, PERIOD_USEC = 20_000, 100_000


def parts(programs, seconds):
    """Returns each program's median share of all launches over several intervals, and the first program's
    share in each."""
    time.sleep(0.3)
    looks = [look(programs, seconds) for _ in range(REPETITIONS)]
    return [statistics.median(part) for part in zip(*looks)], [first for first, *_ in looks]


def look(programs, seconds):
    """Returns each program's share of all launches within `seconds`."""
    before = [control.launches(program.pid) for program in programs]
    time.sleep(seconds)
    new = [control.launches(program.pid) - count for program, count in zip(programs, before)]
    return [count / max(sum(new), 1) for count in new]


def used(pid):
    """Returns the charged GPU time in microseconds."""
    return int(control.flat(pid, "compute.stat")["usage_usec"])


def body(sim, facts):
    seconds = 0.3 if sim else 1
    kernels = work()

    def batch(**options):
        """Runs a job whose kernels do a fixed amount of work, even if they are interrupted."""
        return load("throughput", *kernels, "--duration", 600, **options)

    with batch(priority=6) as one, batch() as other:
        both = (one, other)
        for program in both:
            program.until("ready")
        facts["weighted"], facts["weighted_first"] = parts(both, seconds)
        require(facts["weighted"][0] > (0.5 if sim else 0.6),
                f"with weights of 4 to 1, the first job gets {facts['weighted'][0]:.2f}")
        require(facts["weighted"][1] > 0, "the job of lower priority starves")
        try:
            with control.policy("strict"):
                facts["strict"], facts["strict_first"] = parts(both, seconds)
        except control.Refused as refused:
            facts["strict_refused"] = str(refused)
    with batch() as program:
        program.until("ready")
        control.put(program.pid, "compute.max", f"{QUOTA_USEC} {PERIOD_USEC}")
        time.sleep(0.5)
        before, began = used(program.pid), time.monotonic()
        time.sleep(REPETITIONS * seconds)
        facts["quota"] = (used(program.pid) - before) / 1e6 / (time.monotonic() - began)
        require(0 < facts["quota"] < 0.5, f"with a quota of 0.2, the job uses {facts['quota']:.2f}")
    return "priority 6 beside 8 gets {:.2f} (expected 0.80), with the strict policy {}; a quota of 0.20 yields {:.2f}".format(
        facts["weighted"][0], "{:.2f}".format(facts["strict"][0]) if "strict" in facts else "not permitted",
        facts["quota"])


main(body)
