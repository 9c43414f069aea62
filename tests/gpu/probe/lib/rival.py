"""A process that competes for the device, on a lead (a program of its own, lines as in shared/program.py):

`stamps MS` one thread that looks at the clock, `stamps JSON`; `work MS` work that no clock measures, `work ROUNDS
SECONDS`; `batch USEC DEPTH` kernels of that length, so many queued, until the next line, `batch KERNELS`."""
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
# Longer than any step of the clock, shorter than any other process's turn.
GAP_NS = 10_000


class Rival:
    """What a rival does; a probe may add to it."""

    def __init__(self):
        self.driver = Driver()
        self.kernels, self.stream = self.driver.kernels(), self.driver.stream(1)
        self.own = None

    def own_kernels(self):
        """The probes' kernels, loaded when first wanted."""
        self.own = self.own or self.driver.own_kernels()
        return self.own

    def do_ready(self):
        """Gets the probes' own kernels ready, so that nothing is loaded while it counts."""
        kernels, out = self.own_kernels(), self.driver.alloc(64)
        kernels("probe_work", out, 1, stream=self.stream)
        kernels("probe_stamps", out, 0, 1000, GAP_NS, stream=self.stream)
        self.driver.cuCtxSynchronize()
        self.driver.cuMemFree_v2(out)
        return "ready"

    def do_stamps(self, milliseconds):
        """What probe_stamps saw."""
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
        """What to do beside the kernel."""

    def do_work(self, milliseconds):
        """How many rounds of probe_work end while so much time goes by."""
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
        """Keeps the queue so deep until the next line."""
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
    """Answers lines until there are none."""
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
    """A rival, ready; what it cannot do here is skipped."""

    def __init__(self, script=__file__, *arguments):
        super().__init__([sys.executable, os.path.abspath(script), *arguments])
        self.told("ready")

    def told(self, answer):
        """The next answer's words after the first."""
        line = self.line()
        first, _, rest = line.partition(" ")
        if first == "error":
            skipped = rest.startswith("skip ")
            raise Skip(rest[len("skip "):]) if skipped else AssertionError(rest)
        if first != answer:
            raise AssertionError(f"{line}, not {answer}")
        return rest

    def ask(self, line, answer):
        """Sends a line; what is answered."""
        self.tell(line)
        return self.told(answer)


def together(leads, line, answer):
    """The answers of several rivals to one line, which they get at once."""
    for lead in leads:
        lead.tell(line)
    return [lead.told(answer) for lead in leads]


if __name__ == "__main__":
    serve()
