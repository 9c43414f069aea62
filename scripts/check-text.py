#!/usr/bin/env python3
"""Checks the wording and the layout of comments, documents and commit subjects, and that the files and items of
code that the design notes, ARCHITECTURE.md and CONTRIBUTING.md name in backquotes exist.

usage: scripts/check-text.py

Prints each finding as FILE:LINE: REASON and exits with 1 if there are any. Rows of Markdown tables, code blocks and
links may be longer than a line.
"""

import functools
import re
import subprocess
import sys
from fnmatch import fnmatch
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

# Names in the notes that are defined elsewhere: in the kernel, in systemd and in the driver's headers.
FOREIGN = {
    "CAP_SYS_NICE",
    "CLOCK_BOOTTIME",
    "CUcheckpointRestoreArgs",
    "FALLOC_FL_PUNCH_HOLE",
    "FileDescriptorStoreMax",
    "MAP_FIXED",
    "MAP_GROWSDOWN",
    "MSG_CTRUNC",
    "MSG_PEEK",
    "effective_protection",
    "exec_update_lock",
    "gpuPairs",
    "memory_recursiveprot",
}

FILE = re.compile(r"[\w.*-]+(/[\w.*-]*)+|[\w-]+\.(rs|py|sh|c|md|toml|json|tsv|svg|png)")
ITEM = re.compile(r"\w+(::\w+)+|\w*(_|[a-z][A-Z])\w*|[A-Z][A-Z0-9]+|[A-Z][a-z]+")


@functools.cache
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


@functools.cache
def code():
    """Returns the words of each file of code and each script, without comments."""
    paths = (path for path in tracked("*") if path.suffix in {".rs", ".py", ".sh", ".c", ".h", ".toml"})
    texts = (re.sub(r"(?m)^\s*(//|#(?!!?\[)).*", "", path.read_text()) for path in paths)
    return [set(re.findall(r"\w+", text)) for text in texts]


def exists(name, note):
    """Returns whether a file or module has a path that ends so. A file without a directory is in the note's crate."""
    crate = next(parent for parent in note.parents if parent == Path(".") or (parent / "Cargo.toml").exists())
    name = name.rstrip("/")
    inside = crate if "/" not in name else Path(".")
    paths = (f"/{path}/" for path in tracked("*") if path.is_relative_to(inside))
    return any(fnmatch(path, f"*/{name}{end}/*") for path in paths for end in ["", ".rs"])


def missing(line, note):
    """Yields the names in backquotes that denote nothing. Capitals in a path stand for any name."""
    for before, text in re.findall(r"(\(?)`([^`]+)`", line):
        name = text.split(" ")[0]
        if FILE.fullmatch(name):
            is_pattern = re.search(r"(^|/)[A-Z]+(\.\w+)?$", name) and not exists(name, note)
            if not is_pattern and not name.startswith("target/") and not exists(name, note):
                yield f"no file {name}"
        elif name == text and ITEM.fullmatch(name):
            parts = set(name.split("::")) - FOREIGN
            if not any(parts <= words for words in code()):
                yield f"no item {name}"
        elif before and re.fullmatch(r"[a-z]+", text) and not exists(text, Path("note")):
            yield f"no module {text}"


def markdown(path):
    is_code = False
    names_code = path.name in {"ARCHITECTURE.md", "CONTRIBUTING.md"} or "src" in path.parts
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        if is_code:
            continue
        if len(line) > MAX_COLUMNS and not line.startswith("|") and "](" not in line:
            yield number, f"{len(line)} columns"
        if "| ---" in line and not re.fullmatch(r"\|( :?-+:? \|)+", line):
            yield number, "a table that was wrapped like prose"
        for finding in words(line):
            yield number, finding
        if names_code:
            for finding in missing(line, path):
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
