"""Lists the parts of the check in the order in which they run, the most important first."""
import ast
import collections
import os

HERE = os.path.dirname(os.path.abspath(__file__))
# `usual`: seconds on a machine with a GPU; a part is left out if less time is left. `limit`: seconds at most.
Part = collections.namedtuple("Part", "name usual limit")

# Parts that check the product. All others need the first; those with a framework learn from the second
# whether the framework works ungoverned.
PARTS = [
    Part("driver", 5, 90),
    Part("frameworks", 25, 100),
    Part("interception_torch", 12, 75),
    Part("interception_ctypes", 5, 45),
    Part("load_governed", 4, 45),
    Part("ledger", 5, 45),
    Part("interception_cupy", 10, 75),
    Part("interception_jax", 20, 90),
    Part("interception_triton", 15, 75),
    Part("overhead_driver", 20, 75),
    Part("overhead_torch", 30, 100),
    Part("contention", 25, 75),
    Part("contention_torch", 25, 90),
    Part("interception_c", 8, 45),
    Part("torch_graph", 12, 75),
    Part("torch_expandable_segments", 12, 75),
    Part("torch_malloc_async", 12, 75),
    Part("swap", 25, 75),
    Part("priority", 20, 60),
    Part("groups", 5, 45),
    Part("torch_streams", 12, 75),
    Part("torch_processes", 12, 75),
    Part("kill_process", 5, 45),
    Part("kill_daemon", 5, 45),
    Part("nvidia_smi", 5, 60),
    Part("interception_numba", 10, 75),
]
# Probes of the GPU and its driver; none needs gcgroupfs.
PROBES = [
    Part("vmm", 15, 60),
    Part("markers", 12, 60),
    Part("timeslice", 12, 45),
    Part("slicing", 15, 60),
    Part("checkpoint", 20, 75),
    Part("nvml", 15, 45),
    Part("background", 10, 45),
    Part("lookups", 5, 45),
]


def path(part):
    """Returns the path of the part's program."""
    return os.path.join(HERE, "../probe" if part in PROBES else "parts", f"{part.name}.py")


def about(part):
    """Returns the first sentence of the part's docstring."""
    with open(path(part), encoding="utf-8") as file:
        text = " ".join(ast.get_docstring(ast.parse(file.read())).split())
    return text.split(". ")[0].rstrip(".")


def chosen(names):
    """Returns the named parts in the table's order, after the driver part. Raises ValueError for an unknown
    name."""
    known = PARTS + PROBES
    if unknown := sorted(set(names) - {part.name for part in known}):
        raise ValueError(f"no part {', '.join(unknown)}; --list lists the parts")
    return [part for part in known if not names or part.name in names or part is PARTS[0]]
