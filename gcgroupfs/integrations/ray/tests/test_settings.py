import math
import unittest

from gcgroup_ray.options import options
from gcgroup_ray.settings import Amount, Settings, SettingsError

GIB = 1 << 30


class SettingsTest(unittest.TestCase):
    def test_valid_settings(self):
        for given, expected in (
            ({}, Settings()),
            ({"memory": "8G"}, Settings(memory=Amount(number=8 * GIB))),
            ({"memory": "1.5GiB"}, Settings(memory=Amount(number=3 * GIB // 2))),
            ({"memory": " 512 kb "}, Settings(memory=Amount(number=512 << 10))),
            ({"memory": 4096}, Settings(memory=Amount(number=4096))),
            ({"memory": 0.25}, Settings(memory=Amount(fraction=0.25))),
            ({"memory": "25%"}, Settings(memory=Amount(fraction=0.25))),
            ({"memory": "max"}, Settings(memory=Amount())),
            ({"max": "50%"}, Settings(max=Amount(fraction=0.5))),
            ({"max": 1.0}, Settings(max=Amount(fraction=1.0))),
            ({"max": "max"}, Settings(max=Amount())),
            ({"priority": 0}, Settings(priority=0)),
            ({"priority": 15}, Settings(priority=15)),
            ({"swap": True}, Settings(swap=Amount())),
            ({"swap": False}, Settings()),
            ({"swap": "max"}, Settings(swap=Amount())),
            ({"swap": "2G"}, Settings(swap=Amount(number=2 * GIB))),
        ):
            with self.subTest(given):
                self.assertEqual(Settings.parse(given), expected)

    def test_invalid_settings_are_refused_with_their_key(self):
        for key, values in {
            "memory": [
                "",
                "8X",
                "-1G",
                "0",
                0,
                -1,
                True,
                None,
                1.5,
                0.0,
                math.nan,
                "101%",
                "0%",
                [],
                1 << 63,
                "9999999P",
            ],
            "max": ["", "8G", "101%", "0%", 0, 1, 2.0, -0.5, True, None, math.inf],
            "priority": [-1, 16, "4", 4.0, True, None],
            "swap": ["", "x", "50%", 0.5, -1, 0, None],
        }.items():
            for value in values:
                with self.subTest(key=key, value=value):
                    self.assertRaisesRegex(SettingsError, f"gcgroup: {key}: ", Settings.parse, {key: value})

    def test_unknown_keys_and_other_types_are_refused(self):
        for given in ({"memry": 1}, {"memory": "1G", 5: 1}, "8G", None, [("memory", "8G")]):
            with self.subTest(given):
                self.assertRaises(SettingsError, Settings.parse, given)

    def test_options_check_settings_and_choose_nodes(self):
        chosen = options(memory="8G", priority=4)
        self.assertEqual(chosen["runtime_env"], {"gcgroup": {"memory": "8G", "priority": 4}})
        self.assertGreater(chosen["resources"]["gcgroup"], 0)
        self.assertRaises(SettingsError, options, memory="much")


if __name__ == "__main__":
    unittest.main()
