"""Checks a job that calls the driver through ctypes."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from governing import check
from part import main

main(lambda sim, facts: check("driver", facts))
