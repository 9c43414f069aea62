"""Checks a Triton job."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from governing import check
from part import main, need


def body(sim, facts):
    need("torch", "triton", sim=sim)
    return check("triton", facts)


main(body)
