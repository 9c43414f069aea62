"""A simulated node: a daemon without a mount, and what it costs."""

import json
import os
import pathlib
import subprocess
import tempfile
import time

#: Seconds after which a state that is waited for will not come.
DEADLINE = 60

DIST = pathlib.Path(os.environ["GCGROUP_DIST"])
_TICKS = os.sysconf("SC_CLK_TCK")


def wait_until(what, condition):
    """Wait until a condition holds, and return its value."""
    end = time.monotonic() + DEADLINE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise SystemExit(f"scale: timed out: {what}")
        time.sleep(0.02)


class Node:
    def __init__(self, gpus):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="node"))
        for name in ("gpu", "run", "mnt"):
            (self.root / name).mkdir()
        self.environment = {
            **os.environ,
            "GCGROUP_SOCKET": str(self.root / "socket"),
            "LD_LIBRARY_PATH": str(DIST / "simgpu"),
            "SIMGPU_DIR": str(self.root / "gpu"),
            "SIMGPU_DEVICES": str(gpus),
            "SIMGPU_CONTEXT_MEMORY": str(64 << 20),
        }
        arguments = [
            "mount",
            self.root / "mnt",
            "--no-fuse",
            "--socket",
            self.root / "socket",
            "--state-dir",
            self.root / "run",
        ]
        with (self.root / "log").open("w") as log:
            self.daemon = subprocess.Popen(
                [DIST / "bin" / "gcgroupfs", *arguments], env=self.environment, stderr=log
            )

    def wait(self):
        """Wait until the daemon serves."""
        wait_until("the daemon serves", lambda: "gcgroupfs: ready" in (self.root / "log").read_text())

    def stop(self):
        self.daemon.terminate()
        self.daemon.wait()

    def run(self, *arguments):
        command = [DIST / "bin" / "gcgroupfs", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def get(self, path):
        return self.run("get", path).strip()

    def groups(self):
        return json.loads(self.run("ls", "--json"))["groups"]

    def is_memory_free(self):
        """Return whether no memory of any GPU is used or charged, as far as is known."""
        pairs = [
            pair.split("=") for line in self.get("devices.stat").splitlines() for pair in line.split()[1:]
        ]
        return all(value == "0" for key, value in pairs if key in ("memory_used", "memory_charged"))

    def processes(self):
        """Return the pids of the daemon and its helpers."""
        children = pathlib.Path(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/children").read_text()
        return [self.daemon.pid, *(int(pid) for pid in children.split())]

    def cpu_seconds(self):
        """Return the CPU time of the daemon and its helpers."""
        total = 0.0
        for pid in self.processes():
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
        return total

    def memory(self):
        """Return the proportional set size of the daemon and its helpers, bytes."""
        total = 0
        for pid in self.processes():
            rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))
        return total

    def descriptors(self):
        return len(list(pathlib.Path(f"/proc/{self.daemon.pid}/fd").iterdir()))
