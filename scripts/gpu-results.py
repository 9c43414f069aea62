#!/usr/bin/env python3
"""Keeps the results of a real run: gpu-results.py OUTDIR [--commit COMMIT] [--into DIR], after scripts/gpu-check.sh OUTDIR.

Writes DIR/results/<gpu>-<driver>-<date>.json and makes DIR/RESULTS.md anew from all of them; DIR is tests/gpu
unless another is named, and there no simulated run is kept."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("outdir", type=pathlib.Path, metavar="OUTDIR")
    parser.add_argument("--commit", help="what ran, where the check could not tell")
    parser.add_argument("--into", type=pathlib.Path, default=HERE, metavar="DIR")
    arguments = parser.parse_args()
    machine = json.loads((arguments.outdir / "machine.json").read_text(encoding="utf-8"))
    parts = json.loads((arguments.outdir / "results.json").read_text(encoding="utf-8"))
    into = arguments.into.resolve()
    if (machine["simulated"] or not machine["driver"]) and into == HERE:
        fail("not a run on a real GPU")
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
