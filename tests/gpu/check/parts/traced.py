"""Runs the simplest governed program under strace where it is installed, with the hook's trace, and keeps both"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import shutil

import control
from part import HERE, main
import evidence

SECONDS = 15
JOB = [sys.executable, os.path.join(HERE, "framework.py"), "driver"]


def body(sim, facts):
    trace, calls = f"{control.WORK}/traced.trace", f"{control.WORK}/traced.strace"
    os.environ["GCGROUP_TRACE"] = trace
    strace = shutil.which("strace")
    traced = [strace, "-f", "-tt", "-s", "80", "-o", calls] if strace else []
    facts["output"] = evidence.command(*traced, control.GCGROUPFS, "run", "--", *JOB, seconds=SECONDS)
    facts["ungoverned"] = evidence.command(*JOB, seconds=SECONDS)
    facts["trace"] = evidence.text(trace, 4000).splitlines()
    facts["system_calls"] = evidence.text(calls, 6000).splitlines() if strace else "no strace here"
    evidence.write("strace.txt", evidence.text(calls, evidence.TRACE_TAIL))
    evidence.write("trace.txt", evidence.text(trace, evidence.TRACE_TAIL))
    evidence.write("doctor.txt", evidence.command(control.GCGROUPFS, "doctor"))
    last = facts["trace"][-1] if facts["trace"] else "nothing"
    return f"governed: {facts['output'][-300:]}; ungoverned: {facts['ungoverned'][-100:]}; the hook's last line: {last}"


main(body)
