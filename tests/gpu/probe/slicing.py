"""Measures how two processes share the device without any scheduling: each one's share, the length of a turn,
and the latency of a short kernel beside another process's long ones."""
import json
import os
import time

from lib import measure
from lib.cuda import Driver
from lib.questions import Questions
from lib.rival import Lead, together
from lib.turns import shares
from answer import main

EXEC_TIMEOUT = 17


def sliced(milliseconds):
    """Runs two processes' kernels that record when they run."""
    with Lead() as one, Lead() as other:
        for lead in (one, other):
            lead.ask("ready", "ready")
        alone = json.loads(one.ask("stamps 100", "stamps"))
        runs = [json.loads(text) for text in together((one, other), f"stamps {milliseconds}", "stamps")]
        return {**shares(runs), "gaps_of_one_alone": alone["seen"]}


def worked(milliseconds):
    """Returns the work of two processes running at once, relative to the work of one alone in the same time."""
    with Lead() as one, Lead() as other:
        for lead in (one, other):
            lead.ask("ready", "ready")
        rate = lambda text: float(text.split()[0]) / float(text.split()[1])
        alone = rate(one.ask(f"work {milliseconds}", "work"))
        both = [rate(text) / alone for text in together((one, other), f"work {milliseconds}", "work")]
        return {"of_alone": both, "sum": sum(both)}


class Short:
    """Launches kernels of 100 us and waits for each."""

    def __init__(self, count):
        self.driver, self.count = Driver(), count
        self.kernels, self.stream = self.driver.kernels(), self.driver.stream(1)

    def latency(self):
        """Returns the microseconds from launch to completion."""
        samples = []
        for _ in range(self.count):
            time.sleep(0.001)
            began = time.perf_counter_ns()
            self.kernels("gcgroup_spin", 100, stream=self.stream)
            self.driver.cuStreamSynchronize(self.stream)
            samples.append((time.perf_counter_ns() - began) / 1000)
        return measure.spread(samples, 1)

    def beside(self, usec, depth):
        """Returns the latency beside a process with `depth` queued kernels of `usec` microseconds."""
        with Lead() as rival:
            rival.ask(f"batch {usec} {depth}", "batching")
            answer = self.latency()
            answer["batch_kernels"] = int(rival.ask("stop", "batch"))
            return answer


def body(sim, facts):
    questions, short = Questions(facts), Short(30 if sim else 300)
    # A device with a display aborts kernels that take seconds.
    milliseconds = 400 if sim or short.driver.attribute(EXEC_TIMEOUT) else 1500
    facts["mps"] = bool(os.environ.get("CUDA_MPS_PIPE_DIRECTORY")) or os.path.exists("/tmp/nvidia-mps")
    turns = questions.ask("turns", sliced, milliseconds)
    work = questions.ask("work", worked, milliseconds)
    alone = questions.ask("short_alone_usec", short.latency)
    beside = {f"{usec}x{depth}": questions.ask(f"short_beside_{usec}us_x{depth}", short.beside, usec, depth)
              for usec, depth in ((200, 64), (2_000, 16), (20_000, 4))}
    return questions.verdict(
        turns and "shares {:.2f} and {:.2f}, turns of {:.0f} usec, {:.1%} lost between them".format(
            *(process["share"] for process in turns["processes"]),
            turns["processes"][0]["turn_usec"].get("median", 0), turns["nobody"]),
        work and f"two at once do {work['sum']:.2f} of one's work",
        alone and f"p99 of a kernel of 100 usec: alone {alone['p99']:.0f}, " + ", ".join(
            f"beside {name} {seen['p99']:.0f}" for name, seen in beside.items() if seen))


if __name__ == "__main__":
    main(body)
