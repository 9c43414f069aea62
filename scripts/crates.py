#!/usr/bin/env python3
"""Draws the graph of the workspaces' crates in ARCHITECTURE.md.

usage: scripts/crates.py [--check]

  --check   fails if ARCHITECTURE.md shows another graph, if the workspaces differ in what they share, or if the
            core depends on a network library
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).parent.parent
WORKSPACES = REPO, REPO / "gcgroupfs/integrations"
PLACE = re.compile(r"(<!-- scripts/crates.py -->\n```text\n)(.*?)(```\n)", re.DOTALL)
# Only the integrations may depend on these.
NETWORK = {"hyper", "prometheus-client", "prost", "rustls", "tokio", "tonic"}


def parsed(path):
    return tomllib.loads(path.read_text())


def graph():
    """Returns a line for each crate with the crates of the workspaces that it links."""
    packages = []
    for workspace in WORKSPACES:
        command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
        output = subprocess.run(command, cwd=workspace, capture_output=True, check=True).stdout
        packages += json.loads(output)["packages"]
    names = {package["name"] for package in packages}
    width = max(map(len, names))
    for package in sorted(packages, key=lambda package: package["name"]):
        # Those of tests and build scripts have a kind.
        linked = {one["name"] for one in package["dependencies"] if one["kind"] is None}
        yield f"{package['name']:{width}} -> {' '.join(sorted(linked & names))}".removesuffix("-> ").rstrip() + "\n"


def differences():
    """Returns the names of tables and dependencies that the workspaces share and that differ."""
    core, other = (parsed(workspace / "Cargo.toml")["workspace"] for workspace in WORKSPACES)
    yield from (table for table in ("lints", "package") if core[table] != other[table])
    core, other = core["dependencies"], other["dependencies"]
    shared = (name for name in core.keys() & other.keys() if "path" not in core[name])
    yield from (name for name in shared if core[name] != other[name])


def main():
    path = REPO / "ARCHITECTURE.md"
    before = path.read_text()
    after = PLACE.sub(lambda match: match[1] + "".join(graph()) + match[3], before)
    if sys.argv[1:] != ["--check"]:
        path.write_text(after)
        return
    if after != before or not PLACE.search(before):
        sys.exit("ARCHITECTURE.md shows another graph of crates: scripts/crates.py draws it again")
    if differing := sorted(differences()):
        sys.exit(f"Cargo.toml and gcgroupfs/integrations/Cargo.toml differ in {', '.join(differing)}")
    if found := NETWORK & {package["name"] for package in parsed(REPO / "Cargo.lock")["package"]}:
        sys.exit(f"the core depends on {', '.join(sorted(found))}")


if __name__ == "__main__":
    main()
