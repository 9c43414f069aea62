#!/usr/bin/env python3
"""Keeps the results of runs on real GPUs: gpu-results.py OUTDIR|PLAN.json... [--commit COMMIT] [--root DIR].

Several are one run in pieces, of the same commit on the same machine; what a later one found replaces what an earlier
one did. Writes tests/gpu/results/<gpu>-<driver>-<date>.json, and from all of these files the tables at the end of
tests/bench/README.md and the status line of README.md. Prints parts whose usual seconds differ by half. A simulated run
is refused, except with --root, which names another tree with these files."""
import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/gpu/check"))

import results
import table

BEGIN, END = "<!-- scripts/gpu-results.py -->", "<!-- scripts/gpu-results.py: end -->"
STATUS = re.compile(r"^(Not yet measured|Measured) on a real GPU.*$", re.M)


def fail(why):
    sys.exit(f"gpu-results.py: {why}")


def line_each(run):
    """JSON with a line for each fact: readable, and short enough to be kept."""
    parts = []
    for name, entry in run["parts"].items():
        rows = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in entry["facts"].items()]
        rest = {key: value for key, value in entry.items() if key != "facts"}
        facts = "{\n" + ",\n".join(rows) + "\n  }" if rows else "{}"
        parts.append(f"  {json.dumps(name)}: {json.dumps(rest)[:-1]}, \"facts\": {facts}}}")
    return f'{{\n "machine": {json.dumps(run["machine"])},\n "parts": {{\n' + ",\n".join(parts) + "\n }\n}\n"


def tables(path):
    """A run as Markdown."""
    run = json.loads(path.read_text(encoding="utf-8"))
    m = run["machine"]
    yield f"### {m['gpu']}, driver {m['driver'] or 'none'}, {m['date']}"
    yield ""
    yield (f"CUDA {m['cuda'] or 'unknown'}, kernel {m['kernel']}, {m['control']}, commit {m['commit']}; "
           f"all numbers in [{path.name}](../gpu/results/{path.name}).")
    for title, probe in (("does it work", False), ("what the GPU does", True)):
        rows = [(name, entry) for name, entry in run["parts"].items() if entry.get("probe", False) == probe]
        if rows:
            yield from ("", f"| {title} | | |", "| --- | --- | --- |")
        for name, entry in rows:
            state = {"PASS": "answered", "SKIP": "not possible"}.get(entry["state"], entry["state"]) if probe \
                else entry["state"]
            yield f"| {name} | {state} | {entry['reason'].replace('|', '/')} |"
    yield ""


def read(path):
    """What a run left: the machine, and the parts."""
    try:
        run = results.stored(path)
    except (OSError, ValueError) as error:
        fail(f"{path} has no results: {error}")
    if not run["machine"]:
        fail(f"{path} has no description of the machine")
    return run["machine"], run["parts"]


def replaced(path, change):
    """Replaces a file's text by what `change` makes of it."""
    text = path.read_text(encoding="utf-8")
    path.write_text(change(text), encoding="utf-8")


def status(run):
    """The status line of README.md for a run."""
    m, states = run["machine"], [entry["state"] for entry in run["parts"].values()]
    return (f"Measured on a real GPU: {m['gpu']}, driver {m['driver'] or 'none'}, {m['date']}: of {len(states)} parts "
            f"{states.count('PASS')} pass, {states.count('FAIL')} fail ([results](tests/bench/README.md#real-gpus)).")


def unusual(parts):
    """Lines for parts that took less than half or more than one and a half of their usual seconds."""
    for part in table.PARTS:
        entry = parts.get(part.name, {"state": "SKIP"})
        if entry["state"] != "SKIP" and not part.usual / 2 <= entry["seconds"] <= part.usual * 1.5:
            yield f"{part.name}: {entry['seconds']} s, usual {part.usual} s (tests/gpu/check/table.py)"


def real(machine, parts):
    """Whether it was a real driver, by what was asked for, by nvidia-smi, and by what the programs themselves found."""
    found = parts.get("driver", {}).get("facts", {}).get("device", "Simulated")
    return not machine["simulated"] and machine["driver"] and not found.startswith("Simulated")


def joined(runs):
    """The machine, and the parts of all runs."""
    machine, parts = runs[0]
    for other, more in runs[1:]:
        differ = [key for key in ("simulated", "gpu", "driver", "kernel", "commit") if machine[key] != other[key]]
        if differ:
            fail(f"runs of different machines or commits: {', '.join(differ)}")
        parts = {**parts, **{name: entry for name, entry in more.items() if name not in parts or entry["state"] != "SKIP"}}
    return machine, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", metavar="OUTDIR", nargs="+")
    parser.add_argument("--commit", help="what ran, where the check could not tell")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, metavar="DIR")
    arguments = parser.parse_args()
    runs = [read(path) for path in arguments.runs]
    root = arguments.root.resolve()
    if root == ROOT and not all(real(*run) for run in runs):
        fail("not a run on a real GPU")
    machine, parts = joined(runs)
    machine["commit"] = arguments.commit or machine["commit"]
    if not machine["commit"]:
        fail("name the commit that ran, with --commit")
    name = re.sub(r"[^a-z0-9.]+", "-", f"{machine['gpu']}-{machine['driver']}-{machine['date']}".lower())
    kept = root / "tests/gpu/results"
    kept.mkdir(parents=True, exist_ok=True)
    run = {"machine": machine, "parts": parts}
    (kept / f"{name}.json").write_text(line_each(run), encoding="utf-8")
    lines = "\n".join(line for path in sorted(kept.glob("*.json")) for line in tables(path))
    between = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.S)
    replaced(root / "tests/bench/README.md", lambda text: between.sub(lambda _: f"{BEGIN}\n{lines}\n{END}", text))
    replaced(root / "README.md", lambda text: STATUS.sub(lambda _: status(run), text, count=1))
    print("\n".join(unusual(parts)))


if __name__ == "__main__":
    main()
