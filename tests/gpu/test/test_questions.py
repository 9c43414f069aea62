"""Tests a probe of which some questions have no answer."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../probe"))

from lib.cuda import Missing, Refused
from lib.questions import Questions
from answer import Skip


def missing():
    raise Skip("no such function")


def broken():
    raise ValueError("out of range")


class Asked(unittest.TestCase):
    def setUp(self):
        self.facts = {}
        self.questions = Questions(self.facts)
        # Hides the probe's stderr from the output of the tests.
        self.addCleanup(setattr, sys, "stderr", sys.stderr)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
        self.addCleanup(sys.stderr.close)

    def test_answer_is_stored_and_returned(self):
        self.assertEqual(self.questions.ask("sum", lambda a, b: a + b, 2, 3), 5)
        self.assertEqual(self.facts, {"sum": 5})
        self.assertEqual(self.questions.verdict("it is 5", None, False), "it is 5")

    def test_verdict_names_unanswered_questions(self):
        self.questions.ask("one", lambda: 1)
        self.assertIsNone(self.questions.ask("two", missing))
        self.assertEqual(self.facts["two"], {"not_possible": "no such function"})
        self.assertEqual(self.questions.verdict("one"), "one; not possible here: two: no such function")

    def test_probe_without_answers_is_skipped(self):
        self.questions.ask("two", missing)
        with self.assertRaisesRegex(Skip, "two: no such function"):
            self.questions.verdict("nothing")

    def test_unsupported_call_is_refused_not_failed(self):
        def unsupported():
            raise Missing("cuMemCreate")

        with self.assertRaises(Refused):
            unsupported()
        self.questions.ask("moves", unsupported)
        self.assertEqual(self.facts["moves"], {"not_possible": "cuMemCreate: not supported by the driver"})

    def test_failed_question_fails_and_keeps_the_others(self):
        self.questions.ask("one", lambda: 1)
        self.questions.ask("three", broken)
        self.assertEqual(self.facts, {"one": 1, "three": {"failed": "ValueError: out of range"}})
        with self.assertRaisesRegex(AssertionError, "three: ValueError: out of range; one is 1"):
            self.questions.verdict("one is 1")


if __name__ == "__main__":
    unittest.main()
