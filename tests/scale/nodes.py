"""Starts many simulated nodes, each a daemon with eight GPUs and jobs, and prints what they cost."""

import argparse
import json
import os
import time

from jobs import Job
from node import Node


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1, help="jobs on each node")
    parser.add_argument("--seconds", type=float, default=20, help="time for which CPU time is measured")
    options = parser.parse_args()

    nodes, jobs = [], []
    begin = time.monotonic()
    try:
        for _ in range(options.nodes):
            nodes.append(Node(options.gpus))
            nodes[-1].wait()
        started = time.monotonic() - begin
        idle = measure(nodes, options.seconds)
        for node in nodes:
            jobs += [Job(node, number % options.gpus) for number in range(options.jobs)]
        for job in jobs:
            # The answer to the last command.
            while not (line := job.process.stdout.readline()).startswith("launched"):
                if not line:
                    job.output()
                    raise SystemExit("scale: a job was not answered in time")
        busy = measure(nodes, options.seconds)
        for job in jobs:
            job.end()
        for job in jobs:
            job.output()
        left = [node.groups() for node in nodes]
    finally:
        for node in nodes:
            node.stop()
    if any(left):
        raise SystemExit(f"scale: groups are left: {left}")
    report = {
        "nodes": options.nodes,
        "jobs": len(jobs),
        "seconds_to_start": round(started, 1),
        "idle_node": idle,
        "node_with_jobs": busy,
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(report, indent=2))


def measure(nodes, seconds):
    """Return CPU time and memory of a node, on average."""
    before = sum(node.cpu_seconds() for node in nodes)
    begin = time.monotonic()
    time.sleep(seconds)
    used = sum(node.cpu_seconds() for node in nodes) - before
    percent = 100 * used / (time.monotonic() - begin) / len(nodes)
    memory = sum(node.memory() for node in nodes) / len(nodes)
    return {"cpu_percent": round(percent, 3), "memory_mb": round(memory / 1e6, 2)}


if __name__ == "__main__":
    main()
