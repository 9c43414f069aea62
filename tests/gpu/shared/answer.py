"""How a program of the check answers: `NAME.py --json FILE [--sim]`. It prints one line, its verdict, leaves its
numbers in the file as they come, and exits with 0, with 77 if it cannot run here, or with another status if something
is wrong. Asked to end (SIGTERM) it says on stderr where it was."""
import argparse
import faulthandler
import json
import os
import signal
import sys
import traceback


class Skip(Exception):
    """This machine lacks what is needed; the text says what."""


def require(condition, what):
    """Fails unless the condition holds."""
    if not condition:
        raise AssertionError(what)


def sentence(error):
    """An exception as one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]


class Facts(dict):
    """Numbers by name, on file as soon as they are set: what was found before an end by force is not lost."""

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
        """Replaces the file, so that it is whole at any time."""
        if self.path:
            with open(f"{self.path}.new", "w", encoding="utf-8") as file:
                json.dump(self, file, default=str)
            os.replace(f"{self.path}.new", self.path)


def tell_where_it_ends():
    """Has a SIGTERM, and a crash, leave on stderr what every thread was at."""
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)


def main(body):
    """Runs `body(sim, facts)`, which returns its verdict and leaves its numbers in `facts`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", help="where the numbers go (before the verdict on stdout)")
    parser.add_argument("--sim", action="store_true", help="on the simulated driver: fewer repetitions")
    arguments = parser.parse_args()
    tell_where_it_ends()
    facts, status = Facts(arguments.json), 0
    try:
        verdict = body(arguments.sim, facts)
    except Skip as reason:
        verdict, status = str(reason), 77
    except Exception as error:  # whatever broke is the verdict
        traceback.print_exc()
        verdict, status = sentence(error), 1
    facts.save()
    if not arguments.json:
        print(json.dumps(facts, indent=1, default=str))
    print(" ".join(verdict.split()), flush=True)
    sys.exit(status)
