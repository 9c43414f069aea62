"""Checks two governed PyTorch jobs: freezing one does not affect the other."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
from governing import Counter
from part import STARTS_WITHIN, job, main, need


def body(sim, facts):
    need("torch", sim=sim)
    with job("torch") as one, job("torch") as other:
        for program in (one, other):
            program.until("ready", STARTS_WITHIN)
        steps = Counter(other)
        facts["freeze_seconds"] = control.freeze(one.pid)
        steps.go_on(20)
        control.thaw(one.pid)
        one.ask("hash", "hash")
    return "one job is frozen, the other continues"


main(body)
