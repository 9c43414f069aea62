"""Lists the frameworks that work without the hook. All start at once, so that later parts find their files in
the page cache"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import contextlib
import importlib.metadata
import json
import time

from part import FRAMEWORKS, Skip, job, main, need

# Jobs of framework.py, with the modules that they need.
JOBS = {"torch": ["torch"], "cupy": ["cupy"], "jax": ["jax"], "numba": ["numba"], "triton": ["torch", "triton"]}
PACKAGES = ("torch", "triton", "cupy", "jax", "numba", "numpy", "nvidia", "cuda")
ALL_BEGIN_WITHIN = 170


def versions():
    """Returns the versions of installed packages that may matter."""
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    return {name: found[name] for name in sorted(filter(None, found)) if name.lower().startswith(PACKAGES)}


def works(modules, sim):
    """Returns whether the modules are installed and usable with this driver."""
    with contextlib.suppress(Skip):
        need(*modules, sim=sim)
        return True
    return False


def body(sim, facts):
    there = [kind for kind, modules in JOBS.items() if works(modules, sim)]
    facts["versions"] = versions()
    if not there:
        raise Skip("no framework here" + (" that needs no runtime library of NVIDIA's" if sim else ""))
    began, broken, ready = time.monotonic(), {}, {}
    with contextlib.ExitStack() as stack:
        jobs = {kind: stack.enter_context(job(kind, bare=True)) for kind in there}
        for kind, program in jobs.items():
            try:
                program.until("ready", max(began + ALL_BEGIN_WITHIN - time.monotonic(), 0.1))
                ready[kind] = round(time.monotonic() - began, 1)
            except AssertionError as error:
                broken[kind] = f"no {kind} job runs here, even without the hook: {str(error).splitlines()[-1]}"
    facts.update(ready_after_seconds=ready, broken=broken)
    with open(FRAMEWORKS, "w", encoding="utf-8") as file:
        json.dump(broken, file)
    if not ready:
        raise Skip("; ".join(broken.values()))
    return "; ".join([f"{kind} {facts['versions'].get(kind, '')} by {after} s" for kind, after in ready.items()]
                     + list(broken.values()))


main(body)
