"""Says what machine this is: `machine.py FILE [--sim]`, a line on stdout and JSON in the file."""
import datetime
import glob
import json
import os
import platform
import re
import subprocess
import sys


def first(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def kernel_module(path, pattern):
    """What the kernel module says of itself, for where there is no nvidia-smi."""
    for name in glob.glob(path):
        with open(name, encoding="utf-8", errors="replace") as file:
            if found := re.search(pattern, file.read()):
                return found[1].strip()
    return ""


sim = "--sim" in sys.argv
here = os.path.dirname(os.path.abspath(__file__))
fields = [] if sim else first("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                              "--format=csv,noheader").split("\n")[0].split(", ")
banner = "" if sim else first("nvidia-smi")
machine = {
    "simulated": sim,
    "gpu": "simulated" if sim else fields[0] or kernel_module(
        "/proc/driver/nvidia/gpus/*/information", r"Model:\s*(.+)") or "unknown",
    "driver": "" if sim else fields[1] if len(fields) > 1 else kernel_module(
        "/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.\d+[.\d]*)\s"),
    "memory": fields[2] if len(fields) > 2 else "",
    "cuda": cuda[1] if (cuda := re.search(r"CUDA (?:\w+ )?Version:\s*([\d.]+)", banner)) else "",
    "kernel": platform.release(),
    "python": platform.python_version(),
    "dev_fuse": os.path.exists("/dev/fuse"),
    "control": "FUSE mount" if os.environ.get("GCGROUP") else "socket, gcgroupfs get and set",
    "commit": first("git", "-C", here, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"),
    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(machine, file, indent=1)
print(" | ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
