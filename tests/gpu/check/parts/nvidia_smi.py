"""Checks nvidia-smi under the hook."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import shutil
import subprocess

import control
from part import Skip, main, require

QUERY = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]


def said(command, *options):
    """Returns the command's output, governed with options of `gcgroupfs run`, or ungoverned without any."""
    governed = [control.GCGROUPFS, "run", *filter(None, options), "--"] if options else []
    done = subprocess.run(governed + command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    if done.returncode and not options:
        raise Skip(f"nvidia-smi does not work here: {(done.stdout + done.stderr).strip()[-300:]}")
    require(done.returncode == 0, f"{' '.join(command)}: status {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return done.stdout


def body(sim, facts):
    if sim or not shutil.which("nvidia-smi"):
        raise Skip("no nvidia-smi for this driver")
    bare, hooked = said(["nvidia-smi", "-L"]), said(["nvidia-smi", "-L"], "")
    require(hooked == bare, f"under the hook nvidia-smi lists {hooked!r}")
    said(["nvidia-smi"], "")
    card, limited = said(QUERY).split(), said(QUERY, "--memory-limit", "8G").split()
    facts.update(card_mib=card, limited_mib=limited)
    for whole, part in zip(card, limited):
        if whole.isdigit():
            require(part == str(min(int(whole), 8192)), f"limited to 8192 MiB, nvidia-smi shows {part} of {whole}")
    return "the same output; with a limit, the limit"


main(body)
