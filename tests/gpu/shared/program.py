"""A program on a lead: lines in, lines out, and no wait without an end."""
import contextlib
import os
import select
import subprocess
import tempfile
import time

from answer import require

# Seconds that a line may take, unless it is told otherwise.
PATIENCE = 30


class Program:
    """Runs a command, and kills it where the `with` block ends."""

    def __init__(self, command, env=None, pass_fds=()):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0,
            env={**os.environ, **(env or {})}, pass_fds=pass_fds)
        self.pid, self.read = self.process.pid, b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        # One that the kernel does not let go is for the one who started us to tell of.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.stdin.close()
        self.errors.close()

    def said(self):
        """The end of what it wrote to stderr."""
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), 1500, max(size - 1500, 0)).decode(errors="replace").strip()

    def answers_within(self, seconds):
        """Whether there is something to read, or its end, so soon; None waits for it."""
        return b"\n" in self.read or bool(select.select([self.process.stdout], [], [], seconds)[0])

    def line(self, seconds=PATIENCE):
        """The next line that it prints; fails if none comes, or with None waits as long as it lives."""
        until = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self.read:
            if not self.answers_within(until and max(until - time.monotonic(), 0)):
                raise AssertionError(f"no answer within {seconds} s: {self.interrupted()}")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise AssertionError(f"it ended: {self.said()}")
            self.read += more
        line, _, self.read = self.read.partition(b"\n")
        return line.decode(errors="replace").strip()

    def interrupted(self):
        """Ends a program that is silent: one in Python says where it was."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        return self.said() or "not a word on stderr"

    def until(self, word, seconds=PATIENCE):
        """The next line that begins with a word."""
        while True:
            line = self.line(seconds)
            if line.startswith(word):
                return line

    def tell(self, line):
        """Sends a line."""
        try:
            self.process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            raise AssertionError(f"it ended: {self.said()}") from None

    def ask(self, line, answer, seconds=PATIENCE):
        """Sends a line; the answer's words after the first, which is `answer` or `error`."""
        self.tell(line)
        while True:
            words = self.line(seconds).split()
            if words and words[0] in (answer, "error"):
                require(words[0] == answer, f"{line}: {' '.join(words)}")
                return words[1:]
