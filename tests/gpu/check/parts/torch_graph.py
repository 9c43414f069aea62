"""Checks a PyTorch job that replays a graph."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from governing import check
from part import main, need


def body(sim, facts):
    need("torch", sim=sim)
    return check("graph", facts)


main(body)
