"""Tests a node that a user without privileges starts with gcgroup-ray."""

import json
import os
import pathlib
import pwd
import signal
import subprocess
import sys
import unittest

from node import GIB, LIBRARY, Daemon, wait_until

USER = 65534
ADDRESS = "127.0.0.1:6479"

#: Runs a program as the user. The programs of the test may lie where only root may read.
AS_USER = [
    "setpriv",
    f"--reuid={USER}",
    f"--regid={USER}",
    "--clear-groups",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
]


def find_raylet():
    """Return the pid of the user's raylet."""
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if directory.stat().st_uid == USER and (directory / "comm").read_text() == "raylet\n":
                return int(directory.name)
        except OSError:
            # It has ended.
            continue
    raise AssertionError("there is no raylet")


class UserTest(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon(gpus=1, context_memory=64 << 20)
        self.addCleanup(self.daemon.stop)
        self.home = self.daemon.root / "home"
        self.home.mkdir()
        os.chown(self.home, USER, USER)
        self.environment = {
            **os.environ,
            **self.daemon.environment,
            "HOME": str(self.home),
            "RAY_TMPDIR": str(self.home),
            "TMPDIR": str(self.home),
        }
        self.log = self.home / "log"

    def start(self, arguments, **more):
        """Start a program as the user, in a session of its own that ends with the test."""
        process = subprocess.Popen(
            [*AS_USER, sys.executable, *arguments],
            env=self.environment,
            start_new_session=True,
            text=True,
            **more,
        )
        self.addCleanup(process.wait)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    def start_node(self, *arguments):
        command = ["-m", "gcgroup_ray.node", "start", f"--gcgroup-library={LIBRARY}", *arguments]
        with self.log.open("w") as log:
            return self.start(command, stdout=log, stderr=subprocess.STDOUT)

    def test_user_without_privileges_is_governed(self):
        address, port = ADDRESS.split(":")
        node = self.start_node(
            "--head",
            "--block",
            f"--node-ip-address={address}",
            f"--port={port}",
            "--num-gpus=1",
            "--num-cpus=4",
            "--include-dashboard=false",
        )
        wait_until("the node runs", lambda: node.poll() is not None or "--block" in self.log.read_text())
        self.assertIsNone(node.poll(), self.log.read_text())
        script = pathlib.Path(__file__).with_name("user_job.py")
        with (self.home / "errors").open("w") as errors:
            path = self.home / "results"
            job = self.start(
                [str(script), ADDRESS, str(path)], stdin=subprocess.PIPE, stdout=errors, stderr=errors
            )
        self.addCleanup(job.stdin.close)
        wait_until("the job has results", lambda: path.exists() or job.poll() is not None)
        self.assertTrue(path.exists(), (self.home / "errors").read_text())
        results = json.loads(path.read_text())

        self.assertEqual(results["default"]["allocated"], ["ok", "CUDA_ERROR_OUT_OF_MEMORY"])
        self.assertEqual(results["default"]["total"], 4 * GIB)
        name = pwd.getpwuid(USER).pw_name
        for result in (results["default"], results["allowed"]):
            self.assertEqual(result["group"], f"users/{name}/ray-{result['pid']}")
        group = results["allowed"]["group"]
        self.assertEqual(self.daemon.limits(group, 0), (str(4 * GIB), "25000 100000"))
        self.assertEqual(self.daemon.get(f"{group}/compute.priority"), "10")
        self.assertIn("compute.priority: Operation not permitted", results["refused"])

        os.kill(find_raylet(), signal.SIGKILL)
        wait_until("no process is left", lambda: self.daemon.get("gcgroup.procs") == "")
        wait_until("no job is left", lambda: f"users/{name}" not in "\n".join(self.daemon.groups()))

    def test_node_without_daemon_does_not_start(self):
        self.daemon.kill()
        node = self.start_node("--head")
        self.assertEqual(node.wait(), 1)
        self.assertIn("gcgroup-ray: no daemon at", self.log.read_text())
        self.daemon.start()


if __name__ == "__main__":
    unittest.main()
