"""Runs the parts one after the other, each within its time limit, and stores each result at once."""
import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import daemon
import family
import machine
import results
import table

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../shared"))

import evidence

STATES = {0: "PASS", 77: "SKIP"}


class Ended(BaseException):
    """A signal requests the end of the check."""


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="gpu-check.sh",
        usage="%(prog)s [--sim] [--list] [--plan first | figures [SECONDS] | again PART,...] [OPTION...] [OUTDIR]",
        description="Checks whether gcgroupfs works on this machine's GPU, and measures its performance.",
        epilog="Exits with 0 if all parts passed or were skipped, 1 if a part failed or none passed on a GPU, "
               "3 if parts were left out for lack of time.")
    parser.add_argument("--plan", choices=table.PLANS, help="parts in the order of their importance within a time that "
                        "suffices: first (the default: does it work?), figures, again (parts, after a correction). "
                        "Writes only OUTDIR/PLAN.json and OUTDIR/PLAN.tgz, after each part")
    parser.add_argument("--sim", action="store_true", help="run on the simulated driver of the built tree")
    parser.add_argument("--list", action="store_true", help="list the parts and exit")
    parser.add_argument("--parts", metavar="NAME,...", default="",
                        help="run only these parts; `facts` and `product` stand for the two halves")
    parser.add_argument("--failed-in", metavar="DIR", action="append", default=[],
                        help="run only the parts that failed in the results in DIR, and those of --parts")
    parser.add_argument("--commit", help="the commit that was built, where git cannot tell")
    parser.add_argument("--peer", metavar="LIB", help="another preloaded library to compare with, such as HAMi-core's")
    parser.add_argument("--seconds", type=int, help="time limit of the whole check (that of the plan, else the sum of "
                        "the parts' usual seconds)")
    parser.add_argument("words", metavar="OUTDIR", nargs="*", help="directory for the results (gpu-check)")
    given = parser.parse_args()
    try:
        planned(given)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return given


def planned(given):
    """Replaces the words, and the names of parts, by the parts in the order in which they run, their time limit and
    the directory. Raises OSError or ValueError if they cannot be understood."""
    if given.plan == "figures" and given.words and given.words[0].isdecimal():
        given.seconds = int(given.words.pop(0))
    if given.plan == "again":
        if not given.words:
            raise ValueError("--plan again needs the names of parts")
        given.parts = f"{given.parts},{given.words.pop(0)}"
    failed = results.failed(given.failed_in)
    if given.failed_in and not failed:
        raise ValueError("no part failed there")
    names = [name for name in given.parts.split(",") + failed if name]
    if not given.plan and not names:
        given.plan = "first"
    plan = table.PLANS.get(given.plan)
    parts = table.chosen(names) if names else []
    given.parts = [*parts, *(part for part in map(table.named, plan.parts if plan else ()) if part not in parts)]
    given.otherwise = [table.named(name) for name in plan.otherwise] if plan else []
    given.seconds = given.seconds or (plan.seconds if plan else 15 + sum(part.usual for part in parts))
    given.outdir = given.words.pop(0) if given.words else "gpu-check"
    if given.words:
        raise ValueError(f"unexpected: {' '.join(given.words)}")


