"""Notices before memory of a process moves off the GPU, from the control file or the daemon's socket.

    for notice in gcgroup_notice.notices():
        if notice.is_eviction:
            cache.free(notice.bytes)

memory.notice in gcgroupfs(5) describes when notices are given.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Seconds between two reads over the socket, which tells nothing by itself, and after a failure.
PAUSE = 0.02

#: Seconds for which the process or the daemon may be absent: both come back after a restart.
PATIENCE = 5.0

_HEADER = struct.pack("<4I", int.from_bytes(b"gcg\x01", "little"), 4, 1, 0)


class Notice(NamedTuple):
    """The state of a process."""

    #: Whether memory moves out unless `bytes` are freed; otherwise so many bytes may be allocated.
    is_eviction: bool
    bytes: int
    #: When memory moves, by time.monotonic(); 0 unless `is_eviction`.
    deadline: float

    @classmethod
    def parse(cls, text: str) -> Notice:
        """Return the notice that a line of memory.notice describes."""
        word, _, rest = text.strip().partition(" ")
        if word == "available":
            return cls(False, int(rest), 0.0)
        values = dict(pair.split("=") for pair in rest.split())
        return cls(True, int(values["target"]), time.monotonic() + int(values["deadline_usec"]) / 1e6)


def notices(mount: str = "/gcgroup", path: str | None = None, pid: int | None = None) -> Iterator[Notice]:
    """Yield the present state of a process, by default this one, and each beginning and end of a notice.

    After a restart of the daemon the present state comes again. `path` is the daemon's socket, which is used where nothing is mounted at `mount`.

    Raises:
        OSError: No daemon has answered for 5 seconds, or the process is not governed or has ended.
    """
    name = f"{pid or os.getpid()}/memory.notice"
    path = path or os.environ.get("GCGROUP_SOCKET") or "/run/gcgroupfs/gcgroup.sock"
    last, since = None, time.monotonic()
    while True:
        try:
            file = Path(mount) / name
            for text in _polled(file) if Path(mount, "devices").exists() else _asked(path, name):
                since, notice = time.monotonic(), Notice.parse(text)
                if last is None or notice.is_eviction or notice.is_eviction != last.is_eviction:
                    yield notice
                last = notice
        except OSError:
            last = None
            if time.monotonic() - since > PATIENCE:
                raise
            time.sleep(PAUSE)


def _polled(file: Path) -> Iterator[str]:
    """Yield the text of the file, first at once, then after each change."""
    with file.open("rb", buffering=0) as opened:
        poll = select.poll()
        poll.register(opened, select.POLLPRI)
        while poll.poll():
            yield os.pread(opened.fileno(), 4096, 0).decode()


def _asked(path: str, name: str) -> Iterator[str]:
    """Yield the text of the file when it has changed; the daemon is asked for it again and again."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(path)
        last = ""
        while True:
            connection.sendall(_HEADER + struct.pack("<I", len(name)) + name.encode())
            answer = connection.recv(4096)
            status = int.from_bytes(answer[8:12], "little")
            if len(answer) < 16 or status:
                raise OSError(status, os.strerror(status), name)
            text = answer[16:].decode()
            if text.split(" deadline")[0] != last:
                last = text.split(" deadline")[0]
                yield text
            time.sleep(PAUSE)
