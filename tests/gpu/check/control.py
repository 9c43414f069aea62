"""Control files, by the mount or by the daemon's socket: one way in, whichever this machine allows."""
import contextlib
import os
import subprocess
import time

from daemon import GCGROUPFS, WORK

MOUNT = os.environ.get("GCGROUP", "")
LOAD = os.path.join(os.environ["DIST"], "bin/gcgroup-load")


class Refused(Exception):
    """The daemon did not take or show a value; the text says why."""


def path(pid, name):
    """A file of a process, or of the root where there is no pid."""
    return name if pid is None else f"{pid}/{name}"


def get(pid, name):
    """What a control file shows, without its last line end."""
    if MOUNT:
        try:
            with open(f"{MOUNT}/{path(pid, name)}", encoding="ascii") as file:
                return file.read().strip()
        except OSError as error:
            raise Refused(str(error)) from error
    return socket_command("get", path(pid, name))


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
    """A file of `KEY VALUE` or `KEY: VALUE` lines as a dictionary of words."""
    lines = (line.replace(":", " ").split() for line in get(pid, name).splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}


def governed(pid):
    """Whether the process has a directory."""
    try:
        get(pid, "gcgroup.events")
    except Refused:
        return False
    return True


def until(what, condition, seconds=20.0):
    """Waits for a condition; raises if it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.01)


def launches(pid):
    """Kernels that a process has submitted."""
    return int(flat(pid, "compute.stat")["nr_launches"])


@contextlib.contextmanager
def policy(name):
    """Another compute.policy for a while; Refused where it is not for us to choose."""
    before = get(None, "compute.policy").split()[0]
    put(None, "compute.policy", name)
    try:
        yield
    finally:
        put(None, "compute.policy", before)


def freeze(pid):
    """Freezes and waits until it is so; seconds that took."""
    began = time.monotonic()
    put(pid, "compute.freeze", 1)
    until("frozen 1", lambda: flat(pid, "gcgroup.events")["frozen"] == "1")
    return time.monotonic() - began


def thaw(pid):
    """Thaws."""
    put(pid, "compute.freeze", 0)
