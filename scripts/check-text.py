#!/usr/bin/env python3
"""Checks the wording and the layout of comments, documents and commit subjects.

usage: scripts/check-text.py

Prints each finding as FILE:LINE: REASON and exits with 1 if there are any. Rows of Markdown tables, code blocks and
links may be longer than a line.
"""

import re
import subprocess
import sys
from pathlib import Path

MAX_COLUMNS = 110
MAX_SUBJECT = 72
# Earlier commits are not checked.
SINCE = "2026-11-22T21:30:00Z"

# Words of the old dialect, and what to write instead.
WORDS = {
    r"\bwhoever\b": "name the process or thread",
    r"\bnobody else's\b": "of no other process",
    r"\bsomebody\b": "name the process or thread",
    r"\bLikewise\b": "say what the item does",
    r"\bputs? on file\b": "store",
    r"\bon file\b": "stored",
    r"\bis to be had\b": "is available",
    r"\bless important\b": "of lower priority",
    r"\bmore important\b": "of higher priority",
    r"\bhas the kernel forget\b": "invalidates",
    r"\bstrangers?\b": "another user, or an unmanaged process",
    r"\bnewcomers?\b": "new process or device",
    r"\bvisitors?\b": "client, or unregistered connection",
}

# First words of a doc comment that refer to something before it.
ANAPHORA = re.compile(r"^\s*//[/!] (It|The same|Likewise|So|Of|Such|These|As above|Then|What|Who|Whoever)\b")


def tracked(pattern):
    names = subprocess.run(["git", "ls-files", pattern], capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.splitlines() if Path(name).exists()]


def words(line):
    for pattern, instead in WORDS.items():
        if re.search(pattern, line, re.IGNORECASE):
            yield f"{pattern.strip(chr(92) + 'b')!r}: {instead}"


def rust(path):
    is_start = True
    for number, line in enumerate(path.read_text().splitlines(), 1):
        comment = re.match(r"\s*//", line)
        if comment:
            if len(line) > MAX_COLUMNS:
                yield number, f"{len(line)} columns"
            if is_start and ANAPHORA.match(line):
                yield number, "a doc comment that refers to something before it"
            for finding in words(line):
                yield number, finding
        is_start = not re.match(r"\s*//[/!] ?\S", line)


def script(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not re.match(r"\s*#", line):
            continue
        if len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns"
        for finding in words(line):
            yield number, finding


def markdown(path):
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        if is_code:
            continue
        if len(line) > MAX_COLUMNS and not line.startswith("|") and "](" not in line:
            yield number, f"{len(line)} columns"
        for finding in words(line):
            yield number, finding


CHECKS = {"*.rs": rust, "*.md": markdown, "*.sh": script, "*.py": script, "*.toml": script, "scripts/gc-*": script}


def main():
    findings = 0
    # Generated.
    exempt = {Path("hook/COVERAGE.md")}
    for pattern, check in CHECKS.items():
        for path in tracked(pattern):
            if path in exempt:
                continue
            for number, finding in check(path):
                print(f"{path}:{number}: {finding}")
                findings += 1
    # A shallow clone has no earlier commits.
    log = subprocess.run(["git", "log", f"--since={SINCE}", "--format=%h %s"], capture_output=True, text=True)
    for commit, subject in (line.split(" ", 1) for line in log.stdout.splitlines()):
        if len(subject) > MAX_SUBJECT:
            print(f"{commit}: a subject of {len(subject)} characters")
            findings += 1
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
