"""Tests the kernels instruction by instruction, and the results that the probes expect of them."""
import itertools
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../probe"))

from lib.cuda import OWN_KERNELS, TEST_KERNELS
from lib.sums import WORD, filled
from ptx import launch

OWN, TEST = OWN_KERNELS.read_text(encoding="ascii"), TEST_KERNELS.read_text(encoding="ascii")
OUT = 1 << 20


class Stamps(unittest.TestCase):
    def stamps(self, readings, most=4, length=100, threshold=10):
        memory = {}
        launch(OWN, "probe_stamps", (OUT, most, length, threshold), memory, clock=iter(readings))
        return [memory.get(OUT + 8 * i, 0) for i in range(4 + 2 * most)]

    def test_gaps_beyond_the_threshold_are_recorded(self):
        seen = self.stamps([1000, 1000, 1002, 1050, 1060, 1061, 1080, 1100])
        self.assertEqual(seen[:4], [3, 1000, 1100, 1])
        self.assertEqual(seen[4:10], [1002, 1050, 1061, 1080, 1080, 1100])

    def test_gaps_beyond_capacity_are_counted(self):
        seen = self.stamps([0, 20, 40, 60, 80, 100], most=2)
        self.assertEqual(seen[:4], [5, 0, 100, 20])
        self.assertEqual(seen[4:], [0, 20, 20, 40])

    def test_process_alone_has_no_gaps(self):
        self.assertEqual(self.stamps(itertools.count(7, 5))[:4], [0, 7, 107, 5])


class Others(unittest.TestCase):
    def test_work_takes_the_requested_rounds(self):
        memory = {}
        (short,), (long,) = (launch(OWN, "probe_work", (OUT, rounds), memory) for rounds in (10, 1010))
        self.assertEqual(long - short, 4 * 1000)
        expected = 1
        for _ in range(1010):
            expected = (expected * 1664525 + 1013904223) % (1 << 32)
        self.assertEqual(memory[OUT], expected)

    def test_flag_is_written_after_its_time(self):
        memory, clock = {}, itertools.count(500, 30)
        launch(OWN, "probe_flag", (OUT, 100, 77), memory, clock=clock)
        self.assertEqual(memory, {OUT: 77})
        self.assertGreaterEqual(next(clock), 600)

    def test_atomics_count_every_thread(self):
        memory = {}
        launch(OWN, "probe_atomics", (OUT,), memory, grid=8, block=32)
        self.assertEqual([memory[OUT + 8 * i] for i in range(3)], [256, 255, 256])

    def test_checksum_equals_the_expected_sum(self):
        size, memory, source = 400, {}, 1 << 12
        launch(TEST, "gcgroup_fill", (source, size // WORD, 7), memory, grid=2, block=16)
        self.assertEqual([memory[source + WORD * i] for i in range(size // WORD)], [7 + i for i in range(size // WORD)])
        launch(TEST, "gcgroup_checksum", (source, size // WORD, OUT), memory, grid=2, block=16)
        self.assertEqual(memory[OUT], filled(size, 7))


if __name__ == "__main__":
    unittest.main()
