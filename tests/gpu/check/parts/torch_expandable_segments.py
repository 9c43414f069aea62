"""Checks PyTorch's allocator with expandable_segments:True."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from governing import check
from part import main, need


def body(sim, facts):
    need("torch", sim=sim)
    return check("torch", facts, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"})


main(body)
