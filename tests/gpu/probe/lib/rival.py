"""Runs a process that competes for the device and executes commands from stdin (see shared/program.py):

`stamps MS` runs one thread that reads the clock and answers `stamps JSON`; `work MS` runs kernels that read
no clock and answers `work ROUNDS SECONDS`; `batch USEC DEPTH` keeps DEPTH kernels of USEC microseconds queued
until the next line and answers `batch KERNELS`."""
import json
import os
import select
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from lib.cuda import Driver, Refused
from answer import Skip
from program import Program

MOST_GAPS = 8192
# Longer than any step of the clock, shorter than another process's turn.
GAP_NS = 10_000


class Rival:
    """Executes the commands; probes add their own."""

    def __init__(self):
        self.driver = Driver()
        self.kernels, self.stream = self.driver.kernels(), self.driver.stream(1)
        self.own = None

    def own_kernels(self):
        """Returns the probes' kernels, loaded at the first use."""
        self.own = self.own or self.driver.own_kernels()
        return self.own

    def do_ready(self):
        """Loads and runs the probes' own kernels, so that no loading disturbs a measurement."""
        kernels, out = self.own_kernels(), self.driver.alloc(64)
        kernels("probe_work", out, 1, stream=self.stream)
        kernels("probe_stamps", out, 0, 1000, GAP_NS, stream=self.stream)
        self.driver.cuCtxSynchronize()
        self.driver.cuMemFree_v2(out)
        return "ready"

    def do_stamps(self, milliseconds):
        """Runs probe_stamps and answers what it recorded."""
        driver, kernels = self.driver, self.own_kernels()
        size = 32 + 16 * MOST_GAPS
        out = driver.alloc(size)
        driver.cuMemsetD8_v2(out, 0, size)
        kernels("probe_stamps", out, MOST_GAPS, int(milliseconds) * 1_000_000, GAP_NS, stream=self.stream)
        self.while_it_runs()
        driver.cuStreamSynchronize(self.stream)
        gaps, start, end, least = driver.read_words(out, 4)
        kept = min(gaps, MOST_GAPS)
        words = driver.read_words(out + 32, 2 * kept) if kept else []
        driver.cuMemFree_v2(out)
        return "stamps " + json.dumps(
            {"start": start, "end": end, "least": least, "gaps": list(zip(words[::2], words[1::2])), "seen": gaps})

    def while_it_runs(self):
        """Runs beside the kernel; does nothing by default."""

    def do_work(self, milliseconds):
        """Answers how many rounds of probe_work complete within the time."""
        driver, kernels, out, rounds = self.driver, self.own_kernels(), self.driver.alloc(64), 200_000
        done, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) * 1000 < int(milliseconds):
            for _ in range(4):
                kernels("probe_work", out, rounds, stream=self.stream)
            driver.cuStreamSynchronize(self.stream)
            done += 4 * rounds
        driver.cuMemFree_v2(out)
        return f"work {done} {took}"

    def do_batch(self, usec, depth):
        """Keeps `depth` kernels queued until the next line arrives."""
        events, count = [self.driver.event(2) for _ in range(int(depth))], 0
        print("batching", flush=True)
        while not select.select([0], [], [], 0)[0]:
            event = events[count % len(events)]
            self.driver.cuEventSynchronize(event)
            self.kernels("gcgroup_spin", int(usec), stream=self.stream)
            self.driver.cuEventRecord(event, self.stream)
            count += 1
        self.driver.cuCtxSynchronize()
        os.read(0, 4096)
        return f"batch {count}"


def serve(make=Rival):
    """Answers lines until the end of stdin."""
    try:
        rival = make()
        print("ready", flush=True)
        while line := os.read(0, 4096).decode():
            verb, *rest = line.split()
            print(getattr(rival, f"do_{verb}")(*rest), flush=True)
    except Skip as reason:
        print("error skip", reason, flush=True)
    except Refused as refused:
        print("error", refused, flush=True)


class Lead(Program):
    """Starts a rival and waits until it is ready. Skips what the rival cannot do."""

    def __init__(self, script=__file__, *arguments):
        super().__init__([sys.executable, os.path.abspath(script), *arguments])
        self.told("ready")

    def told(self, answer):
        """Returns the next answer without its first word."""
        line = self.line()
        first, _, rest = line.partition(" ")
        if first == "error":
            skipped = rest.startswith("skip ")
            raise Skip(rest[len("skip "):]) if skipped else AssertionError(rest)
        if first != answer:
            raise AssertionError(f"{line}, not {answer}")
        return rest

    def ask(self, line, answer):
        """Sends a line and returns the answer."""
        self.tell(line)
        return self.told(answer)


def together(leads, line, answer):
    """Sends one line to several rivals at once and returns their answers."""
    for lead in leads:
        lead.tell(line)
    return [lead.told(answer) for lead in leads]


if __name__ == "__main__":
    serve()
