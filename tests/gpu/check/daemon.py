"""The check's own daemon: on a mount where that is possible, on its socket alone otherwise."""
import contextlib
import os
import signal
import subprocess
import time

GCGROUPFS = os.path.join(os.environ["DIST"], "bin/gcgroupfs")
WORK = os.environ["GPU_CHECK_WORK"]
MOUNT, LOG, PID = f"{WORK}/gcgroup", f"{WORK}/daemon.log", f"{WORK}/daemon.pid"


class Unwilling(Exception):
    """It does not start; the text says why."""


def pid():
    """The one that was started last."""
    with open(PID, encoding="ascii") as file:
        return int(file.read())


def lives():
    """Whether it is there, and not just its remains."""
    try:
        with open(f"/proc/{pid()}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, ValueError):
        return False


def said(characters=300):
    """The last of what it wrote."""
    with open(LOG, encoding="utf-8", errors="replace") as log:
        return " | ".join(log.read()[-characters:].strip().splitlines()) or "not a word"


def answers(mount):
    """Whether it does, in either way. A mount is asked by a process of its own: it may not answer at all."""
    def succeeds(*command):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
        return False

    return succeeds(GCGROUPFS, "ls") and (not mount or succeeds("cat", f"{mount}/gcgroup.procs"))


def start(mount, seconds=30):
    """Starts it, on a mount or with none, in a process group of its own, so that it outlives the part that does this."""
    if mount:
        let_go()
    with open(LOG, "a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [GCGROUPFS, "mount", *([mount] if mount else ["--no-fuse"]), "--state-dir", f"{WORK}/state"],
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
    """Starts it as this machine allows; the mount or "", and why there is none."""
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
    """kill -9."""
    os.kill(pid(), signal.SIGKILL)


def let_go():
    """Takes a mount away whose daemon has gone."""
    for command in (["umount", "-l", MOUNT], ["fusermount3", "-uz", MOUNT]):
        if not mounted():
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=5, check=False)


def mounted():
    """Whether there is a mount, asked of the kernel: nobody may answer for it."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return any(line.split()[4] == MOUNT for line in file)


def stop(seconds=10):
    """Ends it, by force if it must be, and its mount."""
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
