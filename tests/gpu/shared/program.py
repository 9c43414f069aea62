"""A program on a lead: lines in, lines out."""
import os
import subprocess
import tempfile

from answer import require


class Program:
    """Runs a command, and kills it where the `with` block ends."""

    def __init__(self, command, env=None, pass_fds=()):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            bufsize=1, env={**os.environ, **(env or {})}, pass_fds=pass_fds)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.errors.close()

    def line(self):
        """The next line that it prints."""
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise AssertionError(f"it ended: {self.errors.read()[-1500:]}")
        return line.strip()

    def until(self, word):
        """The next line that begins with a word."""
        while True:
            line = self.line()
            if line.startswith(word):
                return line

    def tell(self, line):
        """Sends a line."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line, answer):
        """Sends a line; the answer's words after the first, which is `answer` or `error`."""
        self.tell(line)
        while True:
            words = self.line().split()
            if words and words[0] in (answer, "error"):
                require(words[0] == answer, f"{line}: {' '.join(words)}")
                return words[1:]
