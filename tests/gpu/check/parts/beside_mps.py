"""Measures an interactive job beside a batch job under MPS: as it is, with the batch job's priority lowered, and with
half of the multiprocessors for the batch job"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import contextlib
import shutil
import subprocess
import tempfile

from beside import Pair, verdict
from part import Skip, main

CONTROL = "nvidia-cuda-mps-control"
WAYS = {
    "equal": ({}, {}),
    "batch job with lower priority": ({"CUDA_MPS_CLIENT_PRIORITY": "0"}, {"CUDA_MPS_CLIENT_PRIORITY": "1"}),
    "batch job on half of the multiprocessors": ({}, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}),
}


@contextlib.contextmanager
def server(program):
    """Runs an MPS control daemon of its own, which takes no part in anything outside of its directory. Returns the
    environment of its clients."""
    with tempfile.TemporaryDirectory() as folder:
        clients = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **clients}
        started = subprocess.run([program, "-d"], env=environment, capture_output=True, text=True, timeout=20, check=False)
        if started.returncode:
            raise Skip(f"{CONTROL}: {(started.stdout + started.stderr).strip()[-300:]}")
        try:
            yield clients
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([program], input="quit\n", text=True, env=environment, capture_output=True, timeout=20,
                               check=False)


def body(sim, facts):
    program = shutil.which(CONTROL, path=f"{os.environ['PATH']}:/usr/bin:/usr/local/nvidia/bin")
    if sim or not program:
        raise Skip(f"no {CONTROL} here")
    with server(program) as clients:
        for name, (inter, batch) in WAYS.items():
            with Pair(facts, f"MPS, {name}", sim, inter={**clients, **inter}, batch={**clients, **batch}) as pair:
                if not facts.get("MPS, equal: interactive job alone"):
                    pair.alone()
                else:
                    pair.begin()
                pair.arm("both")
    return verdict(facts)


main(body)
