"""Measures an interactive job beside a batch job: alone, with the driver's time slices, and governed with each
setting"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from beside import Pair, governed, verdict
from part import main


def body(sim, facts):
    with Pair(facts, "ungoverned", sim) as pair:
        pair.alone()
        pair.arm("time slices of the driver")
    with Pair(facts, "governed", sim, bare=False) as pair:
        governed(pair)
    return verdict(facts)


main(body)
