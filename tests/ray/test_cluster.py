"""Tests gcgroup_ray with a Ray cluster of two nodes on one machine: GPU 0, and GPUs 1 and 2."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

import gcgroup_ray
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import conformance
import conformance_jobs
import gpu
from node import DIST, GIB, LIBRARY, Daemon, wait_until

MIB = 1 << 20
#: Memory of a simulated GPU, and what a context takes.
MEMORY = 16 * GIB
CONTEXT = 64 * MIB
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
NOTHING = "0"
#: Group of the workers of node b.
GROUP = "team"

daemon = None
cluster = None


def setUpModule():
    global daemon, cluster
    daemon = Daemon(gpus=3, context_memory=CONTEXT)
    unittest.addModuleCleanup(daemon.stop)
    os.environ.update(daemon.environment)
    # Its value would replace LD_PRELOAD of a raylet that this process starts.
    os.environ["RAY_JEMALLOC_LIB_PATH"] = ""
    cluster = Cluster()
    unittest.addModuleCleanup(cluster.shutdown)
    uuids = daemon.uuids()
    add_node("a", uuids[:1])
    daemon.run("mkdir", GROUP)
    add_node("b", uuids[1:], GROUP)
    unittest.addModuleCleanup(ray.shutdown)
    ray.init(address=cluster.address, log_to_driver=False)


def tearDownModule():
    ray.shutdown()
    cluster.shutdown()
    # Workers end after their raylet.
    wait_until("no group is left", lambda: daemon.groups() in ([], [GROUP]))
    wait_until("no process is left", lambda: daemon.get("gcgroup.procs") == "")


def add_node(name, uuids, group=None, **more):
    environment = gcgroup_ray.node_environment(library=LIBRARY, group=group)
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    environment.update(more)
    resources = {"gcgroup": 1000, name: 1000}
    return cluster.add_node(num_cpus=4, num_gpus=len(uuids), resources=resources, env_vars=environment)


def on(node, num_gpus, **options):
    """Return options of a task or actor on a node. Tasks are not tried again."""
    return {"num_gpus": num_gpus, "resources": {node: 0.001}, **options}


# A function without num_gpus, so that a process runs more than one task.
@ray.remote(max_retries=0)
def try_sizes(*sizes):
    return gpu.try_sizes(*sizes)


@ray.remote(max_retries=0)
def see_limits(path):
    """Write a file that shows that the task ran, and wait until the test has removed it."""
    path = pathlib.Path(path)
    path.with_suffix(".new").write_text(json.dumps(gpu.facts()))
    path.with_suffix(".new").rename(path)
    wait_until("the test has seen the limits", lambda: not path.exists())
    return gpu.facts()


@ray.remote
class Actor:
    def try_sizes(self, *sizes):
        return gpu.try_sizes(*sizes)

    def facts(self):
        return gpu.facts()

    def spin(self, count, microseconds):
        gpu.open_gpu()
        for _ in range(count):
            gpu.spin(microseconds)

    def fail(self):
        raise ValueError("as intended")


@ray.remote(max_retries=0)
def fail():
    gpu.open_gpu()
    raise ValueError("as intended")


def share(part):
    """Return the limits of a share of a GPU."""
    return str(int(MEMORY * part)), f"{int(100_000 * part)} 100000"


def gpus_of(facts):
    """Return the daemon's numbers of the GPUs that a task sees."""
    return [daemon.uuids().index(uuid) for uuid in facts["visible"].split(",")]


