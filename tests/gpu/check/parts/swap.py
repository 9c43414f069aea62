"""Moves the memory of a working program to the host and back: checks its content and the freed memory, and
measures the speed."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import threading
import time

import control
from held import Account
from part import load, main, report, require

MIB = 1 << 20
BLOCKS = 4


def stat(pid, key, name="memory.stat"):
    return int(control.flat(pid, name)[key])


def free(watcher):
    """Returns the bytes that another process can allocate."""
    return int(watcher.ask("meminfo", "meminfo")[0])


def moved(pid, way, whole, write):
    """Calls `write` and returns the seconds until `whole` bytes have moved that way, or None if the move
    failed."""
    key = f"swap_{way}_bytes"
    failed, before, began = stat(pid, "swap_fail", "memory.events"), stat(pid, key), time.monotonic()
    write()
    while stat(pid, key) - before < whole:
        if stat(pid, "swap_fail", "memory.events") > failed:
            return None
        require(time.monotonic() - began < 20, f"{stat(pid, key) - before} of {whole} bytes have moved {way}")
        time.sleep(0.0005)
    return time.monotonic() - began


def out_and_in(sim, facts):
    """Moves a whole program out and in, while it runs or, if the driver cannot map host memory, while it is
    frozen."""
    size = (16 if sim else 256) * MIB
    whole = BLOCKS * size
    with load("obey", bare=True) as watcher:
        watcher.until("ready")
        beside(watcher, sim, facts, size, whole)


def beside(watcher, sim, facts, size, whole):
    """Moves the program out and in, while `watcher` reads the free memory of the device."""
    account = Account()
    with load("obey", swap=True) as program:
        program.until("ready")
        pid = program.pid
        seconds = [float(word) for word in program.ask(f"bandwidth {size} {BLOCKS}", "bandwidth")]
        plain = [whole / 1e9 / each for each in seconds[:2]]
        # Only if the driver can create physical memory on the host.
        if seconds[2:]:
            facts["host_memory_ms"] = dict(zip(("made", "released"), (round(each * 1e3, 2) for each in seconds[2:])))
        for _ in range(BLOCKS):
            program.ask(f"alloc linear {size}", "allocated")
        before, nvml = free(watcher), account.number(pid)
        took = moved(pid, "out", whole, lambda: control.put(pid, "memory.limit", 1))
        facts["maps_host_memory"] = took is not None
        if took is None:
            control.put(pid, "memory.limit", "max")
            facts["freeze_seconds"] = control.freeze(pid)
            took = moved(pid, "out", whole, lambda: control.put(pid, "memory.reclaim", "max"))
            require(took is not None, "the frozen program does not move out either")
        gained, after = free(watcher) - before, account.number(pid)
        facts.update(bytes=whole, freed_for_others=gained, nvml_before=nvml, nvml_out=after)
        require(gained >= whole * 9 // 10, f"{whole} bytes moved out, other processes can allocate {gained} more")
        if nvml is not None and after is not None:
            require(nvml - after >= whole * 9 // 10,
                    f"NVML reported {nvml} bytes for the program, and reports {after} after the move")
        if facts["maps_host_memory"]:
            require(program.ask("verify", "verified") == [str(BLOCKS)], "the memory is wrong on the host")
            back = moved(pid, "in", whole, lambda: control.put(pid, "memory.limit", "max"))
        else:
            back = moved(pid, "in", whole, lambda: control.thaw(pid))
        require(back is not None, "the memory does not move in")
        require(program.ask("verify", "verified") == [str(BLOCKS)], "the memory is wrong after moving in")
        for way, seconds, most in (("out", took, plain[0]), ("in", back, plain[1])):
            speed = whole / 1e9 / seconds
            facts[way] = {"gb_per_s": round(speed, 2), "plain_gb_per_s": round(most, 2), "of_plain": round(speed / most, 3)}


def under_work(sim, facts):
    """Verifies the checksums of all blocks while the limit changes every 50 ms."""
    seconds = 3 if sim else 12
    sizes = ("--bytes", "8M" if sim else "64M", "--blocks", 12)
    with load("swap", *sizes, "--duration", seconds, swap=True) as program:
        program.until("ready")
        pid, over, counts = program.pid, threading.Event(), {}

        def change():
            limits = ["64M", "max", "16M", "256M"] if not sim else ["8M", "max", "2M", "32M"]
            while not over.wait(0.05):
                try:
                    control.put(pid, "memory.limit", limits[counts.get("writes", 0) % len(limits)])
                    counts.update(writes=counts.get("writes", 0) + 1, **control.flat(pid, "memory.events"))
                except control.Refused:
                    return

        changer = threading.Thread(target=change)
        changer.start()
        try:
            facts["work"] = report(program)
        finally:
            over.set()
            changer.join()
        facts["events"] = {key: int(value) for key, value in counts.items()}
        require(facts["events"]["swap_out"] > 0 and facts["events"]["swap_in"] > 0, "nothing moved while the program worked")


def body(sim, facts):
    out_and_in(sim, facts)
    speeds = ", ".join(f"{way} {facts[way]['gb_per_s']} GB/s, {facts[way]['of_plain']} of a plain copy"
                       for way in ("out", "in"))
    if not facts["maps_host_memory"]:
        return f"only while frozen: {speeds}"
    under_work(sim, facts)
    return f"{speeds}; {facts['work']['verified']} blocks verified over {facts['events']['swap_out']} moves out"


main(body)
