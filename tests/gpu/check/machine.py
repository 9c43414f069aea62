"""Describes this machine."""
import datetime
import glob
import json
import os
import platform
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
# Inode number of the kernel's first pid namespace.
FIRST_PID_NAMESPACE = 0xEFFFFFFC
# Time limit of a command in seconds.
PATIENCE = 15


def first(*command):
    """Returns the stdout of a command, or "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def kernel_module(path, pattern):
    """Returns what the kernel module reports in /proc, for machines without a working nvidia-smi."""
    for name in glob.glob(path):
        with open(name, encoding="utf-8", errors="replace") as file:
            if found := re.search(pattern, file.read()):
                return found[1].strip()
    return ""


def in_first_pid_namespace():
    """Returns whether pids here are those of the first pid namespace, which NVML uses."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_PID_NAMESPACE
    except OSError:
        return False


def gpu():
    """Returns name, driver, memory and CUDA version, as far as they are known."""
    rows = first("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()
    fields = rows[0].split(", ") if rows and rows[0].count(", ") == 2 else ["", "", ""]
    cuda = re.search(r"CUDA (?:\w+ )?Version:\s*([\d.]+)", first("nvidia-smi"))
    return {
        "gpu": fields[0] or kernel_module("/proc/driver/nvidia/gpus/*/information", r"Model:\s*(.+)") or "unknown",
        "driver": fields[1] or kernel_module("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.\d+[.\d]*)\s"),
        "memory": fields[2], "cuda": cuda[1] if cuda else "", "gpus": len(rows),
    }


def describe(path, sim, commit=None):
    """Writes the description as JSON to `path`, and returns it as one line."""
    machine = {
        "simulated": sim,
        **({"gpu": "simulated", "driver": "", "memory": "", "cuda": "", "gpus": 1} if sim else gpu()),
        "kernel": platform.release(), "python": platform.python_version(), "cpus": len(os.sched_getaffinity(0)),
        "uid": os.geteuid(), "first_pid_namespace": in_first_pid_namespace(), "dev_fuse": os.path.exists("/dev/fuse"),
        "commit": commit or first("git", "-C", HERE, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }
    write(path, machine)
    return " | ".join(f"{key} {value}" for key, value in machine.items())


def add(path, **facts):
    """Adds facts to the description."""
    with open(path, encoding="utf-8") as file:
        write(path, {**json.load(file), **facts})


def write(path, machine):
    """Writes the description as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(machine, file, indent=1)
