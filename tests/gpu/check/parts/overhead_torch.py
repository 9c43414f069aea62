"""Measures the hook's overhead on PyTorch: medians of interleaved repetitions with and without the hook."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from statistics import median

from part import STARTS_WITHIN, job, main, need


def body(sim, facts):
    need("torch", sim=sim)
    words = []
    for kind, steps in (("graph", 300), ("train", 100), ("decode", 50)):
        with job(kind, bare=True) as bare, job(kind) as hooked:
            for program in (bare, hooked):
                program.until("ready", STARTS_WITHIN)
            took = {"bare": [], "hooked": []}
            for _ in range(7):
                for name, program in (("bare", bare), ("hooked", hooked)):
                    took[name].append(float(program.ask(f"time {steps}", "took")[0]) / steps)
        ratio = median(took["hooked"]) / median(took["bare"])
        facts[kind] = {"hooked_over_bare": ratio, "step_seconds": took}
        words.append(f"{kind} {ratio:.3f}")
    return "hooked over bare: " + ", ".join(words)


main(body)
