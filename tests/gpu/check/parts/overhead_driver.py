"""Measures the hook's overhead on driver calls: gcgroup-load with and without the hook in turn."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from statistics import median

from part import load, main, report


def body(sim, facts):
    runs = {}
    for _ in range(5):
        for name in ("bare", "hooked"):
            options = ("--rounds", 5, "--calls", 50) if sim else ("--rounds", 20)
            with load("overhead", *options, bare=name == "bare") as program:
                for cost in report(program)["ns"]:
                    runs.setdefault(cost["call"], {}).setdefault(name, []).append(cost["median"])
    for call, ns in runs.items():
        facts[call] = {"ns": ns, "more_ns": median(ns["hooked"]) - median(ns["bare"]),
                       "hooked_over_bare": median(ns["hooked"]) / median(ns["bare"])}
    return "hooked over bare: " + ", ".join(f"{c} {f['hooked_over_bare']:.3f}" for c, f in facts.items())


main(body)
