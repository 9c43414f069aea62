"""Options of tasks and actors with explicit settings."""

from __future__ import annotations

from typing import Any

from gcgroup_ray.settings import Settings

#: Name of the settings in a runtime environment.
KEY = "gcgroup"

#: Name of the custom resource that nodes with gcgroup_ray have.
RESOURCE = "gcgroup"

#: Part of the resource that a task takes: it only chooses the node.
_AMOUNT = 0.0001


def options(**settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return options for `.options(**...)` or `@ray.remote(**...)` with these settings.

    A node without gcgroup_ray ignores settings silently, so the options also ask for the custom resource
    `gcgroup`, which only the other nodes have.

    Raises:
        SettingsError: A setting is unknown, or has an invalid value.
    """
    Settings.parse(settings)
    return {"runtime_env": {KEY: settings}, "resources": {RESOURCE: _AMOUNT}}
