"""Runs one program of several that share device memory: `owner` allocates and exports, `user HANDLE` opens and
fills (both by cuIpc); `tensors` sends a tensor to a process of torch.multiprocessing and back; `nccl RANK COUNT
FILE` adds up a tensor over all ranks, one device each.

`owner` answers `handle HEX`, and after a line `holds SUM`; `user` answers `filled` and waits for a line; the
others answer `sum NUMBER`."""
import ctypes
import os
import sys
from ctypes import c_uint, c_uint64

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../shared"), os.path.join(HERE, "../probe")]

from answer import tell_where_it_ends

SIZE = 4 << 20
LAZY_PEER_ACCESS = 1


class Handle(ctypes.Structure):
    """CUipcMemHandle."""
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def owner():
    from lib.cuda import Driver
    from lib.sums import Sums
    driver = Driver()
    sums, address = Sums(driver), driver.alloc(SIZE)
    sums.fill(address, SIZE, 1)
    driver.cuCtxSynchronize()
    print("handle", bytes(driver.get(Handle, "cuIpcGetMemHandle", address)).hex(), flush=True)
    sys.stdin.readline()
    print("holds", sums.sum(address, SIZE), flush=True)
    sys.stdin.readline()


def user(hexadecimal):
    from lib.cuda import Driver
    from lib.sums import Sums
    driver = Driver()
    sums, handle = Sums(driver), Handle.from_buffer_copy(bytes.fromhex(hexadecimal))
    address = driver.get(c_uint64, "cuIpcOpenMemHandle_v2", handle, c_uint(LAZY_PEER_ACCESS))
    sums.fill(address, SIZE, 9)
    driver.cuCtxSynchronize()
    print("filled", flush=True)
    sys.stdin.readline()
    sums.fill(address, SIZE, 11)
    driver.cuCtxSynchronize()
    driver.cuIpcCloseMemHandle(address)
    print("closed", flush=True)
    sys.stdin.readline()


def doubled(inbox, outbox):
    """Doubles a tensor in place and says so."""
    inbox.get().mul_(2)
    outbox.put("done")


def tensors():
    import torch
    from torch import multiprocessing
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=doubled, args=(inbox, outbox))
    child.start()
    tensor = torch.arange(1 << 16, device="cuda")
    inbox.put(tensor)
    outbox.get(timeout=120)
    print("sum", int(tensor.sum().item()), flush=True)
    child.join()


def nccl(rank, count, path):
    import torch
    from torch import distributed
    torch.cuda.set_device(int(rank))
    distributed.init_process_group("nccl", init_method=f"file://{path}", rank=int(rank), world_size=int(count))
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.float64) + int(rank)
    distributed.all_reduce(tensor)
    print("sum", int(tensor.sum().item()), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    tell_where_it_ends()
    {"owner": owner, "user": user, "tensors": tensors, "nccl": nccl}[sys.argv[1]](*sys.argv[2:])
