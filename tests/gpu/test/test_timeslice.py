"""Tests the time slice probe with a device that obeys time slices, one that ignores them, and one that
refuses."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../probe"))

from lib.questions import Questions
from lib.watch import DISABLE_CHANNELS, GET_TIMESLICE, PREEMPT, SET_TIMESLICE, Watch
from rm import Kernel
from timeslice import Grouped, Slices, judge

GROUP, USEC = 0x20, 2000


class Rival(Grouped):
    """A process whose kernels run on a simulated device."""

    def __init__(self, device, refuses):
        self.device, self.action, self.watch = device, None, Watch()
        self.kernel = self.watch.ioctl = Kernel({GROUP: USEC}, refuses)
        self.watch.objects = {
            (1, 1): {"class": 0x41, "parent": 0, "fd": 3, "engine": None},
            (1, 2): {"class": 0x2080, "parent": 1, "fd": 3, "engine": None},
            (1, GROUP): {"class": 0xA06C, "parent": 1, "fd": 3, "engine": 1},
            (1, 0x30): {"class": 0xC86F, "parent": GROUP, "fd": 3, "engine": None}}
        device.rivals.append(self)

    def do_stamps(self, milliseconds):
        asked = len(self.kernel.asked)
        self.while_it_runs()
        return "stamps " + json.dumps(self.device.stamps(self, int(milliseconds), self.kernel.asked[asked:]))

    def do_work(self, milliseconds):
        return f"work {1000 * self.device.part(self)} 1.0"


class Device:
    """Divides time by time slices, or ignores them."""

    def __init__(self, obeys):
        self.obeys, self.rivals = obeys, []

    def turn(self, rival):
        return rival.kernel.slices[GROUP] if self.obeys else USEC

    def part(self, rival):
        return self.turn(rival) / sum(map(self.turn, self.rivals))

    def stamps(self, rival, milliseconds, asked):
        end, gaps = milliseconds * 1_000_000, []
        if asked:  # One rival alone, with an action meanwhile.
            if self.obeys and asked[-1][3] == DISABLE_CHANNELS:
                gaps = [(50_000_000, 201_000_000)]
        else:
            first, other = self.rivals
            at = 0
            while at < end:
                change = at + 1000 * self.turn(first)
                after = change + 1000 * self.turn(other)
                gaps.append((change, after) if rival is first else (at, change))
                at = after
        return {"start": 0, "end": end, "least": 32, "gaps": gaps, "seen": len(gaps)}


class Lead:
    """A rival in this process."""

    def __init__(self, rival):
        self.rival, self.line = rival, ""

    def tell(self, line):
        self.line = line

    def told(self, answer):
        verb, *rest = self.line.split()
        first, _, text = getattr(self.rival, f"do_{verb}")(*rest).partition(" ")
        if first != answer:
            raise AssertionError(f"{first}, not {answer}")
        return text

    def ask(self, line, answer):
        self.tell(line)
        return self.told(answer)


class Judging(unittest.TestCase):
    def judge(self, obeys=True, refuses=()):
        self.device, self.facts = Device(obeys), {}
        one, other = (Lead(Rival(self.device, refuses)) for _ in range(2))
        self.kernel = one.rival.kernel
        return judge(Questions(self.facts), Slices(one, other))

    def commands(self):
        return [entry[3] for entry in self.kernel.asked]

    def test_device_that_obeys_time_slices(self):
        said = self.judge()
        self.assertIn("has an effect: its part goes from 0.50 to 0.8", said)
        self.assertIn("stands still while its channels are off", said)
        self.assertEqual(self.kernel.slices[GROUP], USEC, "the time slice is restored")
        self.assertIsNone(self.facts["refused"])
        self.assertAlmostEqual(self.facts["effect"]["longer"]["work_share"][0], 8 / 9)
        self.assertLess(self.facts["effect"]["shorter"]["share"][0], 0.2)

    def test_device_that_ignores_time_slices(self):
        said = self.judge(obeys=False)
        self.assertIn("has NO effect: its part goes from 0.50 to 0.50", said)
        self.assertIn("GOES ON while its channels are off", said)

    def test_channels_are_enabled_again(self):
        self.judge()
        switched = [entry[4][0] for entry in self.kernel.asked if entry[3] == DISABLE_CHANNELS]
        self.assertEqual(switched, [1, 0])

    def test_first_refusal_ends_the_requests(self):
        for refused, before in ((GET_TIMESLICE, set()), (SET_TIMESLICE, {GET_TIMESLICE}),
                                (PREEMPT, {GET_TIMESLICE, SET_TIMESLICE})):
            said = self.judge(refuses={refused: 0x1B})
            self.assertIn("status 0x1b", said)
            commands = self.commands()
            self.assertEqual(commands[-1], refused)
            self.assertEqual(commands.count(refused), 1)
            self.assertLessEqual(set(commands[:-1]), before)
            self.assertEqual("as_it_was" in self.facts.get("effect", {}), refused != GET_TIMESLICE)


if __name__ == "__main__":
    unittest.main()
