"""What a part of the check has in common with the others: its programs, governed or not, and what it may skip for."""
import importlib.util
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../shared"))

import control
from answer import Skip, main, require  # the parts take these from here
from program import Program as Lead


def need(*modules, sim=False):
    """Skips unless Python modules are there that work on this driver."""
    if sim:
        raise Skip("needs NVIDIA's runtime library")
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Skip(f"no {module} here")


class Program(Lead):
    """A program on a lead; governed unless `bare`, with options of `gcgroupfs run`."""

    def __init__(self, command, bare=False, env=None, options=()):
        super().__init__(command if bare else [control.GCGROUPFS, "run", *options, "--", *command], env)


def load(*arguments, bare=False, **wishes):
    """gcgroup-load; wishes as `gcgroupfs run` has them, of which None is none and True has no value."""
    options = [word for name, value in wishes.items() if value is not None
               for word in (f"--{name}", str(value))[:1 if value is True else 2]]
    return Program([control.LOAD, *map(str, arguments)], bare, options=options)


def job(kind, bare=False, env=None):
    """The framework job of that kind; it says `ready` when it is."""
    return Program([sys.executable, os.path.join(HERE, "framework.py"), kind], bare, env)


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
