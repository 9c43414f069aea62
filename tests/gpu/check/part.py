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

# What the part of that name found that does not work, by module.
FRAMEWORKS = f"{control.WORK}/frameworks.json"
# Modules that call the driver themselves, without the runtime library.
DRIVER_ALONE = {"numba"}
# Seconds until a framework has begun.
STARTS_WITHIN = 60


def need(*modules, sim=False):
    """Skips unless Python modules are there that work on this driver, hook or none."""
    if sim and not DRIVER_ALONE.issuperset(modules):
        raise Skip("needs NVIDIA's runtime library")
    try:
        with open(FRAMEWORKS, encoding="utf-8") as file:
            broken = json.load(file)
    except OSError:
        broken = {}
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Skip(f"no {module} here")
        if module in broken:
            raise Skip(broken[module])


class Program(Lead):
    """A program on a lead; governed unless `bare`, with options of `gcgroupfs run`."""

    def __init__(self, command, bare=False, env=None, options=()):
        super().__init__(command if bare else [control.GCGROUPFS, "run", *options, "--", *command], env)


def load(*arguments, bare=False, **wishes):
    """gcgroup-load; wishes as `gcgroupfs run` has them, of which None is none and True has no value."""
    options = [word for name, value in wishes.items() if value is not None
               for word in (f"--{name}", str(value))[:1 if value is True else 2]]
    return Program([control.LOAD, *map(str, arguments)], bare, options=options)


def work():
    """What gives gcgroup-load kernels of so much work, whose rate is measured here and now: by nobody beside others."""
    with load("throughput", "--kernel", "work", "--duration", 0) as program:
        rate = program.until("work ").split()[1]
    return ["--kernel", "work", "--rate", max(1, round(float(rate)))]


def job(kind, bare=False, env=None):
    """The framework job of that kind; it says `ready` when it is."""
    return Program([sys.executable, os.path.join(HERE, "framework.py"), kind], bare, env)


def report(program):
    """The JSON line that ends a gcgroup-load."""
    return json.loads(program.until("{"))


def has_overhead(pid, seconds=3):
    """Waits until what a process's context takes has been measured; whether it has."""
    try:
        control.until("its context is measured", lambda: int(control.flat(pid, "memory.stat")["context"]) > 0, seconds)
    except AssertionError:
        return False
    return True
