"""Runs a job in one framework and executes commands from stdin: `hash`, `info`, `alloc BYTES`, `steps` (until
the next line), `time N`, `during SECONDS`.

Answers `hash HEX`, `info FREE TOTAL`, `allocated` or `oom`, `step N` for each step and `stopped N`, `took
SECONDS` for N steps, `each SECONDS...` for each step within SECONDS, with a pause of 2 ms between them."""
import ctypes
import hashlib
import os
import select
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../shared"))

from answer import tell_where_it_ends


class Driver:
    """Calls the driver through ctypes and launches the test kernel that fills memory."""

    SIZE = 1 << 20

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module, self.fill = (ctypes.c_void_p() for _ in range(3))
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(self.cuda.cuCtxSetCurrent(context))
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../load/kernels.ptx"), "rb") as file:
            self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), file.read() + b"\0"))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.fill), module, b"gcgroup_fill"))
        self.block = self.memory(self.SIZE)

    def check(self, status):
        if status:
            raise MemoryError("OUT_OF_MEMORY") if status == 2 else RuntimeError(f"CUDA error {status}")

    def memory(self, size):
        block = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)))
        return block

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value, total.value

    def launch(self, value):
        arguments = [self.block, ctypes.c_uint64(self.SIZE // 4), ctypes.c_uint32(value)]
        parameters = (ctypes.c_void_p * 3)(*map(ctypes.addressof, arguments))
        self.check(self.cuda.cuLaunchKernel(self.fill, 8, 1, 1, 256, 1, 1, 0, None, parameters, None))

    def compute(self):
        self.check(self.cuda.cuMemsetD8_v2(self.block, ctypes.c_ubyte(0x5A), ctypes.c_size_t(self.SIZE)))
        self.launch(7)
        host = (ctypes.c_ubyte * self.SIZE)()
        self.check(self.cuda.cuMemcpyDtoH_v2(host, self.block, ctypes.c_size_t(self.SIZE)))
        return bytes(host)

    def step(self):
        self.launch(1)
        self.check(self.cuda.cuCtxSynchronize())


class Queue(Driver):
    """Keeps up to 16 launches queued."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def step(self):
        self.launch(1)
        self.count += 1
        if self.count % 16 == 0:
            self.check(self.cuda.cuCtxSynchronize())


class Torch:
    def __init__(self):
        # Otherwise cuBLAS results may differ between runs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        import torch
        self.t = torch
        torch.manual_seed(7)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.a = (torch.arange(512 * 512, device="cuda", dtype=torch.float32) % 97 / 97).reshape(512, 512)

    def info(self):
        return self.t.cuda.mem_get_info()

    def memory(self, size):
        return self.t.empty(size, dtype=self.t.uint8, device="cuda")

    def compute(self):
        return self.raw((self.a @ self.a).relu().cumsum(0))

    def raw(self, tensor):
        """Returns the tensor's bytes without numpy, which PyTorch does not require."""
        return bytes(tensor.cpu().contiguous().view(self.t.uint8).flatten().tolist())

    def step(self):
        (self.a @ self.a).sum().item()


class Graph(Torch):
    """Replays a captured graph in each step."""

    def __init__(self):
        super().__init__()
        t = self.t
        self.out = t.zeros_like(self.a)
        side = t.cuda.Stream()
        with t.cuda.stream(side):
            t.mm(self.a, self.a, out=self.out)
        t.cuda.current_stream().wait_stream(side)
        self.graph = t.cuda.CUDAGraph()
        with t.cuda.graph(self.graph):
            for _ in range(10):
                t.mm(self.a, self.a, out=self.out)

    def compute(self):
        self.graph.replay()
        return self.raw(self.out)

    def step(self):
        self.graph.replay()
        self.t.cuda.synchronize()


class Streams(Torch):
    """Runs each step on four streams at once."""

    def step(self):
        self.streams = getattr(self, "streams", None) or [self.t.cuda.Stream() for _ in range(4)]
        for stream in self.streams:
            with self.t.cuda.stream(stream):
                self.a @ self.a
        self.t.cuda.synchronize()


class Train(Torch):
    """Trains a small network; a step is a training step."""

    def __init__(self):
        super().__init__()
        nn = self.t.nn
        self.net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(512, 512), nn.ReLU())]).cuda()
        self.optimizer = self.t.optim.AdamW(self.net.parameters())

    def step(self):
        self.optimizer.zero_grad()
        self.net(self.a).square().mean().backward()
        self.optimizer.step()
        self.t.cuda.synchronize()


class Products(Torch):
    """Multiplies large matrices, with a queue of at most eight products: about 11 ms on an H100."""

    def __init__(self):
        super().__init__()
        self.b = self.t.randn(8192, 8192, device="cuda").to(self.t.bfloat16)
        self.out, self.queue = self.t.empty_like(self.b), []

    def step(self):
        self.t.mm(self.b, self.b, out=self.out)
        event = self.t.cuda.Event()
        event.record()
        self.queue.append(event)
        if len(self.queue) > 8:
            self.queue.pop(0).synchronize()


