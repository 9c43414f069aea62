"""Processes that a part leaves behind, wherever they put themselves: found, and ended."""
import contextlib
import ctypes
import os
import signal
import time

SET_CHILD_SUBREAPER, SET_PDEATHSIG = 36, 1


def adopt():
    """From now on those whose parent ends are ours; and we are told to end when ours does."""
    libc = ctypes.CDLL(None)
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def children():
    """Pids of our children, ended ones too."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def end(keep=(), seconds=10):
    """Kills all children but those, and theirs that thereby become ours; the pids of those that do not die."""
    until = time.monotonic() + seconds
    while left := set(children()) - set(keep):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:
            return sorted(left)
        time.sleep(0.01)
    return []
