"""Preloaded before gcgroup_ray in a test: uses CUDA before the worker has joined its group."""

import gpu

gpu.name_of(gpu.open_gpu)
