"""Checks a CuPy job."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from governing import check
from part import main, need


def body(sim, facts):
    need("cupy", sim=sim)
    return check("cupy", facts)


main(body)
