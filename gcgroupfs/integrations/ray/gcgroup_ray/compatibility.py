"""Private functions of Ray that this package uses, and the check that they are there.

A version of Ray is added here once `scripts/test-cluster.sh ray` has passed with it.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass

#: Versions of Ray that have been tested.
TESTED = ("2.60.",)


class IncompatibleError(ImportError):
    """The installed version of Ray is not supported."""


@dataclass(frozen=True)
class _Name:
    module: str
    name: str
    #: Names of the parameters; `None` if it is not a function.
    parameters: tuple[str, ...] | None


_NAMES = (
    # Called before each task and each actor's __init__.
    _Name("ray._private.utils", "set_visible_accelerator_ids", ()),
    # Called after each task, if the former returned variables to reset.
    _Name(
        "ray._private.utils",
        "reset_visible_accelerator_env_vars",
        ("original_visible_accelerator_env_vars",),
    ),
    # Imports RAY_preload_python_modules in each worker.
    _Name("ray._private.utils", "try_import_each_module", ("module_names_to_import",)),
    # Has the assigned ids and fractions: core_worker.resource_ids().
    _Name("ray._private.worker", "global_worker", None),
    # Loads RAY_RUNTIME_ENV_PLUGINS.
    _Name("ray._private.runtime_env.plugin", "RuntimeEnvPlugin", None),
)


def check() -> None:
    """Check the version of Ray, and the private names.

    Raises:
        IncompatibleError: Ray is absent or not supported.
    """
    try:
        version = importlib.import_module("ray").__version__
    except ImportError as error:
        raise IncompatibleError(f"Ray cannot be imported: {error}") from error
    if not version.startswith(TESTED):
        tested = ", ".join(f"{start}*" for start in TESTED)
        raise IncompatibleError(f"Ray {version} is not supported; tested: {tested}")
    for name in _NAMES:
        _check_name(name, version)


def _check_name(wanted: _Name, version: str) -> None:
    described = f"Ray {version}: {wanted.module}.{wanted.name}"
    try:
        found = getattr(importlib.import_module(wanted.module), wanted.name)
    except (ImportError, AttributeError) as error:
        raise IncompatibleError(f"{described} is missing") from error
    if wanted.parameters is None:
        return
    parameters = tuple(inspect.signature(found).parameters)
    if parameters != wanted.parameters:
        raise IncompatibleError(f"{described} has the parameters {parameters}, not {wanted.parameters}")
