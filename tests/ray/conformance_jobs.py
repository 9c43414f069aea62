"""The two contending jobs of scripts/cluster/common/conformance.py, as actors of Ray."""

import os
import signal
import subprocess

import gcgroup_ray
import ray


@ray.remote
class Shell:
    """A job: a shell command in the group of its worker."""

    def start(self, command):
        self.process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def group(self):
        return os.environ["GCGROUP_GROUP"]

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Jobs:
    """Jobs on a node of Ray, each with a fraction of the node's GPU and settings that take its place."""

    name = "Ray"

    def __init__(self, node):
        self.node = node
        self.actors = {}

    def start(self, job, memory, command):
        settings = {"memory": memory, "max": f"{job.max}%", "priority": job.priority, "swap": job.swap}
        options = gcgroup_ray.options(**settings)
        options["resources"] = {**options.get("resources", {}), self.node: 0.001}
        self.actors[job.name] = Shell.options(num_gpus=0.25, **options).remote()
        ray.get(self.actors[job.name].start.remote(command))

    def group(self, job):
        return ray.get(self.actors[job.name].group.remote())

    def end(self, job):
        actor = self.actors.pop(job.name)
        ray.get(actor.end.remote())
        ray.kill(actor)