class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def actor(self, node, num_gpus, **options):
        actor = Actor.options(**on(node, num_gpus, **options)).remote()
        self.addCleanup(ray.kill, actor)
        return actor

    def limits_during_task(self, **options):
        """Return the facts of a task, and its limits on its first GPU while it runs."""
        path = self.directory / "runs"
        task = see_limits.options(**options).remote(str(path))
        wait_until("the task runs", path.exists)
        facts = json.loads(path.read_text())
        limits = daemon.limits(facts["group"], gpus_of(facts)[0])
        path.unlink()
        return ray.get(task), limits

    # Jobs that contend

    def test_jobs_are_held_as_under_gcgroupfs_run(self):
        node = conformance.Daemon([DIST / "bin" / "gcgroupfs"], daemon.process.pid)
        load = DIST / "bin" / "gcgroup-load"
        conformance.compare(node, conformance_jobs.Jobs("a"), 128 * MIB, load)

    # Tasks

    def test_quarter_of_gpu_is_quarter_of_memory_and_time(self):
        facts, limits = self.limits_during_task(**on("a", 0.25))
        self.assertEqual(limits, share(0.25))
        self.assertEqual(gpus_of(facts), [0])
        ran = ray.get(try_sizes.options(**on("a", 0.25)).remote(3 * GIB, 4 * GIB))
        self.assertEqual(ran["allocated"], ["ok", OUT_OF_MEMORY])
        self.assertEqual(ran["total"], MEMORY // 4)

    def test_reused_worker_has_share_of_each_task(self):
        seen = {}
        # Ray chooses the worker.
        for number in range(20):
            part = (0.25, 0.5)[number % 2]
            ran = ray.get(try_sizes.options(**on("a", part)).remote(6 * GIB))
            self.assertEqual(ran["allocated"], [OUT_OF_MEMORY if part < 0.4 else "ok"])
            self.assertEqual(ran["total"], MEMORY * part)
            seen.setdefault(ran["pid"], set()).add(part)
            if {0.25, 0.5} in seen.values():
                break
        self.assertIn({0.25, 0.5}, seen.values(), "no worker ran two tasks")

    def test_idle_worker_can_allocate_nothing(self):
        ran = ray.get(try_sizes.options(**on("a", 0.5)).remote(GIB))
        wait_until("the share is taken back", lambda: daemon.limits(ran["group"], 0)[0] == NOTHING)
        with self.assertRaises(ray.exceptions.RayTaskError):
            ray.get(fail.options(**on("a", 0.5)).remote())
        groups = [group for group in daemon.groups() if group.startswith("ray-")]
        self.assertTrue(groups)
        wait_until("no share is left", lambda: all(daemon.limits(group, 0)[0] == NOTHING for group in groups))

    def test_task_without_gpu_cannot_use_one(self):
        visible = {"env_vars": {"CUDA_VISIBLE_DEVICES": ",".join(daemon.uuids())}}
        ran = ray.get(try_sizes.options(**on("b", 0, runtime_env=visible)).remote())
        self.assertEqual(ran["opened"], OUT_OF_MEMORY)

    def test_several_whole_gpus_are_not_limited(self):
        facts, limits = self.limits_during_task(**on("b", 2))
        self.assertEqual(limits, ("max", "max 100000"))
        self.assertEqual(sorted(gpus_of(facts)), [1, 2])
        self.assertEqual(facts["group"], f"{GROUP}/ray-{facts['pid']}")

    def test_gpus_of_other_nodes_are_out_of_reach(self):
        ran = ray.get(try_sizes.options(**on("b", 0.5)).remote(7 * GIB, 8 * GIB))
        self.assertEqual(ran["allocated"], ["ok", OUT_OF_MEMORY])
        (own,) = gpus_of(ran)
        self.assertEqual(daemon.limits(ran["group"], 3 - own)[0], NOTHING)
        self.assertEqual(daemon.limits(ran["group"], 0)[0], NOTHING)
        everything = {"env_vars": {"CUDA_VISIBLE_DEVICES": daemon.uuids()[0]}}
        with self.assertRaises(ray.exceptions.WorkerCrashedError):
            ray.get(try_sizes.options(**on("b", 2, runtime_env=everything)).remote())

    def test_share_in_placement_group(self):
        group = placement_group([{"GPU": 0.25, "CPU": 1, "a": 0.001}])
        self.addCleanup(remove_placement_group, group)
        ray.get(group.ready())
        strategy = PlacementGroupSchedulingStrategy(group)
        options = {"num_gpus": 0.25, "scheduling_strategy": strategy}
        self.assertEqual(self.limits_during_task(**options)[1], share(0.25))

    # Actors

    def test_actors_hold_their_shares_side_by_side(self):
        small, large = self.actor("a", 0.25), self.actor("a", 0.5)
        for actor, part in ((small, 0.25), (large, 0.5)):
            bytes_of_share = int(MEMORY * part)
            ran = ray.get(actor.try_sizes.remote(bytes_of_share - CONTEXT - MIB, bytes_of_share))
            self.assertEqual(ran["allocated"], ["ok", OUT_OF_MEMORY])
            self.assertEqual(daemon.limits(ran["group"], 0), share(part))
        with self.assertRaises(ray.exceptions.RayTaskError):
            ray.get(small.fail.remote())
        group = ray.get(small.facts.remote())["group"]
        self.assertEqual(daemon.limits(group, 0), share(0.25))

    def test_actor_is_throttled_to_its_share_of_time(self):
        actor = self.actor("a", 0.25)
        group = ray.get(actor.facts.remote())["group"]

        def is_throttled():
            ray.get(actor.spin.remote(20, 5000))
            return daemon.key(f"{group}/compute.stat", "nr_throttled")

        wait_until("a quota is used up", is_throttled)

    def test_killed_worker_leaves_nothing_and_restarts_with_its_share(self):
        actor = self.actor("a", 0.25, max_restarts=1, max_task_retries=3)
        first = ray.get(actor.try_sizes.remote())
        os.kill(first["pid"], signal.SIGKILL)
        second = ray.get(actor.try_sizes.remote())
        self.assertNotEqual(second["group"], first["group"])
        self.assertEqual(daemon.limits(second["group"], 0), share(0.25))
        wait_until("the group is removed", lambda: first["group"] not in daemon.groups())
        ray.kill(actor)
        wait_until("the group is removed", lambda: second["group"] not in daemon.groups())

    # Settings

    def test_explicit_settings_take_place_of_fraction(self):
        settings = {"memory": "2G", "priority": 4, "max": "50%", "swap": "1G"}
        actor = self.actor("a", 0.25, runtime_env={"gcgroup": settings})
        ran = ray.get(actor.try_sizes.remote(GIB, 2 * GIB))
        self.assertEqual(ran["allocated"], ["ok", OUT_OF_MEMORY])
        group = ran["group"]
        self.assertEqual(daemon.limits(group, 0), (str(2 * GIB), "50000 100000"))
        self.assertEqual(daemon.get(f"{group}/compute.priority"), "4")
        self.assertEqual(daemon.get(f"{group}/memory.swap.max"), str(GIB))
        self.assertEqual(daemon.get(f"{ran['pid']}/memory.swap.max"), str(GIB))

    def test_options_set_one_limit_and_keep_other(self):
        options = gcgroup_ray.options(memory=0.125)
        _, limits = self.limits_during_task(num_gpus=0.5, **options)
        self.assertEqual(limits, (share(0.125)[0], share(0.5)[1]))

    def test_invalid_settings_are_refused(self):
        for settings, reason in (
            ({"memori": "2G"}, "unknown key 'memori'; known are memory, priority, max, swap"),
            ({"memory": "much"}, "memory: expected a size"),
            ({"priority": 16}, "priority: expected a number from 0 (highest) to 15, not 16"),
            ("2G", "expected a dictionary"),
        ):
            task = try_sizes.options(**on("a", 0.25, runtime_env={"gcgroup": settings}))
            with self.assertRaises(ray.exceptions.RuntimeEnvSetupError) as caught:
                ray.get(task.remote())
            self.assertIn(reason, str(caught.exception))

    def test_settings_without_gpu_are_refused(self):
        actor = Actor.options(**on("a", 0, runtime_env={"gcgroup": {"memory": "1G"}})).remote()
        with self.assertRaisesRegex(ray.exceptions.ActorDiedError, "it has settings, but no GPU"):
            ray.get(actor.facts.remote())

    # Workers that are not governed

    def test_worker_without_library_does_not_run(self):
        for variables in ({"LD_PRELOAD": ""}, {"LD_PRELOAD": "libm.so.6"}):
            actor = Actor.options(**on("a", 0.25, runtime_env={"env_vars": variables})).remote()
            with self.assertRaisesRegex(ray.exceptions.ActorDiedError, "libgcgroup.so is not preloaded"):
                ray.get(actor.facts.remote())

    def test_environment_may_extend_preloaded_libraries(self):
        extended = {"env_vars": {"LD_PRELOAD": "libm.so.6:${LD_PRELOAD}"}}
        ran = ray.get(try_sizes.options(**on("a", 0.25, runtime_env=extended)).remote(3 * GIB, 4 * GIB))
        self.assertEqual(ran["allocated"], ["ok", OUT_OF_MEMORY])

    def test_worker_without_module_cannot_use_gpu(self):
        node = add_node("c", daemon.uuids()[:1], RAY_preload_python_modules="gcgroup_ray_absent")
        self.addCleanup(cluster.remove_node, node)
        ran = ray.get(try_sizes.options(**on("c", 0.25)).remote())
        self.assertEqual((ran["group"], ran["opened"]), (None, OUT_OF_MEMORY))

    def test_worker_that_used_cuda_before_does_not_run(self):
        node = add_node("d", daemon.uuids()[:1], RAY_preload_python_modules="early,gcgroup_ray.worker")
        self.addCleanup(cluster.remove_node, node)
        actor = Actor.options(**on("d", 0.25)).remote()
        with self.assertRaisesRegex(ray.exceptions.ActorDiedError, "it has used CUDA before"):
            ray.get(actor.facts.remote())

    def test_task_without_daemon_does_not_run(self):
        before = ray.get(try_sizes.options(**on("a", 0.5)).remote(GIB))
        daemon.kill()
        self.addCleanup(lambda: daemon.process.poll() is not None and daemon.start())
        path = self.directory / "runs"
        task = see_limits.options(**on("a", 0.25)).remote(str(path))
        with self.assertRaises(ray.exceptions.WorkerCrashedError):
            ray.get(task)
        self.assertFalse(path.exists(), "the task ran")
        daemon.start()
        after = ray.get(try_sizes.options(**on("a", 0.25, max_retries=5)).remote(3 * GIB, 4 * GIB))
        self.assertEqual(after["allocated"], ["ok", OUT_OF_MEMORY])
        self.assertEqual(before["opened"], "ok")

    def test_children_of_task_share_its_limit(self):
        @ray.remote(max_retries=0)
        def run_child():
            script = "import gpu, json; print(json.dumps(gpu.try_sizes(3 << 30, 4 << 30)))"
            ran = subprocess.run(["python3", "-c", script], capture_output=True, text=True, check=True)
            return ran.stdout, gpu.facts()

        output, facts = ray.get(run_child.options(**on("a", 0.25)).remote())
        self.assertIn(f'"allocated": ["ok", "{OUT_OF_MEMORY}"]', output)
        self.assertIn(f'"group": "{facts["group"]}"', output)


if __name__ == "__main__":
    unittest.main()
