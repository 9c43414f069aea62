"""What the check consists of, in the order in which it runs: what matters most comes first."""
import ast
import collections
import os

HERE = os.path.dirname(os.path.abspath(__file__))
# Seconds that it usually takes on a machine with a GPU, without which it does not begin; and at most.
Part = collections.namedtuple("Part", "name usual limit")

# Parts that check the product. All others need the first; those with a framework ask the second whether the
# framework works ungoverned.
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
# How the GPU and its driver behave; none needs gcgroupfs.
PROBES = [
    Part("vmm", 15, 60),
    Part("marks", 12, 60),
    Part("timeslice", 12, 45),
    Part("slicing", 15, 60),
    Part("checkpoint", 20, 75),
    Part("nvml", 15, 45),
    Part("background", 10, 45),
    Part("lookups", 5, 45),
]


def path(part):
    """The program."""
    return os.path.join(HERE, "../probe" if part in PROBES else "parts", f"{part.name}.py")


def about(part):
    """What it says of itself, in its first sentence."""
    with open(path(part), encoding="utf-8") as file:
        text = " ".join(ast.get_docstring(ast.parse(file.read())).split())
    return text.split(". ")[0].rstrip(".")


def chosen(names):
    """Those of the names, in the table's order, with the driver before them; raises ValueError for a name that is none."""
    known = PARTS + PROBES
    if unknown := sorted(set(names) - {part.name for part in known}):
        raise ValueError(f"no part {', '.join(unknown)}; --list tells which there are")
    return [part for part in known if not names or part.name in names or part is PARTS[0]]
