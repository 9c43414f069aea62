#!/usr/bin/env python3
"""Draws the graph of the workspace's crates in ARCHITECTURE.md.

usage: scripts/crates.py [--check]

  --check   fails if ARCHITECTURE.md shows another graph
"""

import json
import re
import subprocess
import sys
from pathlib import Path

PLACE = re.compile(r"(<!-- scripts/crates.py -->\n```text\n)(.*?)(```\n)", re.DOTALL)


def graph():
    """Returns a line for each crate with the crates of the workspace that it links."""
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["packages"]
    names = {package["name"] for package in packages}
    width = max(map(len, names))
    for package in sorted(packages, key=lambda package: package["name"]):
        # Those of tests and build scripts have a kind.
        linked = {one["name"] for one in package["dependencies"] if one["kind"] is None}
        yield f"{package['name']:{width}} -> {' '.join(sorted(linked & names))}".removesuffix("-> ").rstrip() + "\n"


def main():
    path = Path(__file__).parent.parent / "ARCHITECTURE.md"
    before = path.read_text()
    after = PLACE.sub(lambda match: match[1] + "".join(graph()) + match[3], before)
    if sys.argv[1:] != ["--check"]:
        path.write_text(after)
    elif after != before or not PLACE.search(before):
        sys.exit("ARCHITECTURE.md shows another graph of crates: scripts/crates.py draws it again")


if __name__ == "__main__":
    main()
