"""Checks at which host locations memory can be created, and which copies of such memory work with and without
access for processors. Each case runs in a child process, because drivers are known to crash."""
import ctypes
import glob
import json
import mmap
import os
import re
import subprocess
import sys
from ctypes import c_uint64, c_void_p

from lib import vmm
from lib.cuda import MIB, Driver, Refused
from lib.questions import Questions
from answer import Skip, main

HOST, HOST_NUMA, HOST_NUMA_CURRENT = 2, 3, 4  # CUmemLocationType
PATIENCE = 30
# What keeps the program's memory mapped.
KEPT = []
SIZES = (4 << 10, 64 << 10, MIB, 8 * MIB, 64 * MIB)


def nodes():
    """Returns the host's NUMA nodes; a host without NUMA has node 0."""
    found = (re.search(r"node(\d+)$", path) for path in glob.glob("/sys/devices/system/node/node*"))
    return sorted(int(match[1]) for match in found if match) or [0]


def locations():
    """Returns type and id of each host location, by name."""
    return {"host": (HOST, 0), **{f"numa:{node}": (HOST_NUMA, node) for node in nodes()},
            "numa_current": (HOST_NUMA_CURRENT, 0)}


def child(**case):
    """Runs a case in a child process. Returns its answer, or how it ended."""
    command = [sys.executable, os.path.abspath(__file__), "child", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return {"ended": f"no answer within {PATIENCE} s"}
    lines = done.stdout.strip().splitlines()
    answer = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if done.returncode:
        answer["ended"] = f"signal {-done.returncode}" if done.returncode < 0 else done.stderr.strip()[-300:]
    return answer


class Piece:
    """Host memory of cuMemCreate, mapped for the device and, if asked for, for processors."""

    def __init__(self, driver, location, size):
        self.driver, self.size, self.location = driver, -(-size // (2 * MIB)) * 2 * MIB, vmm.Location(*location)
        properties = vmm.Properties(type=1, location=self.location)
        self.handle = driver.get(c_uint64, "cuMemCreate", self.size, ctypes.byref(properties), 0)
        self.address = vmm.reserve(driver, self.size)
        vmm.map_memory(driver, self.address, self.size, self.handle)

    def allow_processors(self):
        """Gives access to the piece's own location."""
        access = vmm.Access(self.location, vmm.READ_WRITE)
        self.driver.cuMemSetAccess(self.address, self.size, ctypes.byref(access), 1)


def created(location):
    """Creates and maps a piece; answers the results of creation and of access for processors."""
    driver, answer = Driver(), {}
    try:
        piece = Piece(driver, location, 2 * MIB)
        answer["created"] = "CUDA_SUCCESS"
        try:
            piece.allow_processors()
            answer["processors"] = "CUDA_SUCCESS"
            ctypes.memset(piece.address, 7, 4096)
        except Refused as refused:
            answer["processors"] = str(refused)
    except Refused as refused:
        answer["created"] = str(refused)
    return answer


def buffer(driver, kind, size):
    """Returns the address of pageable or pinned memory of the program."""
    if kind == "pinned":
        return driver.get(c_void_p, "cuMemHostAlloc", size, 0)
    KEPT.append(ctypes.c_char.from_buffer(mmap.mmap(-1, size)))
    return ctypes.addressof(KEPT[-1])


def copied(location, processors, kind):
    """Copies between a piece and memory of the program, in both directions and each size. Answers, by size,
    whether the content is right, or the error; a line after each, so that a crash loses only one."""
    driver, answer = Driver(), {}
    piece = Piece(driver, location, SIZES[-1])
    if processors:
        piece.allow_processors()
    there = buffer(driver, kind, SIZES[-1])
    back = buffer(driver, kind, SIZES[-1])
    for size in SIZES:
        content = os.urandom(256) * (size // 256)
        ctypes.memmove(there, content, size)
        for name, copy in (("in", lambda: driver.cuMemcpyHtoD_v2(piece.address, there, size)),
                           ("out", lambda: driver.cuMemcpyDtoH_v2(back, piece.address, size))):
            try:
                copy()
                driver.cuCtxSynchronize()
                answer[f"{size >> 10}K {name}"] = "right" if name == "in" or ctypes.string_at(back, size) == content else "WRONG"
            except Refused as refused:
                answer[f"{size >> 10}K {name}"] = str(refused)
        print(json.dumps(answer), flush=True)
    return answer


def copies(usable):
    """Returns the results of copies by access and kind of the program's memory."""
    if not usable:
        raise Skip("memory can be created at no host location")
    location = locations()[usable[0]]
    return {f"{'with' if processors else 'without'} access, {kind}":
            child(case="copied", location=location, processors=processors, kind=kind)
            for processors in (True, False) for kind in ("pageable", "pinned")}


def failing(rows):
    """Returns the cases in which a copy does not work."""
    return [name for name, row in rows.items() if any(said != "right" for said in row.values())]


def body(sim, facts):
    questions = Questions(facts)
    Driver()
    made = questions.ask("locations", lambda: {
        name: child(case="created", location=location) for name, location in locations().items()})
    usable = [name for name, row in (made or {}).items() if row.get("created") == "CUDA_SUCCESS" and "ended" not in row]
    # The nodes first: they are what swap uses.
    usable.sort(key=lambda name: not name.startswith("numa:"))
    rows = questions.ask("copies", copies, usable)
    return questions.verdict(
        made and "memory can be created at " + (", ".join(usable) or "NO HOST LOCATION") + "".join(
            f"; at {name}: {row.get('ended') or row['created']}" for name, row in made.items() if name not in usable),
        rows and ("copies FAIL " + ", ".join(failing(rows)) if failing(rows) else "all copies are right"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        given = json.loads(sys.argv[2])
        print(json.dumps({"created": created, "copied": copied}[given.pop("case")](**given)), flush=True)
    else:
        main(body)
