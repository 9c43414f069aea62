"""`gcgroup-ray start`: starts a Ray node whose workers are governed.

Everything follows from environment variables of the raylet, which its workers inherit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from gcgroup_ray import compatibility
from gcgroup_ray.client import DEFAULT_SOCKET, DaemonError, connected
from gcgroup_ray.member import GROUP_VARIABLE, UNJOINED
from gcgroup_ray.options import RESOURCE

_PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"
_MODULES = "RAY_preload_python_modules"
_PLUGIN = "gcgroup_ray.plugin.GcgroupPlugin"
_MODULE = "gcgroup_ray.worker"

#: Amount of the custom resource of a node; a task takes a ten-thousandth of one.
_AMOUNT = 1000


class NodeError(Exception):
    """A node cannot be started with gcgroup_ray."""


def find_library() -> Path:
    """Return the preload library of the installed `gcgroupfs`.

    Raises:
        NodeError: There is none.
    """
    program = shutil.which("gcgroupfs")
    if program is None:
        raise NodeError("no gcgroupfs in PATH; --library says where libgcgroup.so is")
    library = Path(program).resolve().parent.parent / "lib" / "libgcgroup.so"
    if not library.exists():
        raise NodeError(f"no preload library at {library}")
    return library


def node_environment(
    *,
    library: Path | None = None,
    socket: str | None = None,
    group: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables that a raylet's environment needs, for `Cluster.add_node(env_vars=...)`.

    Args:
        library: The preload library; by default that of the `gcgroupfs` in PATH.
        socket: The daemon's socket.
        group: Existing group for the groups of workers; by default the daemon chooses.
        environ: Environment to which the variables are added; by default that of this process.

    Raises:
        NodeError: There is no preload library, or a variable cannot be extended.
    """
    environ = os.environ if environ is None else environ
    library = library or find_library()
    if any(character in str(library) for character in " :"):
        raise NodeError(f"{library}: a library with a blank or colon in its path cannot be preloaded")
    socket = socket or environ.get("GCGROUP_SOCKET") or DEFAULT_SOCKET
    variables = {
        **UNJOINED,
        "GCGROUP_SOCKET": str(Path(socket).absolute()),
        "LD_PRELOAD": _first(environ.get("LD_PRELOAD", ""), str(library)),
        # Ray otherwise takes LD_PRELOAD out of the environment of workers.
        "RAY_LD_PRELOAD_ON_WORKERS": "1",
        _MODULES: _appended(environ.get(_MODULES, ""), ",", _MODULE),
        _PLUGINS: _with_plugin(environ.get(_PLUGINS) or "[]"),
        # Numbers of GPUs then mean the same to CUDA, Ray and gcgroupfs.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if group:
        variables[GROUP_VARIABLE] = group
    return variables


def _first(present: str, library: str) -> str:
    """Return an `LD_PRELOAD` with the library before others, which could define `dlsym` too."""
    others = [other for other in present.replace(" ", ":").split(":") if other not in ("", library)]
    return ":".join([library, *others])


def _appended(present: str, separator: str, entry: str) -> str:
    entries = [other for other in present.split(separator) if other]
    return separator.join(entries if entry in entries else [*entries, entry])


def _with_plugin(present: str) -> str:
    try:
        plugins = json.loads(present)
    except ValueError as error:
        raise NodeError(f"{_PLUGINS} is not JSON: {error}") from error
    if not isinstance(plugins, list):
        raise NodeError(f"{_PLUGINS} is not a list")
    ours = {"class": _PLUGIN}
    return json.dumps(plugins if ours in plugins else [*plugins, ours])


def _resources(arguments: list[str]) -> list[str]:
    """Add the custom resource to the arguments of `ray start`."""
    given: dict[str, object] = {}
    rest = []
    values = iter(arguments)
    for argument in values:
        if argument == "--resources":
            text = next(values, "")
        elif argument.startswith("--resources="):
            text = argument.removeprefix("--resources=")
        else:
            rest.append(argument)
            continue
        try:
            given = json.loads(text)
        except ValueError as error:
            raise NodeError(f"--resources is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise NodeError("--resources is not a dictionary")
    return [*rest, "--resources=" + json.dumps({RESOURCE: _AMOUNT, **given})]


def start(library: Path | None, group: str | None, arguments: list[str]) -> None:
    """Execute `ray start` in place of this process.

    Raises:
        NodeError: The node could not govern its workers.
    """
    program = Path(sys.executable).with_name("ray")
    if not program.exists():
        raise NodeError(f"no {program}: Ray must be installed beside gcgroup_ray")
    try:
        compatibility.check()
        variables = node_environment(library=library, group=group)
        with connected(variables["GCGROUP_SOCKET"]) as connection:
            connection.get("devices")
    except (compatibility.IncompatibleError, DaemonError) as error:
        raise NodeError(str(error)) from error
    command = [str(program), "start", *_resources(arguments)]
    os.execve(program, command, {**os.environ, **variables})  # noqa: S606


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="gcgroup-ray",
        description="Starts a Ray node whose tasks and actors are held to their shares of GPUs.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start_parser = commands.add_parser(
        "start",
        help="run ray start; the daemon's socket is taken from GCGROUP_SOCKET",
        usage="gcgroup-ray start [--gcgroup-library FILE] [--gcgroup-group PATH] [ARGUMENT OF ray start]...",
    )
    start_parser.add_argument("--gcgroup-library", type=Path, metavar="FILE", help="libgcgroup.so")
    start_parser.add_argument("--gcgroup-group", metavar="PATH", help="existing group for workers' groups")
    commands.add_parser("check", help="check that this version of Ray is supported")
    options, rest = parser.parse_known_args()
    if options.command == "check" and rest:
        parser.error(f"unexpected: {' '.join(rest)}")
    try:
        if options.command == "start":
            start(options.gcgroup_library, options.gcgroup_group, rest)
        compatibility.check()
    except (NodeError, compatibility.IncompatibleError) as error:
        print(f"gcgroup-ray: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
