"""Computes from the stamps of two processes when each one had the device."""
from . import measure


def window(runs):
    """Returns the interval in which all runs overlap, by the device's clock."""
    return max(run["start"] for run in runs), min(run["end"] for run in runs)


def turns(run, start, end):
    """Returns the intervals within a window in which a process ran, in nanoseconds: (from, to)."""
    kept, at = [], start
    for before, after in run["gaps"]:
        if after <= start or before >= end:
            continue
        if before > at:
            kept.append((at, before))
        at = max(at, after)
    if at < end:
        kept.append((at, end))
    return kept


def shares(runs):
    """Returns each process's share of the time, its turns and its gaps in microseconds, and the share lost
    between turns."""
    start, end = window(runs)
    length = end - start
    if length <= 0:
        raise AssertionError("the runs do not overlap")
    answer = {"window_ms": length / 1e6, "clock_step_ns": min(run["least"] for run in runs), "processes": []}
    for run in runs:
        had = turns(run, start, end)
        # The first and the last turn are cut off by the window.
        whole = [(to - begin) / 1000 for begin, to in had[1:-1]]
        gaps = [(after - before) / 1000 for before, after in run["gaps"] if before >= start and after <= end]
        answer["processes"].append({
            "share": sum(to - begin for begin, to in had) / length, "turns": len(had),
            "turn_usec": measure.spread(whole, 1), "gap_usec": measure.spread(gaps, 1),
            "gaps_not_kept": run["seen"] - len(run["gaps"])})
    answer["nobody"] = 1 - sum(process["share"] for process in answer["processes"])
    return answer
