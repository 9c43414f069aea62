"""The group of a worker process."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gcgroup_ray.client import RefusalError, connected, patiently, socket_path
from gcgroup_ray.settings import NO_LIMIT, Settings
from gcgroup_ray.shares import NOTHING, Device, Share, parse_devices

#: Existing group in which workers' groups are made; otherwise the daemon chooses.
GROUP_VARIABLE = "GCGROUP_RAY_GROUP"

#: Limit that a process has until it joins its group: it cannot use a GPU.
UNJOINED = {"GCGROUP_MEMORY_LIMIT": "0", "GCGROUP_REQUIRED": "1"}

_LIBRARY = "libgcgroup.so"

#: Why the daemon makes no group for a process.
_REASONS = {
    errno.EBUSY: "it has used CUDA before it had a share",
    errno.EEXIST: "processes of an earlier worker with this pid are left",
    errno.EPERM: "it is in a container",
}


class JoinError(Exception):
    """A process cannot be governed."""


class Member:
    """Group of the process, which the daemon removes when the process and its descendants have ended.

    Before `join`, the environment that the node gives to workers lets no process use a GPU. After it, the
    hook insists on the group: in any other `cuInit` fails.
    """

    def __init__(self) -> None:
        """Describe a process that has not joined."""
        #: Path of the group, once joined.
        self.path: str | None = None
        self._has_begun = False
        self._devices: list[Device] = []
        #: What each control file has.
        self._written: dict[str, str] = {}

    def join(self, settings: Settings) -> None:
        """Make the group, without access to any GPU, for this process and its descendants.

        Raises:
            JoinError: The library is not loaded, so nothing would be enforced; or an earlier attempt failed.
            DaemonError: No daemon answers, or it refuses.
        """
        if self.path is not None:
            return
        if self._has_begun:
            raise JoinError("an earlier attempt to make the group of this process failed")
        if not _has_library():
            raise JoinError(f"{_LIBRARY} is not preloaded: LD_PRELOAD was changed in this environment")
        group = patiently(_begin)
        self._has_begun = True
        with connected(socket_path()) as connection:
            devices = parse_devices(connection.get("devices"))
            files = {f"{device.index}/memory.limit": NOTHING.memory for device in devices}
            if settings.priority is not None:
                files["compute.priority"] = str(settings.priority)
            if settings.swap is not None:
                size = settings.swap.number
                files["memory.swap.max"] = NO_LIMIT if size is None else str(size)
            for file, value in files.items():
                connection.set(f"{group}/{file}", value)
        self._written = files
        self._devices = devices
        # The hook reads these when the process first uses CUDA, and so do the programs that it executes.
        os.environ.pop("GCGROUP_MEMORY_LIMIT", None)
        os.environ["GCGROUP_REQUIRED"] = "1"
        os.environ["GCGROUP_GROUP"] = os.environ["GCGROUP_JOB"] = group
        if settings.swap is not None:
            os.environ["GCGROUP_SWAP"] = files["memory.swap.max"]
        self.path = group

    @property
    def devices(self) -> list[Device]:
        """Devices of the machine."""
        return self._devices

    def apply(self, shares: Mapping[int, Share]) -> None:
        """Write the limits of each device that differ from the last ones.

        Raises:
            DaemonError: No daemon answers, or it refuses.
        """
        files = {f"{index}/compute.max": share.max for index, share in shares.items()}
        files |= {f"{index}/memory.limit": share.memory for index, share in shares.items()}
        changed = {file: value for file, value in files.items() if self._written.get(file, NO_LIMIT) != value}
        if changed:
            patiently(lambda: self._write(changed))

    def close(self) -> None:
        """Refuse allocations on all devices.

        Raises:
            DaemonError: No daemon answers, or it refuses.
        """
        files = {f"{device.index}/memory.limit": NOTHING.memory for device in self._devices}
        changed = {file: value for file, value in files.items() if self._written.get(file) != value}
        if changed:
            patiently(lambda: self._write(changed))

    def _write(self, files: Mapping[str, str]) -> None:
        with connected(socket_path()) as connection:
            for file, value in files.items():
                # Unknown, until the daemon has confirmed it.
                self._written[file] = ""
                connection.set(f"{self.path}/{file}", value)
                self._written[file] = value


def _begin() -> str:
    """Make a new group, and return its path."""
    inside = os.environ.get(GROUP_VARIABLE, "")
    try:
        with connected(socket_path()) as connection:
            return connection.begin(inside, f"ray-{os.getpid()}", sys.executable)
    except RefusalError as error:
        if error.errno in _REASONS:
            raise RefusalError("the group of this worker", error.errno, _REASONS[error.errno]) from error
        raise


def _has_library() -> bool:
    maps = Path("/proc/self/maps").read_text(errors="replace")
    return any(line.rstrip().endswith(f"/{_LIBRARY}") for line in maps.splitlines())
