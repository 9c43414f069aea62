"""Measures an interactive job beside a batch job under another preloaded library (--peer), and its overhead of launch
and allocation"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import tempfile
from statistics import median

from beside import Pair, verdict
from part import Skip, load, main, report


def body(sim, facts):
    library = os.environ.get("GPU_CHECK_PEER")
    if not library:
        raise Skip("no other library named: --peer LIB")
    with tempfile.TemporaryDirectory() as folder:
        # HAMi-core's variables; a library without them takes no notice.
        peer = {"LD_PRELOAD": library, "CUDA_DEVICE_MEMORY_LIMIT": "20g", "LIBCUDA_LOG_LEVEL": "0",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/cache"}
        runs = {}
        for _ in range(3):
            for name, env in (("bare", {}), ("peer", peer)):
                with load("overhead", "--rounds", 5 if sim else 10, bare=True, env=env) as program:
                    for cost in report(program)["ns"]:
                        runs.setdefault(cost["call"], {}).setdefault(name, []).append(cost["median"])
        facts["ns"] = runs
        facts["peer_over_bare"] = {call: median(ns["peer"]) / median(ns["bare"]) for call, ns in runs.items()}
        with Pair(facts, "peer", sim, inter=peer, batch={**peer, "CUDA_DEVICE_SM_LIMIT": "50"}) as pair:
            pair.alone()
            pair.arm("batch job with a limit of 50 %")
    return "peer over bare: " + ", ".join(
        f"{call} {ratio:.3f}" for call, ratio in facts["peer_over_bare"].items()) + f"; {verdict(facts)}"


main(body)
