"""Finds and ends the processes that a part leaves behind, whatever their session or process group."""
import contextlib
import ctypes
import os
import signal
import time

SET_CHILD_SUBREAPER, SET_PDEATHSIG = 36, 1


def adopt():
    """Adopts orphaned descendants from now on, and requests a SIGTERM for this process when its parent ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def children():
    """Returns the pids of the children, zombies included."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    found.append(int(name))
    return found


def end(keep=(), seconds=10):
    """Kills all children except `keep`, and the descendants adopted meanwhile. Returns the pids of those that
    do not die within `seconds`."""
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
