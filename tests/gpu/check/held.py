"""What NVML says that a process holds on the devices, where it can be told which of NVML's processes it is."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../shared"), os.path.join(HERE, "../probe")]

from answer import Skip
from lib.nvml import Nvml, Refused
from machine import in_first_pid_namespace


class Untold(Exception):
    """NVML does not say; the text says why."""


def table():
    """Bytes by NVML's pid, on all devices together; None where it only says that a process is there."""
    held = {}
    try:
        nvml = Nvml()
        for _ in nvml.each_device():
            for pid, size in nvml.processes().items():
                held[pid] = None if size is None or held.get(pid, 0) is None else held.get(pid, 0) + size
    except (Skip, Refused) as reason:
        raise Untold(str(reason)) from reason
    return held


def in_use():
    """Bytes in use on all devices, whoever uses them."""
    try:
        nvml = Nvml()
        return sum(nvml.memory().used for _ in nvml.each_device())
    except (Skip, Refused) as reason:
        raise Skip(str(reason)) from reason


def names(pid):
    """The numbers that a process goes by: here, and above, where /proc is that of a namespace above."""
    found = {pid}
    if len(spids("self")) > 1:
        for name in filter(str.isdigit, os.listdir("/proc")):
            numbers = spids(name)
            if numbers[1:] and numbers[-1] == pid:
                found.add(numbers[0])
    return found


def spids(name):
    """A process's numbers in all namespaces that /proc shows, the uppermost first."""
    try:
        with open(f"/proc/{name}/status", encoding="utf-8", errors="replace") as file:
            line = next((line for line in file if line.startswith("NSpid:")), "")
    except OSError:
        return []
    return [int(word) for word in line.split()[1:]]


class Account:
    """Made before a process begins, so that it can be told by being new where pids are not NVML's."""

    def __init__(self, source=table, same_pids=None, patience=3):
        self.source, self.patience, self.known = source, patience, {}
        self.same_pids = in_first_pid_namespace() if same_pids is None else same_pids
        self.before = self.now() or {}

    def now(self):
        """The table, or None."""
        try:
            return self.source()
        except Untold:
            return None

    def candidates(self, pid, held):
        """NVML's numbers that may be its."""
        if self.same_pids:
            return {pid} & set(held)
        if pid in self.known:
            return {self.known[pid]} & set(held)
        fresh = set(held) - set(self.before) - set(self.known.values())
        # One that is called the same and was not there before is surely it; one that alone is new is too.
        return fresh & names(pid) or fresh

    def bytes_of(self, pid):
        """What it holds; Untold if nobody says."""
        until = time.monotonic() + self.patience
        while len(likely := self.candidates(pid, held := self.source())) > 1 and time.monotonic() < until:
            time.sleep(0.1)  # for another that is about to go
        if not likely:
            raise Untold("NVML names no process that could be it")
        if len(likely) > 1:
            raise Untold(f"which of {len(likely)} new processes in NVML is ours cannot be told in this pid namespace")
        (number,) = likely
        self.known[pid] = number
        if held[number] is None:
            raise Untold("NVML has no number for the process")
        return held[number]

    def number(self, pid):
        """The same, or None."""
        try:
            return self.bytes_of(pid)
        except Untold:
            return None

    def names(self, pid):
        """Whether NVML still lists what was found to be that process; Untold if it was not found, or NVML is silent."""
        if pid not in self.known:
            raise Untold("the process was not found in NVML")
        return self.known[pid] in self.source()
