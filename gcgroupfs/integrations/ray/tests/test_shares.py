import unittest

from gcgroup_ray.settings import Settings
from gcgroup_ray.shares import NOTHING, Share, ShareError, find_device, parse_devices, shares

GIB = 1 << 30
DEVICES = parse_devices(
    "0 GPU-aa01 00000000:01:00.0 17179869184 Simulated GPU\n1 GPU-aa02 - 8589934592 Other GPU\n"
    "2 MIG-bb01 - 1073741824 A part\n"
)


def of(fractions, **settings):
    return shares(fractions, Settings.parse(settings), DEVICES)


class SharesTest(unittest.TestCase):
    def test_devices_are_found_by_number_and_uuid(self):
        for name, index in (("0", 0), ("1", 1), ("GPU-aa02", 1), ("MIG", 2)):
            self.assertEqual(find_device(name, DEVICES).index, index)
        for name in ("3", "", "GPU-", "GPU-aa", "-1", "NoDevFiles"):
            with self.subTest(name):
                self.assertRaises(ShareError, find_device, name, DEVICES)

    def test_fraction_is_part_of_memory_and_time(self):
        expected = {0: Share(str(4 * GIB), "25000 100000"), 1: NOTHING, 2: NOTHING}
        self.assertEqual(of({"0": 0.25}), expected)
        self.assertEqual(of({"GPU-aa01": 0.25}), expected)

    def test_whole_gpus_are_not_limited(self):
        unlimited = Share("max", "max")
        self.assertEqual(of({"0": 1.0, "1": 1.0}), {0: unlimited, 1: unlimited, 2: NOTHING})

    def test_settings_take_place_of_fraction(self):
        self.assertEqual(of({"0": 0.25}, memory="8G")[0], Share(str(8 * GIB), "25000 100000"))
        self.assertEqual(of({"0": 0.25}, memory=0.5, max="max")[0], Share(str(8 * GIB), "max"))
        self.assertEqual(of({"0": 1.0}, max="10%")[0], Share("max", "10000 100000"))
        both = of({"0": 1.0, "1": 1.0}, memory="50%")
        self.assertEqual((both[0].memory, both[1].memory), (str(8 * GIB), str(4 * GIB)))

    def test_smallest_fraction_has_some_time(self):
        self.assertEqual(of({"0": 0.000001})[0].max, "1 100000")

    def test_unknown_gpu_is_refused(self):
        self.assertRaises(ShareError, of, {"7": 0.5})


if __name__ == "__main__":
    unittest.main()
