"""Runtime environment plugin: checks `runtime_env={"gcgroup": {...}}` on the node and tells the worker."""

from __future__ import annotations

import json
import logging
from typing import Any

from ray._private.runtime_env.context import RuntimeEnvContext
from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from gcgroup_ray.options import KEY
from gcgroup_ray.settings import Settings

#: Environment variable of a worker with explicit settings: JSON.
VARIABLE = "GCGROUP_RAY_SETTINGS"


class GcgroupPlugin(RuntimeEnvPlugin):  # type: ignore[misc]
    """Plugin of the runtime environment agent. Ray starts separate workers for each environment."""

    name = KEY

    @staticmethod
    def validate(runtime_env_dict: dict[str, Any]) -> None:
        """Refuse unknown keys and invalid values. The task fails with `RuntimeEnvSetupError`.

        Raises:
            SettingsError: A setting is unknown or invalid.
        """
        Settings.parse(runtime_env_dict[KEY])

    def modify_context(
        self,
        uris: list[str],  # noqa: ARG002
        runtime_env: dict[str, Any],
        context: RuntimeEnvContext,
        logger: logging.Logger,  # noqa: ARG002
    ) -> None:
        """Pass the settings to the worker."""
        context.env_vars[VARIABLE] = json.dumps(runtime_env[KEY])
