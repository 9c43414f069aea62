"""Preloaded module of Ray's workers: gives each task and actor its share of the GPUs.

`gcgroup-ray start` has Ray import it into each worker (`RAY_preload_python_modules`). It wraps two functions
that Ray calls before a task or an actor's `__init__`, and after a task. An exception before the task ends the
worker, so that its code does not run.

A worker that has not imported this module cannot use a GPU: it has inherited a memory limit of 0.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import ray
import ray._private.utils
import ray._private.worker

from gcgroup_ray import compatibility
from gcgroup_ray.client import DaemonError
from gcgroup_ray.member import JoinError, Member
from gcgroup_ray.options import KEY
from gcgroup_ray.plugin import VARIABLE
from gcgroup_ray.settings import Settings
from gcgroup_ray.shares import ShareError, shares

_LOG = logging.getLogger(__name__)

#: Resources that are GPUs: of a node, or of a placement group without the number of a bundle, which repeats
#: the former.
_RESOURCE = re.compile(r"GPU(_group_[0-9A-Za-z]+)?")

_member = Member()


class GpuShareError(Exception):
    """A task or an actor could not be given its share of a GPU, and does not run."""


def assigned_fractions() -> dict[str, float]:
    """Return the fraction of each GPU that Ray has assigned to the current task.

    Raises:
        ShareError: CUDA_VISIBLE_DEVICES was changed in the task's environment, so the GPU is unknown.
    """
    worker = ray._private.worker.global_worker
    visible = worker.original_visible_accelerator_ids.get("GPU")
    fractions: dict[str, float] = {}
    for resource, assignment in worker.core_worker.resource_ids().items():
        if not _RESOURCE.fullmatch(resource):
            continue
        for number, fraction in assignment:
            if visible is not None and number >= len(visible):
                raise ShareError(f"CUDA_VISIBLE_DEVICES in this environment has no GPU {number}")
            name = str(number) if visible is None else str(visible[number])
            fractions[name] = fractions.get(name, 0.0) + fraction
    return fractions


def explicit_settings() -> Settings:
    """Return the settings of the task's runtime environment.

    Raises:
        SettingsError: They are invalid.
        ShareError: The node did not check them.
    """
    text = os.environ.get(VARIABLE)
    if text is not None:
        return Settings.parse(json.loads(text))
    if ray.get_runtime_context().runtime_env.get(KEY) is not None:
        raise ShareError("the node ignores settings: it was not started with gcgroup-ray")
    return Settings()


def give_share() -> None:
    """Write the limits of the task that is about to run. Without a GPU, it has none.

    Raises:
        GpuShareError: The limits do not hold, so the task must not run.
    """
    try:
        fractions = assigned_fractions()
        settings = explicit_settings()
        _write_limits(fractions, settings)
    except (DaemonError, JoinError, ShareError, ValueError) as error:
        raise GpuShareError(f"gcgroup: this task cannot have its share of a GPU: {error}") from error


def _write_limits(fractions: Mapping[str, float], settings: Settings) -> None:
    if fractions:
        _member.join(settings)
        _member.apply(shares(fractions, settings, _member.devices))
    elif settings == Settings():
        _member.close()
    else:
        raise ShareError("it has settings, but no GPU: num_gpus is 0")


def take_share_back() -> None:
    """Refuse further allocations of a worker that is idle. What a task has left allocated stays."""
    try:
        _member.close()
    except DaemonError as error:
        # The next task in this worker does it, or does not run.
        _LOG.warning("gcgroup: the share of the last task is still granted: %s", error)


def install() -> None:
    """Wrap Ray's functions.

    Raises:
        IncompatibleError: This version of Ray is not supported.
    """
    compatibility.check()
    utils = ray._private.utils
    set_visible = utils.set_visible_accelerator_ids
    reset_visible = utils.reset_visible_accelerator_env_vars

    @functools.wraps(set_visible)
    def set_visible_accelerator_ids() -> Mapping[str, str | None]:
        original: Mapping[str, str | None] = set_visible()
        give_share()
        return original

    @functools.wraps(reset_visible)
    def reset_visible_accelerator_env_vars(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        take_share_back()
        reset_visible(*args, **kwargs)

    utils.set_visible_accelerator_ids = set_visible_accelerator_ids
    utils.reset_visible_accelerator_env_vars = reset_visible_accelerator_env_vars


install()
