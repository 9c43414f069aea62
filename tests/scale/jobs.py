"""Starts and ends jobs on one node with many GPUs at a fixed rate, and asserts that nothing is left.

Prints how long registrations took, and what the daemon needed.
"""

import argparse
import collections
import json
import re
import subprocess
import time

from node import DIST, Node, wait_until

#: Errors of a program that had no answer of the daemon in time.
NOT_ANSWERED = ("daemon does not answer", "no daemon answers", "too much to do", "Resource temporarily unavailable")


class Job:
    """A job with its own group: allocates on its GPU, submits work, and holds both until told to end."""

    def __init__(self, node, gpu, *, is_governed=True):
        load = [str(DIST / "bin" / "gcgroup-load"), "--device", str(gpu), "obey"]
        run = [str(DIST / "bin" / "gcgroupfs"), "run", "--memory-limit", f"{gpu}=1G", "--compute-max", "50%"]
        self.process = subprocess.Popen(
            [*run, "--", *load] if is_governed else load,
            env=node.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.tell("alloc linear 256M\nalloc linear 1G\nlaunch 10\n" if is_governed else "alloc linear 256M\n")

    def tell(self, commands):
        try:
            self.process.stdin.write(commands)
            self.process.stdin.flush()
        except BrokenPipeError:
            # It has failed; its output says why.
            return

    def end(self):
        """Tell the job to end."""
        self.tell("quit\n")

    def output(self):
        """Wait for the end of the job, and return its output; `None` if no daemon answered in time."""
        output, errors = self.process.communicate()
        if not self.process.returncode:
            return output
        if any(reason in errors for reason in NOT_ANSWERED):
            return None
        raise SystemExit(f"scale: a job failed: {self.process.returncode}\n{output}{errors}")


def initialised(output):
    """Return how long cuInit took, in microseconds: a governed program registers in it."""
    return float(re.search(r"initialised in ([0-9.]+) usec", output)[1])


def check(output):
    """Assert that a governed job had what it asked for, up to its limit."""
    answers = re.findall(r"^(allocated|refused|launched)", output, re.MULTILINE)
    if answers != ["allocated", "refused", "launched"]:
        raise SystemExit(f"scale: a job was not governed as it should be: {answers}\n{output}")


def quantile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def start_and_end(node, options):
    """Start jobs at the rate, each living until `options.jobs` later ones have started."""
    living, ended, late = collections.deque(), [], 0.0
    begin = time.monotonic()
    for number in range(options.jobs + int(options.rate * options.seconds)):
        if number == options.jobs:
            steady, cpu = time.monotonic(), node.cpu_seconds()
        due = begin + number / options.rate
        time.sleep(max(0.0, due - time.monotonic()))
        late = max(late, time.monotonic() - due)
        if len(living) == options.jobs:
            ended.append(living.popleft())
            ended[-1].end()
        living.append(Job(node, number % options.gpus))
    seconds = time.monotonic() - steady
    figures = {
        "rate": round((number + 1 - options.jobs) / seconds, 1),
        "most_late_seconds": round(late, 2),
        "daemon_cpu_percent": round(100 * (node.cpu_seconds() - cpu) / seconds, 1),
        "daemon_memory_mb": round(node.memory() / 1e6, 1),
        "daemon_descriptors": node.descriptors(),
    }
    for job in living:
        job.end()
    return [*ended, *living], figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=512, help="jobs that live at the same time")
    parser.add_argument("--rate", type=float, default=50, help="starts, and ends, per second")
    parser.add_argument("--seconds", type=float, default=30, help="time for which jobs start and end")
    options = parser.parse_args()

    node = Node(options.gpus)
    try:
        node.wait()
        bare = []
        for number in range(20):
            job = Job(node, number % options.gpus, is_governed=False)
            job.end()
            bare.append(initialised(job.output()))
        before = {"memory_mb": round(node.memory() / 1e6, 1), "descriptors": node.descriptors()}
        jobs, figures = start_and_end(node, options)
        outputs = [job.output() for job in jobs]
        answered = [output for output in outputs if output is not None]
        for output in answered:
            check(output)
        times = [initialised(output) for output in answered]
        wait_until("no group is left", lambda: node.groups() == [])
        wait_until("no process is left", lambda: node.get("gcgroup.procs") == "")
        wait_until("no memory is used", node.is_memory_free)
        wait_until("no descriptor is left", lambda: node.descriptors() <= before["descriptors"])
        after = {"memory_mb": round(node.memory() / 1e6, 1), "descriptors": node.descriptors()}
    finally:
        node.stop()
    registration = {
        f"p{100 * part:g}": round((quantile(times, part) - quantile(bare, 0.5)) / 1000, 2)
        for part in (0.5, 0.9, 0.99)
    }
    report = {
        "gpus": options.gpus,
        "jobs": len(jobs),
        # The daemon had too little CPU time, and they did not start.
        "not_answered_in_5_s": len(jobs) - len(answered),
        "living": options.jobs,
        **figures,
        "registration_ms": registration,
        "daemon_before": before,
        "daemon_after": after,
    }
    print(json.dumps(report, indent=2), flush=True)
    if len(answered) < len(jobs):
        raise SystemExit("scale: this machine does not carry so many jobs")


if __name__ == "__main__":
    main()
