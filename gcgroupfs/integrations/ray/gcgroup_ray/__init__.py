"""Enforces Ray's fractions of a GPU with gcgroupfs.

Nodes are started with `gcgroup-ray start`, which takes the arguments of `ray start`. Tasks and actors are
held to their share without a change: `num_gpus=0.25` is a quarter of the memory and of the time of a GPU.
`runtime_env={"gcgroup": {...}}` or `options` sets other limits.
"""

from gcgroup_ray.node import NodeError, node_environment
from gcgroup_ray.options import options
from gcgroup_ray.settings import Settings, SettingsError

__all__ = ["NodeError", "Settings", "SettingsError", "node_environment", "options"]
