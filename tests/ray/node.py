"""A daemon on simulated GPUs, and what tests read from it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

#: Seconds after which a state that a test waits for will not come.
DEADLINE = 60

DIST = pathlib.Path(os.environ["GCGROUP_DIST"])
LIBRARY = DIST / "lib" / "libgcgroup.so"
GIB = 1 << 30


def wait_until(what, condition):
    """Wait until a condition holds, and return its value."""
    end = time.monotonic() + DEADLINE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"timed out: {what}")
        time.sleep(0.05)


class Daemon:
    """A daemon without a mount, in a directory that every user may enter."""

    def __init__(self, gpus, context_memory):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="d"))
        self.root.chmod(0o755)
        for name in ("gpu", "run", "mnt"):
            (self.root / name).mkdir()
        (self.root / "gpu").chmod(0o1777)
        self.socket = str(self.root / "socket")
        self.environment = {
            "GCGROUP_SOCKET": self.socket,
            "LD_LIBRARY_PATH": str(DIST / "simgpu"),
            "SIMGPU_DIR": str(self.root / "gpu"),
            "SIMGPU_DEVICES": str(gpus),
            "SIMGPU_CONTEXT_MEMORY": str(context_memory),
        }
        self.process = None
        self.start()

    def start(self):
        arguments = ["mount", self.root / "mnt", "--no-fuse", "--allow-other"]
        arguments += ["--socket", self.socket, "--state-dir", self.root / "run"]
        with (self.root / "log").open("a") as log:
            self.process = subprocess.Popen(
                [DIST / "bin" / "gcgroupfs", *arguments], env={**os.environ, **self.environment}, stderr=log
            )
        wait_until("the daemon answers", lambda: self.run("get", "devices").returncode == 0)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, *arguments):
        return subprocess.run(
            [DIST / "bin" / "gcgroupfs", *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def get(self, path):
        ran = self.run("get", path)
        if ran.returncode:
            raise AssertionError(f"{path}: {ran.stderr}")
        return ran.stdout.strip()

    def key(self, path, key):
        return int(re.search(rf"^{key}:? (\d+)$", self.get(path), re.MULTILINE)[1])

    def uuids(self):
        return [line.split(" ")[1] for line in self.get("devices").splitlines()]

    def limits(self, group, gpu):
        """Return memory.limit and compute.max of a group on one GPU."""
        return self.get(f"{group}/{gpu}/memory.limit"), self.get(f"{group}/{gpu}/compute.max")

    def groups(self):
        """Return the paths of all groups."""
        return sorted(group["path"] for group in json.loads(self.run("ls", "--json").stdout)["groups"])
