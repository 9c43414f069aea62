"""Checks that launches of C programs are counted for each way to look up driver functions."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import shutil
import subprocess

import control
from part import HERE, Program, Skip, main, require


def body(sim, facts):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Skip("no C compiler here")
    program = f"{control.WORK}/ways"
    built = subprocess.run([compiler, "-o", program, f"{HERE}/../../programs/ways.c", "-ldl", "-lpthread"],
                           capture_output=True, text=True, timeout=30, check=False)
    if built.returncode:
        raise Skip(f"the C compiler here does not compile: {built.stderr[-300:]}")
    for way in ("dlsym", "proc1", "proc2", "ptsz", "ex"):
        with Program([program, way, "7"]) as governed:
            governed.until("launched 7")
            facts[way] = int(control.flat(governed.pid, "compute.stat")["nr_launches"])
        require(facts[way] == 7, f"{way}: 7 launches, {facts[way]} counted")
    return "every way is counted"


main(body)
