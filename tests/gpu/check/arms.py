"""Measures the latency of a job that waits for its work beside a batch job: with the same priority, with a
higher priority under each policy, and with the batch job frozen. Also measures what the batch job still gets."""
import statistics
import time

import control
from part import require

MOST, EQUAL, LEAST = 0, 8, 15
REPETITIONS = 5


def medians(runs):
    """Returns the median, the minimum and the maximum of each number that all runs report."""
    facts = {}
    for key, first in runs[0].items():
        seen = [run[key] for run in runs]
        if isinstance(first, (int, float)) and not isinstance(first, bool):
            facts[key], facts[f"{key}_spread"] = statistics.median(seen), [min(seen), max(seen)]
    return facts


def lateness(usec):
    """Returns percentiles of a list of microseconds."""
    ordered = sorted(usec)
    return {"p50_usec": ordered[len(ordered) // 2], "p99_usec": ordered[len(ordered) * 99 // 100], "max_usec": ordered[-1]}


class Arms:
    """Measures all arms. `bursts(priority)` is a generator: it first yields when the job is ready, then
    yields a list of latencies in microseconds for each repetition."""

    def __init__(self, facts, bursts):
        self.facts, self.bursts, self.batch, self.alone = facts, bursts, None, None
        self.arm("alone")

    def arm(self, name, priority=EQUAL):
        """Measures one arm, including the batch job's speed relative to its speed alone."""
        bursts, runs = self.bursts(priority), []
        next(bursts)
        before, began = self.submitted(), time.monotonic()
        for usec in bursts:
            run, now, ended = lateness(usec), self.submitted(), time.monotonic()
            if self.batch:
                run["batch_launches"] = now - before
                run["batch_of_alone"] = run["batch_launches"] / (ended - began) / self.alone
            runs.append(run)
            before, began = now, ended
        self.facts[name] = medians(runs)

    def submitted(self):
        """Returns the number of kernels that the batch job has submitted."""
        return control.launches(self.batch) if self.batch else 0

    def beside(self, batch, seconds):
        """Measures all arms beside the running process `batch`, after measuring that process alone for
        `seconds`."""
        self.batch = batch
        before, began = self.submitted(), time.monotonic()
        time.sleep(seconds)
        self.alone = (self.submitted() - before) / (time.monotonic() - began)
        require(self.alone > 0, "the batch job launches no kernels")
        self.arm("equal")
        control.put(batch, "compute.priority", LEAST)
        self.arm("weighted", MOST)
        try:
            with control.policy("strict"):
                self.arm("strict", MOST)
        except control.Refused as refused:
            self.facts["strict_refused"] = str(refused)
        control.freeze(batch)
        self.arm("frozen")
        require(self.facts["frozen"]["batch_launches_spread"] == [0, 0], "the frozen batch job launched kernels")
        control.thaw(batch)
        thawed = self.submitted()
        control.until("the batch job goes on", lambda: self.submitted() > thawed)

    def verdict(self):
        """Returns all arms in one line."""
        words = [f"{arm} {seen['p99_usec']:.0f}" + (f" at {seen['batch_of_alone']:.2f}" if "batch_of_alone" in seen else "")
                 for arm, seen in self.facts.items() if isinstance(seen, dict)]
        return "p99 in usec, and the batch job's speed relative to running alone: " + ", ".join(words)
