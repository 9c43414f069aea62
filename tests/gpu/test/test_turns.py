"""Tests the arithmetic on stamps that tells when each process had the device."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../probe"))

from lib.turns import shares, turns


def run(start, end, *gaps):
    return {"start": start, "end": end, "least": 32, "gaps": list(gaps), "seen": len(gaps)}


class Turns(unittest.TestCase):
    def test_gaps_are_cut_out_of_the_window(self):
        self.assertEqual(turns(run(0, 100, (20, 40), (60, 70)), 0, 100), [(0, 20), (40, 60), (70, 100)])

    def test_gaps_across_the_windows_edges_are_clipped(self):
        self.assertEqual(turns(run(0, 100, (5, 15), (30, 40), (90, 99)), 10, 95), [(15, 30), (40, 90)])

    def test_gaps_outside_the_window_are_ignored(self):
        self.assertEqual(turns(run(0, 100, (1, 2), (98, 99)), 10, 90), [(10, 90)])

    def test_shares_and_lost_time(self):
        # Turns of 300 and 100; each change loses 10.
        one = run(0, 840, (300, 420), (720, 840))
        other = run(310, 1000, (410, 730))
        seen = shares([one, other])
        first, second = seen["processes"]
        self.assertAlmostEqual(first["share"], 300 / 530)
        self.assertAlmostEqual(second["share"], 210 / 530)
        self.assertAlmostEqual(seen["nobody"], 20 / 530)
        self.assertEqual(first["turns"], 1)

    def test_runs_without_overlap_fail(self):
        with self.assertRaises(AssertionError):
            shares([run(0, 10), run(20, 30)])


if __name__ == "__main__":
    unittest.main()
