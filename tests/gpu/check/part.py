"""Provides what all parts of the check use: governed and ungoverned programs, and reasons to skip."""
import importlib.util
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../shared"))

import control
from answer import Skip, main, require  # Exported to the parts.
from program import Program as Lead

# Written by the part of that name: why a module does not work, by module.
FRAMEWORKS = f"{control.WORK}/frameworks.json"
# Modules that call the driver directly, without the runtime library.
DRIVER_ALONE = {"numba"}
# Time limit for a framework's start in seconds.
STARTS_WITHIN = 120


def need(*modules, sim=False):
    """Skips unless the Python modules are installed and work with this driver without the hook."""
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
    """Runs a program, governed unless `bare`, with options of `gcgroupfs run`."""

    def __init__(self, command, bare=False, env=None, options=()):
        super().__init__(command if bare else [control.GCGROUPFS, "run", *options, "--", *command], env)


def load(*arguments, bare=False, env=None, **run_options):
    """Runs gcgroup-load, with further variables `env`. `run_options` are options of `gcgroupfs run`: None omits the option, True gives it no
    value."""
    options = [word for name, value in run_options.items() if value is not None
               for word in (f"--{name}", str(value))[:1 if value is True else 2]]
    return Program([control.LOAD, *map(str, arguments)], bare, env, options)


def work():
    """Returns the arguments for kernels with a fixed amount of work. Measures the rate here, so no other load
    may run."""
    with load("throughput", "--kernel", "work", "--duration", 0) as program:
        rate = program.until("work ").split()[1]
    return ["--kernel", "work", "--rate", max(1, round(float(rate)))]


def job(kind, bare=False, env=None):
    """Runs the framework job of that kind; it prints `ready` when it can execute commands."""
    return Program([sys.executable, os.path.join(HERE, "framework.py"), kind], bare, env)


def report(program):
    """Returns the JSON line that gcgroup-load prints at its end."""
    return json.loads(program.until("{"))


def has_overhead(pid, seconds=3):
    """Waits until the memory of the process's context is measured. Returns whether it was within `seconds`."""
    try:
        control.until("the context is measured", lambda: int(control.flat(pid, "memory.stat")["context"]) > 0, seconds)
    except AssertionError:
        return False
    return True
