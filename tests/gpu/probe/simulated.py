"""Runs the simplest governed programs on the simulated driver here: where these fail too, the machine is the cause
and not the driver"""
import json
import os
import subprocess
import tempfile

import lib  # Makes the shared modules importable.
from answer import Skip, main

PARTS = ("interception_ctypes", "load_governed")
CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../scripts/gpu-check.sh")
SECONDS = 25


def body(sim, facts):
    if not os.path.exists(f"{os.environ['DIST']}/simgpu"):
        raise Skip("no simulated driver in the built tree")
    # The variables of the check that runs this part.
    own = {name: text for name, text in os.environ.items() if not name.startswith(("GCGROUP", "GPU_CHECK"))}
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [CHECK, "--sim", "--parts", ",".join(PARTS), "--seconds", str(SECONDS), out], env=own,
            capture_output=True, text=True, errors="replace", check=False)
        try:
            with open(f"{out}/results.json", encoding="utf-8") as file:
                entries = json.load(file)
        except (OSError, ValueError) as error:
            raise AssertionError(f"no results: {(done.stdout + done.stderr)[-400:]}") from error
    facts["parts"] = {name: [entry["state"], entry["reason"], entry["seconds"]] for name, entry in entries.items()}
    failed = {name: entry["reason"] for name, entry in entries.items() if entry["state"] == "FAIL"}
    if failed:
        raise AssertionError(f"fails on the simulated driver, too: {failed}")
    return f"the simplest programs are governed here on the simulated driver ({done.stdout.strip().splitlines()[-1]})"


main(body)
