"""Settings of a task or an actor, as `runtime_env={"gcgroup": {...}}` gives them.

Values have the same meaning under every engine: memory in bytes or as a fraction of a GPU, time as a fraction
of a GPU, priority, and host memory for swapping.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Text of a limit that does not limit, as in control files.
NO_LIMIT = "max"

#: Highest number of a priority, which is the lowest priority.
MAX_PRIORITY = 15

#: Powers of 1024, as in control files.
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_PERCENTAGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%", re.ASCII)


class SettingsError(ValueError):
    """A setting is unknown, or has a value that means nothing."""


@dataclass(frozen=True)
class Amount:
    """Bytes, a fraction of the whole, or no limit if neither is set."""

    number: int | None = None
    fraction: float | None = None

    def of(self, whole: int) -> int | None:
        """Return the amount of a whole, rounded down; `None` if there is no limit."""
        if self.fraction is not None:
            return math.floor(self.fraction * whole)
        return self.number


@dataclass(frozen=True)
class Settings:
    """What was set explicitly; `None` leaves the default."""

    #: Limit of memory on each GPU of the task.
    memory: Amount | None = None
    #: Limit of time on each GPU of the task.
    max: Amount | None = None
    #: 0 (highest) to 15.
    priority: int | None = None
    #: Host memory to which device memory may move.
    swap: Amount | None = None

    @classmethod
    def parse(cls, given: object) -> Settings:
        """Check the value of `gcgroup` in a runtime environment.

        Raises:
            SettingsError: A key is unknown, or a value is invalid.
        """
        if not isinstance(given, Mapping):
            raise SettingsError(f"gcgroup: expected a dictionary, not {given!r}")
        unknown = sorted(str(key) for key in given if key not in _PARSERS)
        if unknown:
            raise SettingsError(f"gcgroup: unknown key {unknown[0]!r}; known are {', '.join(_PARSERS)}")
        return cls(**{key: _PARSERS[key](key, value) for key, value in given.items()})


def _invalid(key: str, value: object, expected: str) -> SettingsError:
    return SettingsError(f"gcgroup: {key}: expected {expected}, not {value!r}")


def _fraction(value: float) -> float | None:
    return value if math.isfinite(value) and 0 < value <= 1 else None


def _percentage(text: str) -> float | None:
    match = _PERCENTAGE.fullmatch(text)
    return _fraction(float(match[1]) / 100) if match else None


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    if not match:
        return None
    size = math.floor(float(match[1]) * 1024 ** _UNITS[match[2].upper()])
    return size if 0 < size < 1 << 63 else None


def _parse_bytes(key: str, value: object) -> Amount:
    expected = "a size as '8G', a number of bytes, or 'max'"
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63:
        return Amount(number=value)
    if isinstance(value, str):
        text = value.strip()
        size = _size(text)
        if text == NO_LIMIT or size is not None:
            return Amount(number=size)
    raise _invalid(key, value, expected)


def _parse_memory(key: str, value: object) -> Amount:
    fraction = None
    if isinstance(value, float):
        fraction = _fraction(value)
    elif isinstance(value, str):
        fraction = _percentage(value.strip())
    if fraction is not None:
        return Amount(fraction=fraction)
    try:
        return _parse_bytes(key, value)
    except SettingsError:
        expected = "a size as '8G', a number of bytes, a fraction as 0.25 or '25%', or 'max'"
        raise _invalid(key, value, expected) from None


def _parse_time(key: str, value: object) -> Amount:
    fraction = None
    if isinstance(value, float):
        fraction = _fraction(value)
    elif isinstance(value, str):
        fraction = _percentage(value.strip())
        if value.strip() == NO_LIMIT:
            return Amount()
    if fraction is None:
        raise _invalid(key, value, "a fraction of time as 0.5 or '50%', or 'max'")
    return Amount(fraction=fraction)


def _parse_priority(key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY:
        return value
    raise _invalid(key, value, f"a number from 0 (highest) to {MAX_PRIORITY}")


def _parse_swap(key: str, value: object) -> Amount | None:
    if isinstance(value, bool):
        return Amount() if value else None
    try:
        return _parse_bytes(key, value)
    except SettingsError:
        raise _invalid(key, value, "True, False, a size as '8G', a number of bytes, or 'max'") from None


#: Keys, with the function that checks their values.
_PARSERS: dict[str, Callable[[str, object], Any]] = {
    "memory": _parse_memory,
    "priority": _parse_priority,
    "max": _parse_time,
    "swap": _parse_swap,
}
