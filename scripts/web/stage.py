"""A daemon on two simulated GPUs, and programs, for tests and pictures."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path


def environment(dist, root):
    return os.environ | {
        "PATH": f"{dist}/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{dist}/simgpu",
        "SIMGPU_DIR": f"{root}/sim",
        "SIMGPU_DEVICES": "2",
        "SIMGPU_MEMORY": "40G",
        "GCGROUP_SOCKET": f"{root}/socket",
        "TERM": "screen",
        "LC_ALL": "C.UTF-8",
    }


def wait(what, condition):
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"timed out, waiting until {what}")
        time.sleep(0.1)


class Stage:
    """A daemon and its programs; all end with it."""

    def __init__(self, dist, root):
        self.dist, self.root, self.children, self.nr_programs = dist, root, [], 0
        self.environment = environment(dist, root)
        (root / "sim").mkdir()
        self.start(["gcgroupfs", "mount", str(root), "--no-fuse", "--state-dir", str(root / "run")])
        wait("the daemon answers", lambda: self.gcgroupfs("ls").returncode == 0)

    def start(self, words, **options):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(words, env=self.environment, **quiet | options)
        self.children.append(child)
        return child

    def gcgroupfs(self, *words):
        return subprocess.run(["gcgroupfs", *words], env=self.environment, capture_output=True, text=True)

    def program(self, name, group, *words, swap=False):
        """Starts a copy of the workload under another name, so that the screen shows that name."""
        path = self.root / name
        if not path.exists():
            shutil.copy(self.dist / "bin/gcgroup-load", path)
        options = ["--group", group] + (["--swap"] if swap else [])
        command = ["gcgroupfs", "run", *options, "--", str(path), *words]
        self.nr_programs += 1
        child = self.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while not (line := child.stdout.readline()).startswith("ready"):
            if not line:
                sys.exit(f"{name} has ended: {child.wait()}")
        return child

    def crowd(self, total):
        """Starts programs in the groups of 20 users until there are `total`. They hold memory; each third waits, frozen."""
        for group in ["lab", *(f"lab/user{at}" for at in range(20))]:
            self.gcgroupfs("mkdir", group)
        names = ["train", "serve", "notebook", "evaluate", "embed"]
        for at in range(total - self.nr_programs):
            program = self.program(names[at % len(names)], f"lab/user{at % 20}", "obey", "--device", str(at % 2))
            if at % 3 == 0:
                self.gcgroupfs("set", f"{program.pid}/compute.freeze", "1")
            program.stdin.write(f"alloc linear {1 + at * 7 % 16 << 20}\nlaunch 1\n")
            program.stdin.flush()

    def exporter(self, *options):
        """Starts an exporter and returns its URL."""
        words = ["gcgroup-exporter", "--listen", "127.0.0.1:0", *options]
        exporter = self.start(words, stderr=subprocess.PIPE, text=True)
        return exporter.stderr.readline().removeprefix("gcgroup-exporter: ready: ").strip()

    def close(self):
        for child in reversed(self.children):
            child.terminate()
            child.wait()
