"""Describes what the kernel and the container runtime permit here. Each function returns facts, and never
raises: a file that cannot be read is absent from the facts."""
import contextlib
import glob
import os
import resource
import subprocess

LIMITS = ("NOFILE", "NPROC", "MEMLOCK", "STACK", "AS", "CORE", "SIGPENDING")
CAPABILITIES = {1: "DAC_OVERRIDE", 5: "KILL", 12: "NET_ADMIN", 14: "IPC_LOCK", 19: "SYS_PTRACE", 21: "SYS_ADMIN",
                23: "SYS_NICE", 24: "SYS_RESOURCE"}
# Seconds for a command.
PATIENCE = 10


def text(path):
    """Returns the content of a file without surrounding whitespace, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def said(*command):
    """Returns the output of a command, or None if it cannot run or fails."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
        if done.returncode == 0:
            return done.stdout
    return None


def sandbox():
    """Returns the traces of container runtimes and sandboxes."""
    version = text("/proc/version") or ""
    return {
        "gvisor": "gVisor" in version or (said("dmesg") or "").count("Starting gVisor") > 0,
        "docker": os.path.exists("/.dockerenv"), "podman": os.path.exists("/run/.containerenv"),
        "kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
        "hypervisor": "hypervisor" in (text("/proc/cpuinfo") or ""),
        "cgroup": text("/proc/self/cgroup"), "version": version,
    }


def permissions():
    """Returns capabilities, the seccomp mode and no_new_privs of this process."""
    status = dict(line.split(":\t", 1) for line in (text("/proc/self/status") or "").splitlines() if ":\t" in line)
    effective = int(status.get("CapEff", "0"), 16)
    return {"capabilities": f"{effective:x}",
            "has": [name for bit, name in CAPABILITIES.items() if effective >> bit & 1],
            "seccomp": status.get("Seccomp"), "seccomp_filters": status.get("Seccomp_filters"),
            "no_new_privs": status.get("NoNewPrivs"), "uid": os.geteuid(),
            "ptrace_scope": text("/proc/sys/kernel/yama/ptrace_scope")}


def numa():
    """Returns CPUs and memory of each NUMA node. Host memory for a GPU comes from a node; a node may have no
    CPUs or no memory."""
    nodes = {}
    for path in sorted(glob.glob("/sys/devices/system/node/node[0-9]*")):
        sizes = dict(line.split()[2:4] for line in (text(f"{path}/meminfo") or "").splitlines() if len(line.split()) > 3)
        nodes[os.path.basename(path)] = {"cpus": text(f"{path}/cpulist"), "total_kib": sizes.get("MemTotal:"),
                                         "free_kib": sizes.get("MemFree:")}
    return nodes


def memory():
    """Returns the machine's memory, and the limits of this process's memory cgroup."""
    machine = [line for line in (text("/proc/meminfo") or "").splitlines()
               if line.startswith(("MemTotal", "MemAvailable", "SwapTotal", "CommitLimit", "HugePages_Total"))]
    below = (text("/proc/self/cgroup") or "").rpartition("::")[2].strip("/")
    cgroup = {}
    for base in (f"/sys/fs/cgroup/{below}", "/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        for name in ("memory.max", "memory.high", "memory.current", "memory.limit_in_bytes", "pids.max"):
            if (value := text(f"{base}/{name}")) is not None:
                cgroup.setdefault(name, value)
    return {"machine": machine, "cgroup": cgroup, "overcommit": text("/proc/sys/vm/overcommit_memory")}


def limits():
    """Returns the soft and hard resource limits; -1 is unlimited."""
    return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in LIMITS}


def driver():
    """Returns what the kernel module and the device files say."""
    return {"version": text("/proc/driver/nvidia/version"), "parameters": text("/proc/driver/nvidia/params"),
            "devices": {path: oct(os.stat(path).st_mode & 0o777) for path in sorted(glob.glob("/dev/nvidia*"))},
            "persistence": said("nvidia-smi", "--query-gpu=persistence_mode,compute_mode,mig.mode.current",
                                "--format=csv,noheader")}


def libraries(directory):
    """Returns what the loader finds for each of our libraries, and the version of the C library."""
    found = {name: said("ldd", f"{directory}/{name}") for name in ("libgcgroup.so", "libgcgroup_hook.so")}
    return {"glibc": os.confstr("CS_GNU_LIBC_VERSION"), **found}
