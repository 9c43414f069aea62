"""A job that waits for its work beside a batch job: as its equal, more important by either policy, and with the
batch job frozen. How late the first is, and what is left to the second."""
import statistics
import time

import control
from part import require

MOST, EQUAL, LEAST = 0, 8, 15
REPETITIONS = 5


def medians(runs):
    """The median of each number that all runs tell, and the least and the greatest of it."""
    facts = {}
    for key, first in runs[0].items():
        seen = [run[key] for run in runs]
        if isinstance(first, (int, float)) and not isinstance(first, bool):
            facts[key], facts[f"{key}_spread"] = statistics.median(seen), [min(seen), max(seen)]
    return facts


def lateness(usec):
    """What a list of microseconds says."""
    ordered = sorted(usec)
    return {"p50_usec": ordered[len(ordered) // 2], "p99_usec": ordered[len(ordered) * 99 // 100], "max_usec": ordered[-1]}


class Arms:
    """`bursts(priority)` gets the job ready and yields; then it has it work for a while and yields how late it was, so
    many times."""

    def __init__(self, facts, bursts):
        self.facts, self.bursts, self.batch, self.alone = facts, bursts, None, None
        self.arm("alone")

    def arm(self, name, priority=EQUAL):
        """One arm, with what the batch job does meanwhile compared to what it does alone."""
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
        """Kernels of the batch job so far."""
        return control.launches(self.batch) if self.batch else 0

    def beside(self, batch, seconds):
        """All arms beside the process with that pid, which is at work; first it is alone for so many seconds."""
        self.batch = batch
        before, began = self.submitted(), time.monotonic()
        time.sleep(seconds)
        self.alone = (self.submitted() - before) / (time.monotonic() - began)
        require(self.alone > 0, "the batch job does nothing")
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
        require(self.facts["frozen"]["batch_launches_spread"] == [0, 0], "frozen, it launched")
        control.thaw(batch)
        thawed = self.submitted()
        control.until("the batch job goes on", lambda: self.submitted() > thawed)

    def verdict(self):
        """All arms in a line."""
        words = [f"{arm} {seen['p99_usec']:.0f}" + (f" at {seen['batch_of_alone']:.2f}" if "batch_of_alone" in seen else "")
                 for arm, seen in self.facts.items() if isinstance(seen, dict)]
        return "p99 in usec, at what part of the batch job's own speed: " + ", ".join(words)
