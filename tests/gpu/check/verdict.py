"""Turns what a part left behind into its line and its entry: `verdict.py STEM RESULTS part|probe`, or `--all RESULTS`
to count them all and exit with 1 if one failed."""
import json
import os
import sys


def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


stem, results, *kind = sys.argv[1:]
every = json.loads(text(results) or "{}")
if stem == "--all":
    states = [entry["state"] for entry in every.values()]
    print(", ".join(f"{states.count(state)} {state}" for state in ("PASS", "FAIL", "SKIP")))
    sys.exit("FAIL" in states or "PASS" not in states)
status, seconds = map(int, text(stem + ".rc").split())
state = {0: "PASS", 77: "SKIP"}.get(status, "FAIL")
reason = (text(stem + ".out").strip().splitlines() or [f"status {status}, and not a word"])[-1]
if status in (124, 137):
    reason = f"ran past its limit of time, {seconds} s"
entry = {"state": state, "reason": reason, "seconds": seconds, "probe": kind == ["probe"]}
try:
    entry["facts"] = json.loads(text(stem + ".json") or "{}")
except ValueError:
    entry["facts"] = {}
if state == "FAIL":
    entry["stderr"] = text(stem + ".err")[-3000:]
name = os.path.basename(stem)
with open(results, "w", encoding="utf-8") as file:
    json.dump({**every, name: entry}, file, indent=1)
print(f"{state} {name}: {reason}", flush=True)
