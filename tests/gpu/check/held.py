"""Reads from NVML how much device memory a process holds, if its entry in NVML can be identified."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../shared"), os.path.join(HERE, "../probe")]

from answer import Skip
from lib.nvml import Nvml, Refused
from machine import in_first_pid_namespace


class Untold(Exception):
    """NVML does not say how much the process holds; the text says why."""


def table():
    """Returns the bytes on all devices by NVML's pid; None for a process without a number."""
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
    """Returns the bytes in use on all devices by all processes."""
    try:
        nvml = Nvml()
        return sum(nvml.memory().used for _ in nvml.each_device())
    except (Skip, Refused) as reason:
        raise Skip(str(reason)) from reason


def names(pid):
    """Returns the process's pid in this namespace, and in the namespace above if /proc belongs to that."""
    found = {pid}
    if len(spids("self")) > 1:
        for name in filter(str.isdigit, os.listdir("/proc")):
            numbers = spids(name)
            if numbers[1:] and numbers[-1] == pid:
                found.add(numbers[0])
    return found


def spids(name):
    """Returns a process's pids in all namespaces that /proc shows, the outermost first."""
    try:
        with open(f"/proc/{name}/status", encoding="utf-8", errors="replace") as file:
            line = next((line for line in file if line.startswith("NSpid:")), "")
    except OSError:
        return []
    return [int(word) for word in line.split()[1:]]


class Account:
    """Identifies processes in NVML. Must be created before a process starts: where NVML uses other pids, a
    process is recognised as a new entry."""

    def __init__(self, source=table, same_pids=None, patience=3):
        self.source, self.patience, self.known = source, patience, {}
        self.same_pids = in_first_pid_namespace() if same_pids is None else same_pids
        self.before = self.now() or {}

    def now(self):
        """Returns the table, or None if NVML has none."""
        try:
            return self.source()
        except Untold:
            return None

    def candidates(self, pid, held):
        """Returns the NVML pids that may be the process's."""
        if self.same_pids:
            return {pid} & set(held)
        if pid in self.known:
            return {self.known[pid]} & set(held)
        fresh = set(held) - set(self.before) - set(self.known.values())
        # A new entry with the same pid is the process; otherwise a single new entry is.
        return fresh & names(pid) or fresh

    def bytes_of(self, pid):
        """Returns the bytes that the process holds. Raises Untold if NVML does not say."""
        until = time.monotonic() + self.patience
        while len(likely := self.candidates(pid, held := self.source())) > 1 and time.monotonic() < until:
            time.sleep(0.1)  # Another new process may be about to end.
        if not likely:
            raise Untold("NVML lists no process that can be this one")
        if len(likely) > 1:
            raise Untold(f"{len(likely)} new processes in NVML cannot be told apart in this pid namespace")
        (number,) = likely
        self.known[pid] = number
        if held[number] is None:
            raise Untold("NVML reports no memory for the process")
        return held[number]

    def number(self, pid):
        """Returns the bytes that the process holds, or None."""
        try:
            return self.bytes_of(pid)
        except Untold:
            return None

    def names(self, pid):
        """Returns whether NVML still lists the process. Raises Untold if the process was never identified, or
        NVML does not answer."""
        if pid not in self.known:
            raise Untold("the process was not found in NVML")
        return self.known[pid] in self.source()
