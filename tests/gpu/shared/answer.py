"""How a program of the check answers: `NAME.py --json FILE [--sim]`. It prints one line, its verdict, leaves its
numbers in the file, and exits with 0, with 77 if it cannot run here, or with another status if something is wrong."""
import argparse
import json
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


def main(body):
    """Runs `body(sim, facts)`, which returns its verdict and leaves its numbers in `facts`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", help="where the numbers go (before the verdict on stdout)")
    parser.add_argument("--sim", action="store_true", help="on the simulated driver: fewer repetitions")
    arguments = parser.parse_args()
    facts, status = {}, 0
    try:
        verdict = body(arguments.sim, facts)
    except Skip as reason:
        verdict, status = str(reason), 77
    except Exception as error:  # whatever broke is the verdict
        traceback.print_exc()
        verdict, status = sentence(error), 1
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(facts, file)
    else:
        print(json.dumps(facts, indent=1))
    print(verdict, flush=True)
    sys.exit(status)
