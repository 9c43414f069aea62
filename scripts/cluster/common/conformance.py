#!/usr/bin/env python3
"""Runs two contending jobs under a cluster engine and under `gcgroupfs run`, and compares both.

usage: conformance.py --gcgroupfs COMMAND --daemon PID --unit BYTES [--load PATH] -- ENGINE...

ENGINE is a command that is called with `start JOB`, `group JOB` or `end JOB`. `start` starts a job in the
background: the shell runs $JOB_COMMAND in it, with $JOB_MEMORY bytes, $JOB_MAX percent of one GPU's time,
priority $JOB_PRIORITY, and swap if $JOB_SWAP is "yes". `group` prints the path of the job's group, or nothing
while it has none. `end` ends it.

Nothing is compared with a clock: GPU time is compared as the share of the two jobs in what both have used.
"""

import argparse
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time

#: Seconds after which a state that is waited for will not come.
DEADLINE = 60
#: GPU time of both jobs together for which their shares are compared, microseconds.
MEASURED = 2_000_000
#: Measurements, of which one must be close: a machine under load may hold up one job for a while.
ATTEMPTS = 5
#: Greatest difference between a job's share of the GPU time under the engine and under `gcgroupfs run`: 0.25
#: and 0.75. Without quotas they would be 0.80 and 0.20, by the priorities, and without either 0.50.
TOLERANCE = 0.15
#: Limits that are compared. The priority is that of the processes, which `gcgroupfs run` sets.
FILES = ("memory.limit", "compute.max", "memory.swap.max")


@dataclasses.dataclass(frozen=True)
class Job:
    """One of the two jobs."""

    name: str
    #: Memory, units of the engine.
    units: int
    #: GPU time, percent of one GPU's.
    max: int
    #: The lower number is the higher priority.
    priority: int
    swap: bool


#: The job with the higher priority has the smaller quota, so that neither setting stands in for the other.
JOBS = (
    Job("a", units=2, max=20, priority=8, swap=False),
    Job("b", units=1, max=60, priority=10, swap=True),
)


class DifferenceError(Exception):
    """What differs."""


def wait_until(what, condition):
    """Wait until a condition holds, and return its value."""
    end = time.monotonic() + DEADLINE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise DifferenceError(f"not in time: {what}")
        time.sleep(0.05)


class Daemon:
    """The daemon of the node, read through the command line."""

    def __init__(self, command, pid):
        self.command = command
        self.pid = pid

    def find(self, path):
        """Return a control file's text, or None if there is none."""
        ran = subprocess.run([*self.command, "get", path], capture_output=True, text=True, check=False)
        return ran.stdout.strip() if ran.returncode == 0 else None

    def get(self, path):
        text = self.find(path)
        if text is None:
            raise DifferenceError(f"{path} cannot be read")
        return text

    def key(self, path, key):
        for line in self.get(path).splitlines():
            words = line.split()
            if words[0] == key:
                return int(words[1])
        raise DifferenceError(f"{path} has no {key}")

    def device(self, group):
        """Return the number of the GPU that holds the group's memory."""
        numbers = [line.split()[0] for line in self.get("devices").splitlines()]
        return max(numbers, key=lambda number: int(self.get(f"{group}/{number}/memory.current")))

    def in_force(self, group, file):
        """Return the lowest value of a limit in a group and those above it, also on the GPU in use."""
        names = group.split("/")
        groups = ["/".join(names[:count]) for count in range(1, len(names) + 1)]
        paths = [f"{group}/{file}" for group in groups]
        if file in ("memory.limit", "compute.max"):
            device = self.device(group)
            paths += [f"{group}/{device}/{file}" for group in groups]
        values = [self.get(path).split()[0] for path in paths]
        return min((value for value in values if value != "max"), key=int, default="max")

    def sockets(self):
        """Return the number of sockets that the daemon has open."""
        count = 0
        for descriptor in pathlib.Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                count += str(descriptor.readlink()).startswith("socket:")
            except FileNotFoundError:
                continue
        return count


