"""Summarises repeated measurements."""
import ctypes
import itertools
import time
from statistics import median

# A C function that does almost nothing: its time is that of ctypes.
NOTHING = ctypes.CDLL(None).abs


def spread(samples, digits=3):
    """Returns count, minimum, median, percentiles and maximum of samples."""
    ordered = sorted(samples)
    if not ordered:
        return {"n": 0}
    at = lambda part: round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], digits)
    return {"n": len(ordered), "min": at(0), "median": round(median(ordered), digits), "p90": at(0.9),
            "p99": at(0.99), "max": at(1)}


def usec_each(function, arguments, calls):
    """Returns the microseconds of one call, ctypes included. Raises RuntimeError for a status other than 0."""
    status = 0
    began = time.perf_counter_ns()
    for _ in itertools.repeat(None, calls):
        status |= function(*arguments)
    took = time.perf_counter_ns() - began
    if status:
        raise RuntimeError(f"{getattr(function, '__name__', function)}: status {status}")
    return took / 1000 / calls


def usec(function):
    """Returns the microseconds of one call of a Python function."""
    began = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - began) / 1000


def repeat(function, seconds, most=20):
    """Calls a function at least twice, until `seconds` have passed or `most` calls were made. Returns the
    list of its results."""
    until, values = time.monotonic() + seconds, []
    while len(values) < 2 or (len(values) < most and time.monotonic() < until):
        values.append(function())
    return values
