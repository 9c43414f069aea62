"""Keeps a cache of blocks on the GPU and frees blocks when it is given notice.

    gcgroupfs run --swap python3 shrink_cache.py /gcgroup 64 16777216
"""

from __future__ import annotations

import ctypes
import sys

import gcgroup_notice


def main() -> None:
    """Fill the cache, then obey notices."""
    mount, nr_blocks, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cuda = ctypes.CDLL("libcuda.so.1")
    context, cache = ctypes.c_void_p(), []
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    while len(cache) < nr_blocks:
        address = ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)):
            break
        cache.append(address)
    for notice in gcgroup_notice.notices(mount):
        if notice.is_eviction:
            for _ in range(min(len(cache), -(-notice.bytes // size))):
                cuda.cuMemFree_v2(cache.pop())
        print("evict," if notice.is_eviction else "available,", len(cache), "blocks", flush=True)


if __name__ == "__main__":
    main()
