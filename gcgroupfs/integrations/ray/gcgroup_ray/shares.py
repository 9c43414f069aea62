"""Limits that follow from the fractions of GPUs that Ray has assigned to a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gcgroup_ray.settings import NO_LIMIT, Amount, Settings


class ShareError(Exception):
    """The share of a task cannot be determined."""


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG instance, as the daemon lists it."""

    #: Number of its directories.
    index: int
    uuid: str
    memory: int


@dataclass(frozen=True)
class Share:
    """Limits on one device, as control files have them."""

    memory: str
    max: str


#: Share of the devices that are not assigned to the task.
NOTHING = Share(memory="0", max=NO_LIMIT)


def parse_devices(text: str) -> list[Device]:
    """Parse the control file `devices`."""
    devices = []
    for line in text.splitlines():
        index, uuid, _, memory = line.split(" ")[:4]
        devices.append(Device(int(index), uuid, int(memory)))
    return devices


def find_device(name: str, devices: Iterable[Device]) -> Device:
    """Find a device by what `CUDA_VISIBLE_DEVICES` calls it: a number, or a UUID or the start of one.

    Raises:
        ShareError: No device, or more than one, has this name.
    """
    if name.isdecimal():
        found = [device for device in devices if device.index == int(name)]
    else:
        found = [device for device in devices if name and device.uuid.startswith(name)]
    if len(found) != 1:
        raise ShareError(f"{'no' if not found else 'more than one'} GPU is named {name!r}")
    return found[0]


def shares(fractions: Mapping[str, float], settings: Settings, devices: Iterable[Device]) -> dict[int, Share]:
    """Return the share of each device: that of the task, and nothing of the others.

    Args:
        fractions: Fraction of each GPU that Ray has assigned, 1 for a whole one.
        settings: Explicit settings; they take the place of what follows from the fraction.
        devices: The devices of the machine.

    Raises:
        ShareError: A GPU is unknown.
    """
    devices = list(devices)
    result = {device.index: NOTHING for device in devices}
    for name, fraction in fractions.items():
        device = find_device(name, devices)
        default = Amount(fraction=fraction) if fraction < 1 else Amount()
        memory = (settings.memory or default).of(device.memory)
        time = settings.max or default
        result[device.index] = Share(
            memory=NO_LIMIT if memory is None else str(memory),
            max=NO_LIMIT if time.fraction is None else f"{max(1, round(time.fraction * 100_000))} 100000",
        )
    return result