class Run:
    """Jobs of `gcgroupfs run`."""

    name = "gcgroupfs run"

    def __init__(self, daemon):
        self.daemon = daemon
        self.processes = {}

    def start(self, job, memory, command):
        arguments = [f"--memory-limit={memory}", f"--compute-max={job.max}%", f"--priority={job.priority}"]
        arguments += ["--swap"] if job.swap else []
        arguments += ["--name", f"conformance-{job.name}", "--", "sh", "-c", command]
        self.processes[job.name] = subprocess.Popen(
            [*self.daemon.command, "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def group(self, job):
        return f"conformance-{job.name}"

    def end(self, job):
        os.killpg(self.processes[job.name].pid, signal.SIGKILL)
        self.processes[job.name].wait()


class Command:
    """Jobs of an engine, by a command."""

    def __init__(self, command):
        self.command = command
        self.name = pathlib.Path(command[0]).name

    def call(self, verb, job, **more):
        ran = subprocess.run(
            [*self.command, verb, job.name],
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ran.returncode != 0:
            raise DifferenceError(f"{verb} {job.name}: exit status {ran.returncode}")
        return ran.stdout.strip()

    def start(self, job, memory, command):
        self.call(
            "start",
            job,
            JOB_MEMORY=str(memory),
            JOB_MAX=str(job.max),
            JOB_PRIORITY=str(job.priority),
            JOB_SWAP="yes" if job.swap else "no",
            JOB_COMMAND=command,
        )

    def group(self, job):
        return self.call("group", job)

    def end(self, job):
        self.call("end", job)


@dataclasses.dataclass
class Found:
    """What was found about a job."""

    settings: dict
    #: Number of the GPU.
    device: str
    #: Allocations that were refused.
    refused: int
    #: Bytes on the device, and in host memory.
    current: int
    swapped: int
    share: float = 0.0


def sizes_of(memory):
    """Return the sizes of an allocation above a limit, and of one below it."""
    return memory + (1 << 20), memory // 8


def command_of(load, memory):
    """Return the shell command of a job: the two allocations, and kernels until it ends."""
    above, below = sizes_of(memory)
    lines = f"alloc linear {above}\\nalloc linear {below}\\nwork 4000\\n"
    return f"(printf '{lines}'; exec sleep 100000) | exec {load} obey"


def run_jobs(daemon, engine, unit, load, wanted=None):
    """Run the two jobs under an engine, and return what was found about each.

    Measures their GPU time again where it is not close to what is wanted.
    """
    before = daemon.sockets()
    groups = {}
    started = []
    try:
        for job in JOBS:
            engine.start(job, job.units * unit, command_of(load, job.units * unit))
            started.append(job)
        for job in JOBS:
            groups[job.name] = wait_until(f"job {job.name} has a group", lambda job=job: engine.group(job))
        used = {job.name: lambda group=groups[job.name]: usage(daemon, group) for job in JOBS}
        # Both jobs contend from here on.
        wait_until("both jobs use the GPU", lambda: all(read() for read in used.values()))
        for _ in range(ATTEMPTS):
            shares = measure(used)
            if wanted is None or all(abs(wanted[name].share - shares[name]) <= TOLERANCE for name in shares):
                break
        found = {}
        pids = set()
        for job in JOBS:
            group = groups[job.name]
            settings = {file: daemon.in_force(group, file) for file in FILES}
            members = daemon.get(f"{group}/gcgroup.procs").split()
            settings["compute.priority"] = daemon.get(f"{members[0]}/compute.priority")
            pids.update(members)
            current, swapped = memory_of(daemon, group)
            found[job.name] = Found(
                settings=settings,
                device=daemon.device(group),
                refused=sum(daemon.key(f"{group}/memory.events", key) for key in ("group_max", "oom")),
                current=current,
                swapped=swapped,
                share=shares[job.name],
            )
    finally:
        for job in started:
            engine.end(job)
    for group in groups.values():
        wait_until(f"{group} is removed", lambda group=group: daemon.find(f"{group}/memory.limit") is None)
    wait_until("the jobs' processes have ended", lambda: not any(is_running(pid) for pid in pids))
    wait_until("no socket of the daemon is left", lambda: daemon.sockets() <= before)
    return found


def is_running(pid):
    """Return whether a process has not ended. Nobody may take the status of an orphan in a container."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def memory_of(daemon, group):
    """Return a group's bytes on the device and in host memory, between two moves.

    What moves between two reads would be in neither.
    """

    def read(file):
        return int(daemon.get(f"{group}/memory.{file}"))

    def between_moves():
        swapped, current = read("swap.current"), read("current")
        return (current, swapped) if swapped == read("swap.current") else None

    return wait_until("no move between two reads", between_moves)


def usage(daemon, group):
    """Return the GPU time of a group, microseconds; 0 while it does not exist."""
    text = daemon.find(f"{group}/compute.stat") or ""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("usage_usec ")), 0)


def measure(used):
    """Return the share of each job in the GPU time that both use from now on."""
    first = {name: read() for name, read in used.items()}

    def spent():
        times = {name: read() - first[name] for name, read in used.items()}
        return times if sum(times.values()) >= MEASURED else None

    times = wait_until("the jobs' GPU time", spent)
    return {name: time / sum(times.values()) for name, time in times.items()}


def check(runner, job, memory, found):
    """Return what is wrong with the memory of a job."""
    above, below = sizes_of(memory)
    limit = found.settings["memory.limit"]
    if limit != str(memory):
        yield f"{runner}: the limit of job {job.name} is {limit}, not {memory}"
    # What does not fit below the limit of a job with swap is in host memory, wholly or in part.
    is_moved = found.swapped > 0 and found.swapped + found.current >= above
    if not is_moved if job.swap else found.refused < 1 or found.swapped:
        what = f"{found.refused} allocations were refused, and {found.swapped} bytes are in host memory"
        yield f"{runner}: of job {job.name} {what}"
    # The context counts as well.
    if not below <= found.current <= memory:
        yield f"{runner}: job {job.name} holds {found.current} bytes, not its allocation of {below}"


def compare(daemon, engine, unit, load):
    """Compare an engine with `gcgroupfs run`; print both.

    Raises DifferenceError with all differences.
    """
    wanted = run_jobs(daemon, Run(daemon), unit, load)
    found = run_jobs(daemon, engine, unit, load, wanted)
    differences = []
    devices = {each.device for each in found.values()}
    if len(devices) > 1:
        differences.append(f"the jobs do not contend: they are on the GPUs {sorted(devices)}")
    for job in JOBS:
        expected, is_found = wanted[job.name], found[job.name]
        differences += check("gcgroupfs run", job, job.units * unit, expected)
        differences += check(engine.name, job, job.units * unit, is_found)
        for file, there in expected.settings.items():
            here = is_found.settings[file]
            # A job without swap may have a limit of it all the same.
            if here != there and (job.swap or file != "memory.swap.max"):
                differences.append(f"{file} of job {job.name} is {here}, and {there} under gcgroupfs run")
        shares = f"{is_found.share:.2f} of the GPU time, and {expected.share:.2f} under gcgroupfs run"
        if abs(expected.share - is_found.share) > TOLERANCE:
            differences.append(f"job {job.name} has {shares}")
        print(f"job {job.name}: {is_found.settings}; {shares}")
    if differences:
        raise DifferenceError("\n".join(differences))
    print(f"{engine.name}: as under gcgroupfs run; nothing is left")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gcgroupfs", required=True, help="command that runs gcgroupfs on the node")
    parser.add_argument("--daemon", required=True, type=int, help="the daemon's pid")
    parser.add_argument("--unit", required=True, type=int, help="bytes of a unit of memory")
    parser.add_argument("--load", default="gcgroup-load", help="path of gcgroup-load in the jobs")
    parser.add_argument("engine", nargs="+")
    arguments = parser.parse_args()
    # As an exception, which ends the jobs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    daemon = Daemon(arguments.gcgroupfs.split(), arguments.daemon)
    try:
        compare(daemon, Command(arguments.engine), arguments.unit, arguments.load)
    except DifferenceError as failure:
        sys.exit(f"conformance.py: {failure}")


if __name__ == "__main__":
    main()