class Decode(Torch):
    """Decodes with a small transformer; a step is one token with a cache of 256 keys."""

    def __init__(self):
        super().__init__()
        t = self.t
        self.w = [[t.randn(512, 512, device="cuda") / 23 for _ in range(4)] for _ in range(6)]
        self.cache = t.randn(6, 2, 8, 256, 64, device="cuda")
        self.x = t.randn(1, 512, device="cuda")

    def step(self):
        t, x = self.t, self.x
        with t.no_grad():
            for n, (q, k, v, o) in enumerate(self.w):
                self.cache[n, 0, :, 0], self.cache[n, 1, :, 0] = (x @ k).view(8, 64), (x @ v).view(8, 64)
                y = t.nn.functional.scaled_dot_product_attention(
                    (x @ q).view(1, 8, 1, 64), self.cache[n, 0][None], self.cache[n, 1][None])
                x = t.nn.functional.layer_norm(x + y.reshape(1, 512) @ o, (512,))
            x.sum().item()


class Cupy:
    def __init__(self):
        import cupy
        self.c = cupy
        self.a = cupy.arange(1 << 20, dtype=cupy.int64)

    def info(self):
        return self.c.cuda.runtime.memGetInfo()

    def memory(self, size):
        return self.c.empty(size, dtype=self.c.uint8)

    def compute(self):
        return (self.a * self.a % 1009).cumsum().get().tobytes()

    def step(self):
        int((self.a * 3).sum())


class Jax:
    def __init__(self):
        # Otherwise JAX allocates three quarters of the device at its start.
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        import jax
        import jax.numpy as jnp
        if jax.default_backend() == "cpu":
            raise RuntimeError("jax does not see the GPU")
        self.j, self.np = jax, jnp
        self.f = jax.jit(lambda a: (a * 7 % 1009).cumsum())
        self.a = jnp.arange(1 << 20)
        self.f(self.a).block_until_ready()

    def info(self):
        return None

    def memory(self, size):
        return self.np.ones(size, dtype=self.np.uint8).block_until_ready()

    def compute(self):
        return bytes(memoryview(self.j.device_get(self.f(self.a))).cast("B"))

    def step(self):
        self.f(self.a).block_until_ready()


class Numba:
    def __init__(self):
        import numpy
        from numba import cuda

        @cuda.jit
        def triple(a):
            i = cuda.grid(1)
            if i < a.size:
                a[i] = i * 3

        self.cuda, self.numpy, self.kernel = cuda, numpy, triple
        self.a = cuda.device_array(1 << 16, dtype=numpy.int64)
        self.step()

    def info(self):
        return tuple(self.cuda.current_context().get_memory_info())

    def memory(self, size):
        return self.cuda.device_array(size, dtype=self.numpy.uint8)

    def compute(self):
        self.step()
        return self.a.copy_to_host().tobytes()

    def step(self):
        self.kernel[256, 256](self.a)
        self.cuda.synchronize()


class Triton(Torch):
    def __init__(self):
        super().__init__()
        from triton_kernel import triple
        self.triple, self.out = triple, self.t.empty_like(self.a)
        self.step()

    def compute(self):
        self.step()
        return self.raw(self.out)

    def step(self):
        self.triple[(self.a.numel() // 1024,)](self.a, self.out, BLOCK=1024)
        self.t.cuda.synchronize()


KINDS = {"driver": Driver, "queue": Queue, "torch": Torch, "graph": Graph, "streams": Streams, "train": Train,
         "products": Products, "decode": Decode, "cupy": Cupy, "jax": Jax, "numba": Numba, "triton": Triton}


def paused(step):
    """Returns the seconds that a step takes after a pause."""
    time.sleep(0.002)
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def out_of_memory(error):
    text = f"{type(error).__name__} {error}".lower().replace("_", "").replace(" ", "")
    return any(name in text for name in ("outofmemory", "memoryallocation", "resourceexhausted", "memoryerror"))


class Lines:
    """Reads stdin line by line."""

    def __init__(self):
        self.read = b""

    def waiting(self):
        """Returns whether a line or the end of stdin is available."""
        return b"\n" in self.read or bool(select.select([0], [], [], 0)[0])

    def next(self):
        """Returns the next line, or "" at the end."""
        while b"\n" not in self.read:
            more = os.read(0, 4096)
            if not more:
                return ""
            self.read += more
        line, _, self.read = self.read.partition(b"\n")
        return line.decode()


def main():
    tell_where_it_ends()
    work, kept, count, lines = KINDS[sys.argv[1]](), [], 0, Lines()
    work.compute()
    print("ready", flush=True)
    while line := lines.next():
        verb, *rest = line.split()
        try:
            if verb == "hash":
                answer = f"hash {hashlib.sha256(work.compute()).hexdigest()}"
            elif verb == "info":
                answer = "info " + " ".join(map(str, work.info() or ("none",)))
            elif verb == "alloc":
                kept.append(work.memory(int(rest[0])))
                answer = "allocated"
            elif verb == "time":
                began = time.perf_counter()
                for _ in range(int(rest[0])):
                    work.step()
                answer = f"took {time.perf_counter() - began}"
            elif verb == "during":
                end, took = time.monotonic() + float(rest[0]), [paused(work.step)]
                while time.monotonic() < end:
                    took.append(paused(work.step))
                answer = "each " + " ".join(map(str, took))
            elif verb == "steps":
                while not lines.waiting():
                    work.step()
                    count += 1
                    print("step", count, flush=True)
                lines.next()
                answer = f"stopped {count}"
            else:
                answer = f"error unknown command {verb}"
        except Exception as error:  # Each framework has its own exceptions.
            answer = "oom" if out_of_memory(error) else f"error {error!r}".replace("\n", " ")[:600]
        print(answer, flush=True)


if __name__ == "__main__":
    main()
