#!/usr/bin/env python3
"""Keeps the results of a real run: gpu-results.py OUTDIR [COMMIT], after scripts/gpu-check.sh OUTDIR.

Writes tests/gpu/results/<gpu>-<driver>-<date>.json and makes tests/gpu/RESULTS.md anew. Refuses simulated runs."""
import json
import pathlib
import re
import sys

if not 2 <= len(sys.argv) <= 3:
    sys.exit("usage: scripts/gpu-results.py OUTDIR [COMMIT]")
out, gpu = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).resolve().parent.parent / "tests/gpu"
machine = json.loads((out / "machine.json").read_text())
if machine["simulated"] or not machine["driver"]:
    sys.exit("gpu-results.py: not a run on a real GPU")
machine["commit"] = sys.argv[2] if len(sys.argv) > 2 else machine["commit"]
if not machine["commit"]:
    sys.exit("gpu-results.py: name the commit that ran")
name = re.sub(r"[^a-z0-9.]+", "-", f"{machine['gpu']}-{machine['driver']}-{machine['date']}".lower())
(gpu / "results").mkdir(exist_ok=True)
run = {"machine": machine, "parts": json.loads((out / "results.json").read_text())}
(gpu / "results" / f"{name}.json").write_text(json.dumps(run, indent=1) + "\n")

lines = ["# Results on real GPUs", "", "Made by `scripts/gpu-results.py` from `tests/gpu/results`.", ""]
for path in sorted((gpu / "results").glob("*.json")):
    run = json.loads(path.read_text())
    m = run["machine"]
    lines += [f"## {m['gpu']}, driver {m['driver']}, {m['date']}", "",
              f"CUDA {m['cuda']}, kernel {m['kernel']}, {m['control']}, commit {m['commit']}.", "",
              "| part | | |", "| --- | --- | --- |"]
    lines += [f"| {part} | {entry['state']} | {entry['reason'].replace('|', '/')} |"
              for part, entry in run["parts"].items()] + [""]
(gpu / "RESULTS.md").write_text("\n".join(lines))
