"""Runs the check's own daemon: with a mount where that is possible, with only the socket otherwise."""
import contextlib
import os
import signal
import subprocess
import time

GCGROUPFS = os.path.join(os.environ["DIST"], "bin/gcgroupfs")
WORK = os.environ["GPU_CHECK_WORK"]
MOUNT, LOG, PID = f"{WORK}/gcgroup", f"{WORK}/daemon.log", f"{WORK}/daemon.pid"


class Unwilling(Exception):
    """The daemon did not start; the text says why."""


def pid():
    """Returns the pid of the daemon started last."""
    with open(PID, encoding="ascii") as file:
        return int(file.read())


def lives():
    """Returns whether the daemon runs; a zombie does not count."""
    try:
        with open(f"/proc/{pid()}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, ValueError):
        return False


def said(characters=300):
    """Returns the end of the daemon's log."""
    with open(LOG, encoding="utf-8", errors="replace") as log:
        return " | ".join(log.read()[-characters:].strip().splitlines()) or "its log is empty"


def answers(mount):
    """Returns whether the daemon answers on the socket and on the mount. A separate process reads the mount,
    because the read may hang."""
    def succeeds(*command):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
        return False

    return succeeds(GCGROUPFS, "ls") and (not mount or succeeds("cat", f"{mount}/gcgroup.procs"))


def start(mount, seconds=30):
    """Starts the daemon with or without a mount, in a process group of its own, so that it outlives the part
    that starts it."""
    if mount:
        let_go()
    with open(LOG, "a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [GCGROUPFS, "mount", *([mount] if mount else ["--no-fuse"]), "--state-dir", f"{WORK}/state",
             "--log", "debug"],
            stderr=log, stdout=log, stdin=subprocess.DEVNULL, preexec_fn=os.setpgrp)
    with open(PID, "w", encoding="ascii") as file:
        file.write(str(process.pid))
    until = time.monotonic() + seconds
    while not answers(mount):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise Unwilling(f"the daemon {'gives no answer' if process.returncode is None else 'ends'}: {said()}")
        time.sleep(0.05)


def start_anyhow():
    """Starts the daemon as this machine permits. Returns the mount point, or "" and the reason why there is
    no mount."""
    if not os.path.exists("/dev/fuse"):
        why = "no /dev/fuse"
    else:
        try:
            start(MOUNT)
            return MOUNT, None
        except Unwilling as reason:
            why = str(reason)
    start("")
    return "", why


def kill():
    """Kills the daemon with SIGKILL."""
    os.kill(pid(), signal.SIGKILL)


def let_go():
    """Unmounts the mount of a dead daemon."""
    for command in (["umount", "-l", MOUNT], ["fusermount3", "-uz", MOUNT]):
        if not mounted():
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=5, check=False)


def mounted():
    """Returns whether the mount exists, according to the kernel, because the daemon may not answer."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return any(line.split()[4] == MOUNT for line in file)


def stop(seconds=10):
    """Ends the daemon, with SIGKILL after `seconds`, and unmounts its mount."""
    with contextlib.suppress(OSError, ValueError):
        number, until = pid(), time.monotonic() + seconds
        os.kill(number, signal.SIGTERM)
        while os.path.exists(f"/proc/{number}") and time.monotonic() < until:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(number, os.WNOHANG)
            time.sleep(0.02)
        os.kill(number, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.remove(PID)
    let_go()
