import json
import pathlib
import unittest
from unittest import mock

import ray._private.utils

from gcgroup_ray import compatibility
from gcgroup_ray.node import NodeError, _resources, node_environment

LIBRARY = pathlib.Path("/opt/lib/libgcgroup.so")


def environment(**environ):
    return node_environment(library=LIBRARY, socket="/run/s", environ=environ)


class NodeTest(unittest.TestCase):
    def test_workers_start_without_access_to_gpus(self):
        variables = environment()
        self.assertEqual(variables["GCGROUP_MEMORY_LIMIT"], "0")
        self.assertEqual(variables["GCGROUP_REQUIRED"], "1")
        self.assertEqual(variables["GCGROUP_SOCKET"], "/run/s")

    def test_present_values_are_kept(self):
        before = {
            "LD_PRELOAD": "a.so",
            "RAY_preload_python_modules": "numpy",
            "RAY_RUNTIME_ENV_PLUGINS": '[{"class": "a.B"}]',
        }
        once = environment(**before)
        self.assertEqual(once["LD_PRELOAD"], f"{LIBRARY}:a.so")
        self.assertEqual(once["RAY_preload_python_modules"], "numpy,gcgroup_ray.worker")
        classes = [plugin["class"] for plugin in json.loads(once["RAY_RUNTIME_ENV_PLUGINS"])]
        self.assertEqual(classes, ["a.B", "gcgroup_ray.plugin.GcgroupPlugin"])
        self.assertEqual(environment(**once), once)

    def test_invalid_values_are_refused(self):
        for plugins in ("{", "{}", "5"):
            with self.subTest(plugins):
                self.assertRaises(NodeError, environment, RAY_RUNTIME_ENV_PLUGINS=plugins)
        self.assertRaises(NodeError, node_environment, library=pathlib.Path("/a b/c.so"), environ={})

    def test_resources_are_added(self):
        for arguments in (["--head"], ["--head", "--resources", "{}"], ["--resources={}", "--head"]):
            self.assertEqual(_resources(arguments), ["--head", '--resources={"gcgroup": 1000}'])
        own = _resources(['--resources={"gcgroup": 1, "a": 2}'])
        self.assertEqual(json.loads(own[0].removeprefix("--resources=")), {"gcgroup": 1, "a": 2})
        for text in ("{", "[]", ""):
            with self.subTest(text):
                self.assertRaises(NodeError, _resources, ["--resources", text])

    def test_installed_ray_is_supported(self):
        compatibility.check()

    def test_other_versions_of_ray_are_refused(self):
        utils = ray._private.utils
        with mock.patch.object(ray, "__version__", "2.61.0"):
            self.assertRaisesRegex(ImportError, "Ray 2.61.0 is not supported", compatibility.check)
        with mock.patch.object(utils, "set_visible_accelerator_ids", lambda ids: ids):
            self.assertRaisesRegex(ImportError, "has the parameters", compatibility.check)
        with mock.patch.object(utils, "reset_visible_accelerator_env_vars"):
            del utils.reset_visible_accelerator_env_vars
            self.assertRaisesRegex(ImportError, "is missing", compatibility.check)
            # So that the mock can restore it.
            utils.reset_visible_accelerator_env_vars = None


if __name__ == "__main__":
    unittest.main()
