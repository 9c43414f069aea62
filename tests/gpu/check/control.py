"""Control files, by the mount or by the daemon's socket: one way in, whichever this machine allows."""
import contextlib
import os
import signal
import subprocess
import time

DIST = os.environ["DIST"]
MOUNT = os.environ.get("GCGROUP", "")
GCGROUPFS = os.path.join(DIST, "bin/gcgroupfs")
LOAD = os.path.join(DIST, "bin/gcgroup-load")
WORK = os.environ["GPU_CHECK_WORK"]


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
    done = subprocess.run([GCGROUPFS, *arguments], capture_output=True, text=True, timeout=10, check=False)
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


def kill_daemon():
    """kill -9 of the check's own daemon."""
    with open(f"{WORK}/daemon.pid", encoding="ascii") as file:
        os.kill(int(file.read()), signal.SIGKILL)


def start_daemon():
    """Starts the daemon again as scripts/gpu-check.sh did, in its process group."""
    place = [MOUNT] if MOUNT else ["--no-fuse"]
    if MOUNT:
        subprocess.run(["umount", "-l", MOUNT], stderr=subprocess.DEVNULL, check=False)
    with open(f"{WORK}/daemon.log", "a", encoding="utf-8") as log:
        daemon = subprocess.Popen(
            [GCGROUPFS, "mount", *place, "--state-dir", f"{WORK}/state"],
            stderr=log, stdout=log, stdin=subprocess.DEVNULL, start_new_session=True)
    with open(f"{WORK}/daemon.pid", "w", encoding="ascii") as file:
        file.write(str(daemon.pid))
    try:
        until("the daemon answers", lambda: subprocess.run(
            [GCGROUPFS, "ls"], capture_output=True, check=False).returncode == 0)
    except AssertionError as error:
        with open(f"{WORK}/daemon.log", encoding="utf-8") as log:
            raise AssertionError(f"{error}; it says: {log.read()[-1000:]}") from error
