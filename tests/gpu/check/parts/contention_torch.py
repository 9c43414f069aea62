"""Measures tokens of a small PyTorch transformer beside the training of a small network."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
from arms import REPETITIONS, Arms
from governing import Counter
from part import STARTS_WITHIN, job, main, need


def body(sim, facts):
    need("torch", sim=sim)
    with job("decode") as tokens, job("train") as batch:
        for program in (tokens, batch):
            program.until("ready", STARTS_WITHIN)

        def bursts(priority):
            control.put(tokens.pid, "compute.priority", priority)
            yield
            for _ in range(REPETITIONS):
                yield [float(word) * 1e6 for word in tokens.ask("each 60", "each")]

        arms = Arms(facts, bursts)
        Counter(batch).go_on()
        arms.beside(batch.pid, 1)
    return arms.verdict()


main(body)
