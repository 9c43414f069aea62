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
    return "the same output"


main(body)
