"""What a part of the check has in common with the others: its arguments, its verdict, its programs.

A part is `NAME.py --json FILE [--sim]`. It prints one line, and exits with 0, with 77 if it cannot run here, or
with another status if something is wrong."""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback

import control

HERE = os.path.dirname(os.path.abspath(__file__))


class Skip(Exception):
    """This machine lacks what the part needs."""


def main(body):
    """Runs `body(sim, facts)`, which returns its verdict and leaves its numbers in `facts`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", required=True)
    parser.add_argument("--sim", action="store_true")
    arguments = parser.parse_args()
    facts, status = {}, 0
    try:
        verdict = body(arguments.sim, facts)
    except Skip as reason:
        verdict, status = str(reason), 77
    except Exception as error:  # whatever broke is this part's verdict
        traceback.print_exc()
        verdict, status = f"{type(error).__name__}: {error}".replace("\n", " ")[:400], 1
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    print(verdict, flush=True)
    sys.exit(status)


def require(condition, what):
    """Fails the part unless the condition holds."""
    if not condition:
        raise AssertionError(what)


def need(module, sim=False):
    """Skips unless a Python module is there that works on this driver."""
    if sim:
        raise Skip("needs NVIDIA's runtime library")
    if importlib.util.find_spec(module) is None:
        raise Skip(f"no {module} here")


class Program:
    """A program on a lead: lines in, lines out; governed unless `bare`. Ends with the `with` block."""

    def __init__(self, command, bare=False, env=None):
        self.errors = tempfile.TemporaryFile("w+")
        prefix = [] if bare else [control.GCGROUPFS, "run", "--"]
        self.process = subprocess.Popen(
            prefix + command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            bufsize=1, env={**os.environ, **(env or {})})
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def line(self):
        """The next line that it prints."""
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise AssertionError(f"it ended: {self.errors.read()[-1500:]}")
        return line.strip()

    def until(self, word):
        """The next line that begins with a word."""
        while True:
            line = self.line()
            if line.startswith(word):
                return line

    def tell(self, line):
        """Sends a line."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line, answer):
        """Sends a line; the answer's words after the first, which is `answer` or `error`."""
        self.tell(line)
        while True:
            words = self.line().split()
            if words and words[0] in (answer, "error"):
                require(words[0] == answer, f"{line}: {' '.join(words)}")
                return words[1:]


def load(*arguments, bare=False):
    """gcgroup-load."""
    return Program([control.LOAD, *map(str, arguments)], bare)


def job(kind, bare=False, env=None):
    """The framework job of that kind, ready."""
    program = Program([sys.executable, os.path.join(HERE, "framework.py"), kind], bare, env)
    program.until("ready")
    return program


def report(program):
    """The JSON line that ends a gcgroup-load."""
    return json.loads(program.until("{"))


def nvml_bytes(pid):
    """What NVML says a process has on the device, or None if it does not say."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=15, check=False)
    except OSError:
        return None
    rows = (line.split(",") for line in done.stdout.splitlines())
    found = [row[1].strip() for row in rows if len(row) == 2 and row[0].strip() == str(pid)]
    return int(found[0]) << 20 if found and found[0].isdigit() else None
