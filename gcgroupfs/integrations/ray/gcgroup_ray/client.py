"""Client of the daemon's socket: reads and writes control files, and makes the group of a process.

The protocol is described in hook/abi/src/message/request.rs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TypeVar

#: Socket of a daemon that was started without `--socket`.
DEFAULT_SOCKET = "/run/gcgroupfs/gcgroup.sock"

#: Seconds for which a request is repeated while the daemon may be restarting.
PATIENCE = 5.0

_RETRY = 0.05
_PROTOCOL = int.from_bytes(b"gcg\x01", "little")
_TAG_REQUEST = 4
_MAX_ANSWER = 32 << 10

Answer = TypeVar("Answer")


class Operation(IntEnum):
    """Kinds of requests."""

    GET = 1
    SET = 2
    BEGIN = 8


class DaemonError(Exception):
    """The daemon does not answer."""


class RefusalError(DaemonError):
    """The daemon refuses a request."""

    def __init__(self, name: str, status: int, why: str) -> None:
        """Describe the refusal of a request about `name`."""
        self.errno = status
        text = os.strerror(status)
        super().__init__(f"{name}: {text}: {why}" if why else f"{name}: {text}")


def socket_path() -> str:
    """Return the path of the daemon's socket."""
    return os.environ.get("GCGROUP_SOCKET") or DEFAULT_SOCKET


class Connection:
    """Connection to the daemon, which programs that this process executes do not inherit."""

    def __init__(self, path: str) -> None:
        """Connect.

        Raises:
            DaemonError: No daemon listens at the path.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise DaemonError(f"no daemon at {path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def get(self, name: str) -> str:
        """Read a control file."""
        text = b""
        while True:
            part, total = self._ask(Operation.GET, name, b"", len(text))
            text += part
            if not part or len(text) >= total:
                return text.decode()

    def set(self, name: str, value: str) -> None:
        """Write a control file."""
        self._ask(Operation.SET, name, value.encode())

    def begin(self, group: str, name: str, program: str) -> str:
        """Make a transient group for this process and its descendants, and return its path.

        The group is held while this process lives.
        """
        value = name.encode() + b"\0" + os.fsencode(program)
        return self._ask(Operation.BEGIN, group, value)[0].decode()

    def _ask(self, operation: Operation, name: str, value: bytes, offset: int = 0) -> tuple[bytes, int]:
        encoded = name.encode()
        header = struct.pack("<5I", _PROTOCOL, _TAG_REQUEST, operation, offset, len(encoded))
        try:
            self._socket.sendall(header + encoded + value)
            packet = self._socket.recv(_MAX_ANSWER)
        except OSError as error:
            raise DaemonError(f"the daemon does not answer: {error}") from error
        if len(packet) < 16:
            raise DaemonError("the daemon ended the connection")
        protocol, tag, status, total = struct.unpack_from("<4I", packet)
        if (protocol, tag) != (_PROTOCOL, _TAG_REQUEST):
            raise DaemonError("the daemon's answer is invalid")
        if status:
            raise RefusalError(name, status, packet[16:].decode(errors="replace"))
        return packet[16:], total


@contextlib.contextmanager
def connected(path: str) -> Iterator[Connection]:
    """Open a connection for several requests."""
    connection = Connection(path)
    try:
        yield connection
    finally:
        connection.close()


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Repeat a request for five seconds while no daemon answers, or it refuses for now.

    Raises:
        DaemonError: The last failure.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except DaemonError as error:
            is_final = isinstance(error, RefusalError) and error.errno != errno.EAGAIN
            if is_final or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY)
