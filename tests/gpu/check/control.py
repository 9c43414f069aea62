"""Reads and writes control files, through the mount or through the daemon's socket, whichever this machine
permits."""
import contextlib
import os
import subprocess
import time

from daemon import GCGROUPFS, WORK

MOUNT = os.environ.get("GCGROUP", "")
LOAD = os.path.join(os.environ["DIST"], "bin/gcgroup-load")


class Refused(Exception):
    """The daemon refused to read or write a file; the text says why."""


def path(pid, name):
    """Returns the path of a process's file, or of the root's file if `pid` is None."""
    return name if pid is None else f"{pid}/{name}"


def get(pid, name):
    """Returns the content of a control file without surrounding whitespace."""
    if MOUNT:
        try:
            with open(f"{MOUNT}/{path(pid, name)}", encoding="ascii") as file:
                return file.read().strip()
        except OSError as error:
            raise Refused(str(error)) from error
    return socket_command("get", path(pid, name))


def charged(pid):
    """Returns the bytes charged to a process or group, once no context is charged by an estimate any more: when they
    have not changed for 0.3 s."""
    until, since, last = time.monotonic() + 5, time.monotonic(), None
    while True:
        current, now = int(get(pid, "memory.current")), time.monotonic()
        if current != last:
            since, last = now, current
        if now - since >= 0.3 or now >= until:
            return current
        time.sleep(0.02)


def put(pid, name, value):
    """Writes a control file."""
    if MOUNT:
        try:
            with open(f"{MOUNT}/{path(pid, name)}", "w", encoding="ascii") as file:
                file.write(f"{value}\n")
        except OSError as error:
            raise Refused(str(error)) from error
    else:
        socket_command("set", path(pid, name), str(value))


def socket_command(*arguments):
    try:
        done = subprocess.run([GCGROUPFS, *arguments], capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"no answer to {' '.join(arguments)}") from error
    if done.returncode:
        raise Refused(done.stderr.strip())
    return done.stdout.strip()


def flat(pid, name):
    """Returns a file of `KEY VALUE` or `KEY: VALUE` lines as a dictionary of words."""
    lines = (line.replace(":", " ").split() for line in get(pid, name).splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}


def governed(pid):
    """Returns whether the process has a directory."""
    try:
        get(pid, "gcgroup.events")
    except Refused:
        return False
    return True


def until(what, condition, seconds=20.0):
    """Waits until the condition holds. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {seconds} s, waiting until {what}")
        time.sleep(0.01)


def launches(pid):
    """Returns the number of kernels that a process has submitted."""
    return int(flat(pid, "compute.stat")["nr_launches"])


@contextlib.contextmanager
def policy(name):
    """Changes compute.policy within the `with` block. Raises Refused if this user may not change it."""
    before = get(None, "compute.policy").split()[0]
    put(None, "compute.policy", name)
    try:
        yield
    finally:
        put(None, "compute.policy", before)


def freeze(pid):
    """Freezes a process, waits until it is frozen and drained, and returns the seconds that took."""
    began = time.monotonic()
    put(pid, "compute.freeze", 1)
    until("the process is frozen and drained", lambda: flat(pid, "gcgroup.events")["frozen"] == "1")
    return time.monotonic() - began


def thaw(pid):
    """Thaws a process."""
    put(pid, "compute.freeze", 0)
