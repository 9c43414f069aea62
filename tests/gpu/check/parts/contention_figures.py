"""Measures bursts, shares, freezes, quotas and GPU time with gcgroup-contention"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import json
import subprocess

from part import HERE, main

# Arms, and how often and how long each is run.
RUNS = ((("bursts", "shares", "freeze", "quota"), "3", "0.2"), (("brief",), "1", "0.25"))


def figures(sim, arms, repetitions, scale):
    options = ["--repetitions", "1", "--scale", "0.05"] if sim else ["--gpu", "--repetitions", repetitions, "--scale", scale]
    own = {name: text for name, text in os.environ.items() if not name.startswith(("GCGROUP", "SIMGPU"))}
    done = subprocess.run(
        [f"{os.environ['DIST']}/bin/gcgroup-contention", "--dist", os.environ["DIST"], "--scripts",
         f"{HERE}/../../../scripts", *options, *arms], env=own, capture_output=True, text=True, errors="replace", check=False)
    print(done.stderr[-2000:], file=sys.stderr)
    try:
        return json.loads(done.stdout)["rows"]
    except (ValueError, KeyError):
        raise AssertionError(f"no figures: {(done.stdout + done.stderr).strip()[-300:]}") from None


def body(sim, facts):
    rows = [row for run in RUNS for row in figures(sim, *run)]
    facts["rows"] = {row["name"]: {key: row[key] for key in ("unit", "least", "median", "most", "budget", "kept")}
                     for row in rows}
    kept = [row for row in rows if row["kept"]]
    return f"{len(kept)} of {len(rows)} within budget: " + ", ".join(
        f"{row['name']} {row['median']:.4g} {row['unit']}" for row in rows)


main(body)
