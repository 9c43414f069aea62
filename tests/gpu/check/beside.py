"""Measures an interactive job beside a batch job on one GPU under one way of sharing it. The jobs are those of
framework.py: a small transformer that decodes, and a queue of large products; on a driver without PyTorch, short
kernels and streams of them."""
import contextlib
import time

import control
from arms import EQUAL, LEAST, MOST, lateness
from governing import Counter
from part import STARTS_WITHIN, Skip, job, need

PATIENCE = 120
QUOTA = "50000 100000"


def kinds(sim):
    """Returns the kinds of the interactive and of the batch job that work here."""
    try:
        need("torch", sim=sim)
        return "decode", "products"
    except Skip:
        return "driver", "queue"


class Pair(contextlib.ExitStack):
    """An interactive job and a batch job, which waits until `begin`. `inter` and `batch` are further variables of the
    jobs' environments."""

    def __init__(self, facts, label, sim, bare=True, inter=None, batch=None):
        super().__init__()
        self.facts, self.label, self.seconds, self.counter = facts, label, 0.5 if sim else 4, None
        first, second = kinds(sim)
        self.inter = self.enter_context(job(first, bare, inter))
        self.batch = self.enter_context(job(second, bare, batch))
        for program in (self.inter, self.batch):
            program.until("ready", STARTS_WITHIN)

    def begin(self):
        """Starts the batch job's work."""
        self.counter = Counter(self.batch)
        self.counter.go_on()

    def arm(self, name, waits=True, works=True):
        """Measures for some seconds: the latency of the interactive job's steps unless `waits` is False, and the batch
        job's steps per second unless `works` is False."""
        row, began, before = {}, time.monotonic(), self.counter.count if self.counter else 0
        if waits:
            steps = self.inter.ask(f"during {self.seconds}", "each", PATIENCE)
            row = {"steps": len(steps), **lateness([float(word) * 1e6 for word in steps])}
        else:
            time.sleep(self.seconds)
        if self.counter and works:
            row["batch_per_s"] = (self.counter.count - before) / (time.monotonic() - began)
        self.facts[f"{self.label}: {name}"] = row
        return row

    def alone(self):
        """Measures each job alone; the batch job goes on."""
        self.arm("interactive job alone")
        self.begin()
        self.arm("batch job alone", waits=False)


def governed(pair):
    """Measures all settings of a governed pair."""
    pair.alone()
    pair.arm("equal")
    control.put(pair.inter.pid, "compute.priority", MOST)
    control.put(pair.batch.pid, "compute.priority", LEAST)
    pair.arm("weighted 0 and 15")
    with contextlib.suppress(control.Refused), control.policy("strict"):
        pair.arm("strict 0 and 15")
    for program in (pair.inter, pair.batch):
        control.put(program.pid, "compute.priority", EQUAL)
    control.put(pair.batch.pid, "compute.max", QUOTA)
    pair.arm("batch job alone with a quota of 50 %", waits=False)
    control.put(pair.batch.pid, "compute.max", "max")
    control.freeze(pair.batch.pid)
    pair.arm("batch job frozen", works=False)
    control.thaw(pair.batch.pid)
    pair.counter.go_on()


def verdict(facts):
    """Returns all arms in one line: p99 in milliseconds and what the batch job keeps, relative to the first arms of
    each job alone."""
    rows = {name: row for name, row in facts.items() if isinstance(row, dict) and ": " in name}
    alone = next((row["p99_usec"] for row in rows.values() if "p99_usec" in row), None)
    full = next((row["batch_per_s"] for row in rows.values() if row.get("batch_per_s")), None)
    words = []
    for name, row in rows.items():
        said = [f"p99 {row['p99_usec'] / 1e3:.2f} ms ({row['p99_usec'] / alone:.2f})"] if "p99_usec" in row else []
        said += [f"batch {row['batch_per_s'] / full:.2f}"] if full and "batch_per_s" in row else []
        words.append(f"{name} {', '.join(said)}")
    return "; ".join(words)
