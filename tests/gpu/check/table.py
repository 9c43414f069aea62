"""Lists the parts of the check in the order in which they run: facts about machine and driver, which do not
depend on the product; then the product, from simple to complex."""
import ast
import collections
import os

HERE = os.path.dirname(os.path.abspath(__file__))
# `usual`: seconds on a machine with a GPU; a part is left out if less time is left. `limit`: seconds at most,
# enough for a framework that is read from a slow disk for the first time.
Part = collections.namedtuple("Part", "name usual limit")

# The part that says whether the driver can be used; all others but the preflight need it.
DRIVER = Part("driver", 5, 90)
# Facts that need no gcgroupfs: DRIVER in `parts`, the others in `../probe`.
FACTS = [
    Part("preflight", 3, 45),
    Part("simulated", 10, 45),
    DRIVER,
    Part("lookups", 5, 45),
    Part("markers", 12, 60),
    Part("barriers", 10, 60),
    Part("contexts", 15, 60),
    Part("launches", 10, 60),
    Part("host_pieces", 20, 90),
    Part("vmm", 15, 60),
    Part("across", 4, 45),
    Part("remap", 25, 90),
    Part("sharing", 5, 45),
    Part("nvml", 15, 45),
    Part("granularity", 10, 60),
    Part("background", 10, 45),
    Part("checkpoint", 20, 75),
    Part("slicing", 15, 60),
]
# Changes a channel's time slice, so that it runs only where it is named.
BY_NAME = [Part("timeslice", 12, 45)]
# The simplest governed programs. If one of them fails, the parts after them are skipped.
SIMPLEST = [
    Part("interception_ctypes", 5, 45),
    Part("load_governed", 4, 45),
]
# Those with a framework learn from "frameworks" whether the framework works ungoverned.
PRODUCT = [
    *SIMPLEST,
    Part("ledger", 5, 45),
    Part("interception_c", 8, 45),
    Part("transcript", 25, 120),
    Part("groups", 5, 45),
    Part("kill_process", 5, 45),
    Part("kill_daemon", 5, 45),
    Part("nvidia_smi", 5, 60),
    Part("frameworks", 25, 190),
    Part("interception_torch", 12, 150),
    Part("interception_cupy", 10, 120),
    Part("interception_jax", 20, 150),
    Part("interception_triton", 15, 150),
    Part("interception_numba", 10, 90),
    Part("torch_graph", 12, 90),
    Part("torch_expandable_segments", 12, 90),
    Part("torch_malloc_async", 12, 90),
    Part("torch_streams", 12, 90),
    Part("torch_processes", 12, 90),
    Part("shared_by_processes", 30, 200),
    Part("swap", 25, 75),
    Part("suspend", 15, 75),
    Part("contention", 25, 75),
    Part("contention_figures", 80, 150),
    Part("beside", 60, 150),
    Part("beside_mps", 40, 120),
    Part("beside_peer", 25, 90),
    Part("launch_bound", 40, 100),
    Part("overhead_driver", 20, 75),
    Part("overhead_torch", 30, 100),
    Part("priority", 20, 60),
]
# What explains the failure of a simplest program.
TRACED = Part("traced", 20, 45)
PARTS = FACTS + BY_NAME + PRODUCT + [TRACED]
# Names for --parts that stand for several parts.
SETS = {"facts": FACTS, "product": PRODUCT}

# `seconds`: time limit, in which the usual seconds of all parts fit. `parts`: in the order in which they run,
# the most important first. `otherwise`: runs in place of the rest after a simplest program has failed.
Plan = collections.namedtuple("Plan", "seconds parts otherwise")
OTHERWISE = ("traced", "lookups", "nvml", "contexts", "markers", "barriers", "launches", "slicing", "host_pieces",
             "sharing", "background")
PLANS = {
    "first": Plan(285, (
        "preflight", "simulated", "driver", "interception_ctypes", "load_governed", "ledger", "interception_c",
        "nvidia_smi", "frameworks", "interception_torch", "interception_cupy", "transcript", "lookups", "nvml",
        "contexts", "markers", "launches", "slicing", "granularity", "overhead_driver", "swap", "priority"), OTHERWISE),
    "figures": Plan(440, (
        "driver", "frameworks", "beside", "beside_mps", "contention_figures", "overhead_driver", "launch_bound",
        "suspend", "swap", "beside_peer", "overhead_torch", "torch_malloc_async", "torch_expandable_segments"), ()),
    "again": Plan(240, ("driver", "transcript"), ()),
}


def named(name):
    """Returns the part of that name."""
    return next(part for part in PARTS if part.name == name)


def is_probe(part):
    """Returns whether the part examines the machine and needs no gcgroupfs."""
    return part in FACTS + BY_NAME and part is not DRIVER


def path(part):
    """Returns the path of the part's program."""
    return os.path.join(HERE, "../probe" if is_probe(part) else "parts", f"{part.name}.py")


def about(part):
    """Returns the first sentence of the part's docstring."""
    with open(path(part), encoding="utf-8") as file:
        text = " ".join(ast.get_docstring(ast.parse(file.read())).split())
    return text.split(". ")[0].rstrip(".")


def chosen(names):
    """Returns the named parts and sets in the table's order, with the driver part. Raises ValueError for an
    unknown name."""
    if unknown := sorted(set(names) - {part.name for part in PARTS} - set(SETS)):
        raise ValueError(f"no part {', '.join(unknown)}; --list lists the parts")
    wanted = {part.name for name in names for part in SETS.get(name, [])} | set(names)
    return [part for part in PARTS if part.name in wanted or part is DRIVER]