class Check:
    """Runs parts."""

    def __init__(self, results, sim, seconds):
        self.results, self.sim, self.until = results, sim, time.monotonic() + seconds
        # Why the driver cannot be used, why governed programs cannot, and which processes outlive a part.
        self.no_driver = self.no_daemon = None
        self.simplest_failed = False
        self.warming = []

    def left(self):
        """Returns the seconds left."""
        return self.until - time.monotonic()

    def part(self, part):
        """Runs a part, or records why it is skipped."""
        probe = table.is_probe(part)
        if not probe and not self.no_daemon and not daemon.lives():
            self.daemon_died(part)
        why = self.no_driver or (None if probe else self.no_daemon)
        if why and part not in (table.DRIVER, table.TRACED, *table.FACTS[:2]):
            self.results.ends(part.name, "SKIP", why, 0, probe=probe)
        elif self.left() < part.usual:
            self.results.lacks_time(part.name, f"left out: the part takes {part.usual} s, {max(self.left(), 0):.0f} s are left",
                                    probe=probe)
        else:
            self.run(part, self.most(part), probe)

    def most(self, part):
        """Returns the part's own limit in seconds. Simulated GPUs run on the machine's CPUs, which may be busy."""
        return part.limit * (4 if self.sim else 1)

    def run(self, part, most, probe):
        """Runs a part in a process group of its own, and ends all processes that it leaves."""
        stem = f"{os.environ['GPU_CHECK_WORK']}/parts/{part.name}"
        # For the hooks of governed programs.
        os.environ.update(GPU_CHECK_PART=part.name, GCGROUP_TRACE=f"{stem}.trace")
        limit = min(most, self.left())
        self.results.begins(part.name, probe=probe)
        began = time.monotonic()
        with open(f"{stem}.out", "wb") as out, open(f"{stem}.err", "wb") as err:
            command = [sys.executable, table.path(part), "--json", f"{stem}.json", *(["--sim"] if self.sim else [])]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=os.setpgrp)
        # For the shell script, which ends the part if this process is killed.
        with open(f"{os.environ['GPU_CHECK_WORK']}/part.pid", "w", encoding="ascii") as file:
            file.write(str(process.pid))
        try:
            status, killed = self.wait(process, limit, limit == most)
        except Ended:
            self.clean()
            self.results.lacks_time(part.name, "the check was ended while this ran", stem=stem, probe=probe)
            raise
        seconds = time.monotonic() - began
        words = verdict(stem, status)
        if status == -signal.SIGSEGV:
            evidence.of_crash(command, b"", dict(os.environ))
        left = self.clean()
        os.remove(f"{os.environ['GPU_CHECK_WORK']}/part.pid")
        facts = {"seconds": seconds, "stem": stem, "probe": probe, "limit": most}
        if left:
            facts["left_behind"] = left
        if killed and limit < most:
            self.results.lacks_time(part.name, f"cut off after {seconds:.0f} s: the time limit of the check is reached", **facts)
        elif killed:
            self.results.ends(part.name, "FAIL", f"ran past its limit of {most} s", **facts)
        else:
            self.results.ends(part.name, STATES.get(status, "FAIL"), words, **facts)
        if self.results.entries[part.name]["state"] == "FAIL":
            evidence.of_part(stem)
        self.consequences(part, left)

    def daemon_died(self, part):
        """Records the daemon's death and starts another."""
        self.results.ends(f"daemon before {part.name}", "FAIL", f"the daemon died: {daemon.said()}", 0, probe=False)
        govern(self)

    def wait(self, process, limit, own):
        """Waits for a part. Returns its status, and whether the time limit was exceeded. `own`: the limit is the
        part's own, so that exceeding it is a failure of which evidence is collected."""
        try:
            return process.wait(limit), False
        except subprocess.TimeoutExpired:
            if own:
                evidence.of_process(process.pid, f"ran past its limit of {limit} s")
            # The part and its programs print their stacks.
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
            return None, True

    def clean(self):
        """Ends the processes that a part left. Returns the pids of those that do not die."""
        keep = [process.pid for process in self.warming]
        with contextlib.suppress(OSError, ValueError):
            keep.append(daemon.pid())
        return family.end(keep)

    def warm(self):
        """Begins to read the frameworks, so that later parts find their files in the page cache."""
        for module in ("torch", "cupy", "jax", "numba"):
            self.warming.append(subprocess.Popen([sys.executable, "-c", f"import {module}"], stdin=subprocess.DEVNULL,
                                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def consequences(self, part, left):
        """Records why later parts must be skipped."""
        entry = self.results.entries[part.name]
        if part is table.DRIVER and entry["state"] != "PASS":
            self.no_driver = f"the driver cannot be used: {entry['reason']}"
        if part in table.SIMPLEST and entry["state"] == "FAIL":
            self.simplest_failed = True
            self.no_daemon = f"the simplest governed program fails: {part.name}: {entry['reason']}"
        if left:
            self.no_driver = f"a process of {part.name} cannot be killed: {left}"


def verdict(stem, status):
    """Returns the last line that a part printed, or how it ended."""
    how = f"ended with {status}" if status is None or status >= 0 else f"killed by signal {-status}"
    for kind, before in (("out", ""), ("err", f"{how}: ")):
        if lines := results.text(f"{stem}.{kind}").strip().splitlines():
            return before + lines[-1]
    return f"{how}, without output"


def simulated():
    """Sets the environment so that all programs started from now on find the simulated driver."""
    os.environ.update(LD_LIBRARY_PATH=f"{os.environ['DIST']}/simgpu", SIMGPU_DIR=f"{os.environ['GPU_CHECK_WORK']}/gpu")


def main(given):
    """Runs the check. Returns the exit status."""
    for name in ("state", "gpu", "parts", "gcgroup", "out"):
        os.mkdir(f"{os.environ['GPU_CHECK_WORK']}/{name}")
    os.makedirs(given.outdir, exist_ok=True)
    # A plan's many files come back in one archive.
    outdir = f"{os.environ['GPU_CHECK_WORK']}/out" if given.plan else given.outdir
    shutil.rmtree(f"{outdir}/evidence", ignore_errors=True)
    os.environ["GPU_CHECK_OUT"] = os.path.abspath(outdir)
    if given.peer:
        os.environ["GPU_CHECK_PEER"] = os.path.abspath(given.peer)
    family.adopt()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ended)
    if given.sim:
        simulated()
    written = results.Results(outdir, given.plan and f"{given.outdir}/{given.plan}")
    check = Check(written, given.sim, given.seconds)
    try:
        written.say(machine.describe(f"{outdir}/machine.json", given.sim, given.commit))
        if given.plan == "first" and not given.sim:
            check.warm()
        machine.add(f"{outdir}/machine.json", control=govern(check))
        for part in given.parts:
            check.part(part)
            if check.simplest_failed and given.otherwise:
                break
        for part in given.otherwise if check.simplest_failed else []:
            check.part(part)
        return written.status(check.no_driver)
    except Ended as reason:
        return 128 + reason.args[0]
    finally:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        check.warming.clear()
        check.clean()
        daemon.stop()
        written.quote("daemon", daemon.LOG)
        written.archive()


def govern(check):
    """Starts the daemon, or records why parts that need it are skipped. Returns how control files are
    accessed."""
    began = time.monotonic()
    try:
        os.environ["GCGROUP"], why = daemon.start_anyhow()
        way = f"socket, gcgroupfs get and set: {why}" if why else "FUSE mount"
    except (daemon.Unwilling, OSError) as reason:
        check.no_daemon = f"no daemon: {reason}"
        check.results.ends("daemon", "FAIL", str(reason), time.monotonic() - began, probe=False)
        return "none"
    check.results.say(f"control files by {way}")
    return way


def ended(number, _):
    """Handles a signal."""
    raise Ended(number)


if __name__ == "__main__":
    options = arguments()
    if options.list:
        for listed in table.PARTS:
            print(f"{listed.name:<26}{listed.usual:>3} s, at most {listed.limit:>3}: {table.about(listed)}")
        for name, plan in table.PLANS.items():
            print(f"--plan {name}: {plan.seconds} s at most: {', '.join(plan.parts)}")
        sys.exit(0)
    sys.exit(main(options))
