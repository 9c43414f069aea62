"""nvidia-smi under the hook."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import shutil
import subprocess

import control
from part import Skip, main, require


def body(sim, facts):
    if sim or not shutil.which("nvidia-smi"):
        raise Skip("no nvidia-smi for this driver")
    command = ["nvidia-smi", "-L"]
    bare, hooked = (subprocess.run(prefix + command, capture_output=True, text=True, check=False)
                    for prefix in ([], [control.GCGROUPFS, "run", "--"]))
    require(hooked.returncode == 0 and hooked.stdout == bare.stdout, hooked.stdout + hooked.stderr)
    table = subprocess.run([control.GCGROUPFS, "run", "--", "nvidia-smi"], capture_output=True, check=False)
    require(table.returncode == 0, "the table fails")
    ask = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    card, limited = (subprocess.run(prefix + ask, capture_output=True, text=True, check=True).stdout.split()[0]
                     for prefix in ([], [control.GCGROUPFS, "run", "--memory-limit", "8G", "--"]))
    facts.update(card_mib=card, limited_mib=limited)
    if card.isdigit():
        require(int(limited) == min(int(card), 8192), f"limited to 8192 MiB, it sees {limited} of {card}")
    return "the same output; with a limit, the limit"


main(body)
