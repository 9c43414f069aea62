#!/usr/bin/env python3
"""Keeps the results of real runs: gpu-results.py OUTDIR... [--commit COMMIT] [--into DIR], after scripts/gpu-check.sh OUTDIR.

Several are one run in pieces (--parts), of the same commit on the same machine; what a later one found replaces what
an earlier one did. Writes DIR/results/<gpu>-<driver>-<date>.json and makes DIR/RESULTS.md anew from all of them; DIR
is tests/gpu unless another is named, and there no simulated run is kept."""
import argparse
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent / "tests/gpu"


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
    yield f"## {m['gpu']}, driver {m['driver'] or 'none'}, {m['date']}"
    yield ""
    yield (f"CUDA {m['cuda'] or 'unknown'}, kernel {m['kernel']}, {m['control']}, commit {m['commit']}; "
           f"all numbers in [{path.name}](results/{path.name}).")
    for title, probe in (("does it work", False), ("what the GPU does", True)):
        rows = [(name, entry) for name, entry in run["parts"].items() if entry.get("probe", False) == probe]
        if rows:
            yield from ("", f"| {title} | | |", "| --- | --- | --- |")
        for name, entry in rows:
            state = {"PASS": "answered", "SKIP": "not possible"}.get(entry["state"], entry["state"]) if probe \
                else entry["state"]
            yield f"| {name} | {state} | {entry['reason'].replace('|', '/')} |"
    yield ""


def read(directory):
    """What a run left: the machine, and the parts."""
    try:
        return [json.loads((directory / name).read_text(encoding="utf-8")) for name in ("machine.json", "results.json")]
    except (OSError, ValueError) as error:
        fail(f"{directory} has no results: {error}")


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
    parser.add_argument("outdirs", type=pathlib.Path, metavar="OUTDIR", nargs="+")
    parser.add_argument("--commit", help="what ran, where the check could not tell")
    parser.add_argument("--into", type=pathlib.Path, default=HERE, metavar="DIR")
    arguments = parser.parse_args()
    runs = [read(directory) for directory in arguments.outdirs]
    into = arguments.into.resolve()
    if into == HERE and not all(real(*run) for run in runs):
        fail("not a run on a real GPU")
    machine, parts = joined(runs)
    machine["commit"] = arguments.commit or machine["commit"]
    if not machine["commit"]:
        fail("name the commit that ran, with --commit")
    name = re.sub(r"[^a-z0-9.]+", "-", f"{machine['gpu']}-{machine['driver']}-{machine['date']}".lower())
    (into / "results").mkdir(parents=True, exist_ok=True)
    (into / "results" / f"{name}.json").write_text(line_each({"machine": machine, "parts": parts}), encoding="utf-8")
    lines = ["# Results on real GPUs", "", "Made by `scripts/gpu-results.py` from `results`.", ""]
    for path in sorted((into / "results").glob("*.json")):
        lines += tables(path)
    (into / "RESULTS.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
