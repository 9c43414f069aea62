"""Defines how a program of the check reports its result: `NAME.py --json FILE [--sim]`. The program prints
its verdict in one line, stores its numbers in the file as they become known, and exits with 0, with 77 if it
cannot run here, or with another status after a failure. At SIGTERM it prints its stack traces to stderr."""
import argparse
import faulthandler
import json
import os
import signal
import sys
import traceback


class Skip(Exception):
    """This machine lacks a prerequisite; the text names it."""


def require(condition, what):
    """Raises AssertionError unless the condition holds."""
    if not condition:
        raise AssertionError(what)


def sentence(error):
    """Returns an exception as one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]


class Facts(dict):
    """Numbers by name, stored in the file at each change, so that they survive a kill."""

    def __init__(self, path=None):
        super().__init__()
        self.path = path

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self.save()

    def update(self, *pairs, **more):
        super().update(*pairs, **more)
        self.save()

    def save(self):
        """Replaces the file atomically."""
        if self.path:
            with open(f"{self.path}.new", "w", encoding="utf-8") as file:
                json.dump(self, file, default=str)
            os.replace(f"{self.path}.new", self.path)


def tell_where_it_ends():
    """Makes SIGTERM and crashes print the stacks of all threads to stderr."""
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)


def main(body):
    """Runs `body(sim, facts)`, which returns its verdict and stores its numbers in `facts`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", help="file for the numbers (default: stdout, before the verdict)")
    parser.add_argument("--sim", action="store_true", help="run on the simulated driver, with fewer repetitions")
    arguments = parser.parse_args()
    tell_where_it_ends()
    facts, status = Facts(arguments.json), 0
    try:
        verdict = body(arguments.sim, facts)
    except Skip as reason:
        verdict, status = str(reason), 77
    except Exception as error:  # The exception becomes the verdict.
        traceback.print_exc()
        verdict, status = sentence(error), 1
    facts.save()
    if not arguments.json:
        print(json.dumps(facts, indent=1, default=str))
    print(" ".join(verdict.split()), flush=True)
    sys.exit(status)
