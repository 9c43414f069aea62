"""Checks governed processes that share device memory: by cuIpc, by torch.multiprocessing, and with NCCL."""
import os
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), folder) for folder in ("..", "../../probe")]

import tempfile

import control
from lib.sums import filled
from part import HERE, STARTS_WITHIN, Program, Skip, main, need, require

PAIR = os.path.join(HERE, "pair.py")
SIZE = 4 << 20


def pair(*arguments, bare=False):
    """Starts a program of `pair.py`."""
    return Program([sys.executable, PAIR, *map(str, arguments)], bare)


def by_ipc(sim):
    """Has one program fill another's memory, with a freeze between, and returns what each is charged."""
    with pair("owner") as owner:
        handle = owner.until("handle").split()[1]
        with pair("user", handle) as user:
            user.until("filled")
            charged = {name: int(control.get(program.pid, "memory.current"))
                       - int(control.flat(program.pid, "memory.stat")["context"])
                       for name, program in (("owner", owner), ("user", user))}
            require(charged["owner"] >= SIZE, f"the owner is charged {charged['owner']} bytes")
            require(charged["user"] < charged["owner"], "the user is charged for the owner's memory")
            seconds = control.freeze(user.pid)
            control.thaw(user.pid)
            user.ask("go on", "closed")
            held = int(owner.ask("sum", "holds")[0])
            require(held == filled(SIZE, 11), "the owner does not see what the user wrote")
    return {"charged": charged, "freeze_seconds": seconds}


def by_torch(sim):
    """Sends a tensor to another process of torch.multiprocessing; compares with the result without the hook."""
    need("torch", sim=sim)
    sums = {}
    for name, bare in (("bare", True), ("governed", False)):
        with pair("tensors", bare=bare) as program:
            try:
                sums[name] = program.until("sum", 2 * STARTS_WITHIN)
            except AssertionError as error:
                if bare:
                    raise Skip(f"torch.multiprocessing does not work here: {str(error).splitlines()[-1]}") from error
                raise
    require(sums["governed"] == sums["bare"], f"{sums} differ")
    return {"sum": sums["governed"]}


def by_nccl(sim):
    """Adds up a tensor over two devices."""
    need("torch", sim=sim)
    import torch
    if torch.cuda.device_count() < 2:
        raise Skip("NCCL takes one device for each process, and this machine has one")
    with tempfile.TemporaryDirectory() as folder:
        with pair("nccl", 0, 2, f"{folder}/meet") as one, pair("nccl", 1, 2, f"{folder}/meet") as other:
            sums = {program.until("sum", STARTS_WITHIN) for program in (one, other)}
    words = 1 << 20
    require(sums == {f"sum {words * (words - 1) + words}"}, f"wrong sums: {sums}")
    return {"sum": sums.pop()}


def body(sim, facts):
    said = []
    for name, question in (("cuIpc", by_ipc), ("torch.multiprocessing", by_torch), ("NCCL", by_nccl)):
        try:
            facts[name] = question(sim)
            said.append(f"{name} works")
        except Skip as reason:
            facts[name] = {"not_possible": str(reason)}
            said.append(f"{name} not possible: {reason}")
    return "; ".join(said)


main(body)
