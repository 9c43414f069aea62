"""Runs a program that is controlled by lines on stdin and stdout, with a time limit for each wait."""
import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time

import evidence
from answer import Skip, require, sentence

# Exit statuses of a program that died of SIGSEGV, by itself or below a shell.
CRASHED = (-signal.SIGSEGV, 128 + signal.SIGSEGV)
# Default time limit for a line in seconds.
PATIENCE = 30


class Program:
    """Runs a command, and kills it at the end of the `with` block."""

    def __init__(self, command, env=None, pass_fds=()):
        self.errors, self.command, self.env = tempfile.TemporaryFile(), command, {**os.environ, **(env or {})}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0, env=self.env,
            pass_fds=pass_fds)
        self.pid, self.read, self.sent = self.process.pid, b"", b""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind and issubclass(kind, Exception) and not issubclass(kind, Skip):
            self.failed(sentence(error))
        self.process.kill()
        # The caller of this program reports a process that cannot be killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.stdin.close()
        self.errors.close()

    def failed(self, why):
        """Collects evidence of a failure: of the live process, or by another run after a crash."""
        if self.process.poll() is None:
            evidence.of_process(self.pid, why)
        elif self.process.returncode in CRASHED:
            evidence.of_crash(self.command, self.sent, self.env)

    def said(self):
        """Returns the end of the program's stderr."""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), 1500, max(size - 1500, 0)).decode(errors="replace").strip()

    def answers_within(self, seconds):
        """Returns whether output or its end is available within `seconds`; None waits without a limit."""
        return b"\n" in self.read or bool(select.select([self.process.stdout], [], [], seconds)[0])

    def line(self, seconds=PATIENCE):
        """Returns the next line of stdout. Raises AssertionError if none arrives in time; None waits until
        the program ends."""
        until = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self.read:
            if not self.answers_within(until and max(until - time.monotonic(), 0)):
                evidence.of_process(self.pid, f"no answer within {seconds} s")
                raise AssertionError(f"no answer within {seconds} s: {self.interrupted()}")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise AssertionError(f"the program ended: {self.said()}")
            self.read += more
        line, _, self.read = self.read.partition(b"\n")
        return line.decode(errors="replace").strip()

    def interrupted(self):
        """Terminates a silent program. Returns its stderr, in which a Python program prints its stack."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        return self.said() or "nothing on stderr"

    def until(self, word, seconds=PATIENCE):
        """Returns the next line that begins with `word`."""
        while True:
            line = self.line(seconds)
            if line.startswith(word):
                return line

    def tell(self, line):
        """Sends a line."""
        self.sent += f"{line}\n".encode()
        try:
            self.process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            raise AssertionError(f"the program ended: {self.said()}") from None

    def ask(self, line, answer, seconds=PATIENCE):
        """Sends a line. Returns the words after `answer`; raises AssertionError if the answer begins with
        `error`."""
        self.tell(line)
        while True:
            words = self.line(seconds).split()
            if words and words[0] in (answer, "error"):
                require(words[0] == answer, f"{line}: {' '.join(words)}")
                return words[1:]
